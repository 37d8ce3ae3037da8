"""Texts of others, such as a table's name, as one line that does nothing to a terminal."""

from __future__ import annotations

from typing import Final

# Control characters of ASCII and ISO 8859-1, ends of lines of Unicode, and what turns the
# direction of what follows (unicode.org/reports/tr9, "Explicit Directional Formatting").
_ACTING = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F))
_ESCAPES: Final = {code: ascii(chr(code))[1:-1] for code in (*_ACTING, *range(0x2066, 0x206A))}
_ESCAPES_OF_LINES: Final = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}


def printable(text: str, *, lines: bool = False) -> str:
    """The text with escapes for characters that act; ``lines``: but for the ends of its lines."""
    return text.translate(_ESCAPES_OF_LINES if lines else _ESCAPES)
