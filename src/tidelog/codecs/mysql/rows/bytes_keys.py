"""Keys of bytes as texts: ``0x`` and hexadecimal digits, as MySQL and MariaDB write such literals.

Texts that people give may leave that out where the bytes are UTF-8 and don't begin with ``0x``.
"""

from __future__ import annotations

import re

BEGINS = "0x"
LOGICAL = "bytes"
"""Columns of this logical type have such keys."""

_HEX = re.compile(r"0x((?:[0-9A-Fa-f]{2})*)")


def text_of(value: bytes) -> str:
    """The one text that Tidelog itself writes."""
    return BEGINS + value.hex()


def shortest(value: bytes) -> str:
    """The bytes as they are where `bytes_of` finds the same ones in them, else as `text_of`: for
    values of whose column no more is known than that they came as bytes.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return text_of(value)
    return text_of(value) if text.startswith(BEGINS) or "\0" in text else text


def bytes_of(text: str) -> bytes:
    """Raises ValueError if what follows ``0x`` is not pairs of hexadecimal digits."""
    if not text.startswith(BEGINS):
        return text.encode("utf-8", "surrogateescape")
    match = _HEX.fullmatch(text)
    if match is None:
        raise ValueError("a key of bytes is 0x and pairs of hexadecimal digits")
    return bytes.fromhex(match[1])
