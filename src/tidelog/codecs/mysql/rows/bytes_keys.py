"""Converts keys of bytes to and from text: ``0x`` and hexadecimal digits, as MySQL and MariaDB
write such literals.

Texts from people may be the bytes themselves if these are UTF-8 and don't begin with ``0x``.
"""

from __future__ import annotations

import re

BEGINS = "0x"
LOGICAL = "bytes"
"""The logical type of columns with such keys."""

_HEX = re.compile(r"0x((?:[0-9A-Fa-f]{2})*)")


def text_of(value: bytes) -> str:
    """The text in the form that Tidelog writes."""
    return BEGINS + value.hex()


def shortest(value: bytes) -> str:
    """The bytes as text if `bytes_of` reads the same bytes from it, else `text_of`.

    It is for values whose column is only known to have bytes.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return text_of(value)
    return text_of(value) if text.startswith(BEGINS) or "\0" in text else text


def bytes_of(text: str) -> bytes:
    """The bytes of a text. Raises ValueError if ``0x`` is not followed by pairs of hexadecimal
    digits.
    """
    if not text.startswith(BEGINS):
        return text.encode("utf-8", "surrogateescape")
    match = _HEX.fullmatch(text)
    if match is None:
        raise ValueError("a key of bytes is 0x and pairs of hexadecimal digits")
    return bytes.fromhex(match[1])
