"""Escapes foreign texts, such as a table's name, so that they do nothing to a terminal."""

from __future__ import annotations

from typing import Final

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
