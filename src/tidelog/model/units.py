"""Durations and sizes with units (``7d``, ``4MiB``), parsed and formatted; escapes for texts."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES_PER = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BYTES_BY_NAME = {name.lower(): factor for name, factor in _BYTES_PER.items()}

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 record``, ``1,234 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def and_more(count: int, noun: str) -> str:
    """Return what follows the first of several: `` and 2 more tables``; empty if there is none."""
    return f" and {counted(count, f'more {noun}')}" if count else ""


def parse_milliseconds(text: str) -> int:
    """Parse ``'50ms'``, ``'1.5s'``, ``'1h 30m'`` as milliseconds.

    Raises:
        ValueError: with a text for the user.
    """
    total, end = 0.0, 0
    text = text.strip()
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        total += float(match[1]) * _MS_PER[match[2]]
        end = match.end()
    if end == 0 or end != len(text):
        raise ValueError("expected a duration such as 50ms, 30s, 15m, 12h or 7d")
    return round(total)


def parse_duration(text: str) -> timedelta:
    """Like `parse_milliseconds`, as a timedelta."""
    return timedelta(milliseconds=parse_milliseconds(text))


def parse_bytes(text: str) -> int:
    """Parse ``'4MiB'`` (2^20), ``'4MB'`` (10^6), ``'100B'`` as bytes.

    Raises:
        ValueError: with a text for the user.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES_BY_NAME.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("expected a size such as 64KiB, 4MiB, 1GiB or 500MB")
    return round(float(match[1]) * factor)


def format_milliseconds(milliseconds: int) -> str:
    """Return the shortest exact form: 604800000 → ``7d``."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _MS_PER[unit] == 0:
            return f"{milliseconds // _MS_PER[unit]}{unit}"
    return f"{milliseconds}ms"


def format_bytes(count: int) -> str:
    """Return a size with a binary unit: exact if possible, else with one decimal."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _BYTES_PER[unit]
        if count >= factor:
            value = count / factor
            return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
    return f"{count}B"


def brief_span(milliseconds: float) -> str:
    """Return a time for people, in three digits: ``42ms``, ``1.25s``, ``7min``, ``2.5h``."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms"
    seconds = milliseconds / 1000
    if seconds < 100:
        return f"{seconds:.3g}s"
    minutes = seconds / 60
    return f"{minutes:.0f}min" if minutes < 100 else f"{minutes / 60:.1f}h"


# Control characters of ASCII and ISO 8859-1, line ends of Unicode, and characters that change the
# direction of text (unicode.org/reports/tr9, "Explicit Directional Formatting").
_CONTROL_CHARACTERS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F))
_ESCAPES: Final = {
    code: ascii(chr(code))[1:-1] for code in (*_CONTROL_CHARACTERS, *range(0x2066, 0x206A))
}
_ESCAPES_OF_LINES: Final = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with escapes for control characters; ``lines``: except for line ends."""
    return text.translate(_ESCAPES_OF_LINES if lines else _ESCAPES)
