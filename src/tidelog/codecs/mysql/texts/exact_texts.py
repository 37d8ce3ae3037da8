"""Distinct texts for key columns in character sets that Unicode does not cover completely.

Such a set has characters without a text (surrogates in ``ucs2`` and ``utf32``, codes that ``gbk``
does not define), or two characters with the same text (``cp932`` has NEC's and IBM's). For other
columns the server's question mark is good enough, but two keys must not become one. So a key's
value that does not survive the conversion to UTF-8 and back is written as `MARK` and the
hexadecimal digits of its bytes, both from the log and from a dump.
"""

from __future__ import annotations

import re
from functools import cache

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.texts import charset_texts
from tidelog.codecs.mysql.texts.multibyte_texts import SURROGATES, characters, decode
from tidelog.model.schema import Column

MARK = "\U0010ffff"
"""The prefix of such a text: a code point that is never a character."""

_WHOLE = frozenset({"utf16", "utf16le"})
"""Multi-byte sets whose characters all have distinct texts."""
_SINGLE_AGAIN = {
    "armscii8": bytes.fromhex("a4a5a9abacff"),
    "tis620": bytes.fromhex("a0dbdcdddefcfdfe"),
}
"""Bytes whose character another byte has too, and the server converts back to that one."""
_AGAIN = {
    "big5": rb"\xa1[\x5a\xc3\xc5\xfe]|\xa2[\x40\xcc]",
    "sjis": rb"\x81\x5f",  # a backslash like 0x5C, which is the one that people type
    "cp932": rb"\x87[\x90-\x92\x95-\x97\x9a-\x9c]|[\xed\xee].|\xfa[\x4a-\x54\x58-\x5b]",
    "ujis": rb"\x8f\xa2\xb7|\xa1\xc0",
    "eucjpms": rb"\x8f\xa2[\xb7\xf1]|\x8f\xf3[\xfd\xfe]|\x8f\xf4[\xa1-\xa8\xab-\xad]"
    rb"|\xad[\xf0-\xf2\xf5-\xf7\xfa-\xfc]",
}
"""The same for codes of multi-byte sets. Both lists were read from the servers."""
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_ODD = {
    "ucs2": "HEX({k}) REGEXP '^(....)*D[89A-F]'",
    "utf32": "HEX({k}) REGEXP '^(........)*0000D[89A-F]|^0010FFFF'",
}


def needs_exact(column: Column) -> bool:
    """Return True if the column is text in such a set."""
    charset = charset_of(types.collation(column))
    return column.type_id in types.CHARACTER and is_lossy(charset)


def longest(column: Column) -> int:
    """The most characters of such a text of the column; 0 if it needs none."""
    if not needs_exact(column):
        return 0
    size = types.metadata(column)
    return 1 + 2 * (types.string_bytes(size) if column.type_id == types.STRING else size)


@cache
def is_lossy(charset: str | None) -> bool:
    """Return True if the set has characters that need such texts."""
    if charset is None or charset in charset_texts.UTF8 or charset in _WHOLE:
        return False
    return not charset_texts.is_single_byte(charset) or bool(_odd_bytes(charset))


def is_plain_ascii(charset: str) -> bool:
    """Return True if values of bytes below 0x80 survive the conversion."""
    return charset_texts.keeps_ascii(charset) and charset != "swe7"


def exact(charset: str, value: bytes) -> str | None:
    """The text of a value that does not survive the conversion; None if it does. ``charset``: a
    lossy set.
    """
    return MARK + value.hex() if _is_odd(charset, value) else None


def value_of(charset: str | None, text: str) -> bytes | None:
    """The bytes from which `exact` made this text; None if it did not, or the text is spelled
    differently.
    """
    if charset is None or not text.startswith(MARK) or not is_lossy(charset):
        return None
    digits = text[len(MARK) :]
    value = bytes.fromhex(digits) if _HEX.fullmatch(digits) else b""
    return value if exact(charset, value) == text else None


def sql(name: str, charset: str) -> str:
    """SQL for the text of column ``name``, quoted, in a lossy set."""
    plain = f"CONVERT({name} USING utf8mb4)"
    marked = f"CONCAT(_utf8mb4 X'{MARK.encode().hex()}', LOWER(HEX({name})))"
    return f"IF({_odd_sql(name, charset)}, {marked}, {plain})"


def _odd_sql(name: str, charset: str) -> str:
    if charset in SURROGATES:
        return _ODD[charset].format(k=name)
    back = f"CONVERT(CONVERT({name} USING utf8mb4) USING {charset})"
    if charset != "sjis":
        return f"CAST({back} AS BINARY) <> CAST({name} AS BINARY)"
    # Its 0x5C becomes 0x815F, one byte longer. 0x3F is no other character's second byte.
    text = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    marks = f"{_count(text, '3F')} <> {_count(f'CAST({name} AS BINARY)', '3F')}"
    return f"({marks} OR LENGTH({back}) <> LENGTH({name}) + {_count(text, '5C')})"


def _count(value: str, digits: str) -> str:
    return f"(LENGTH({value}) - LENGTH(REPLACE({value}, X'{digits}', '')))"


def _is_odd(charset: str, value: bytes) -> bool:
    if charset in SURROGATES:
        size = 2 if charset == "ucs2" else 4
        units = (int.from_bytes(value[at : at + size]) for at in range(0, len(value), size))
        marked = size == 4 and value[:4] == ord(MARK).to_bytes(4)
        return marked or any(0xD800 <= unit < 0xE000 for unit in units)
    if charset_texts.is_single_byte(charset):
        return bool(value.translate(None, _plain_bytes(charset)))
    if value.isascii():
        return False
    if decode(charset, value).count("?") > value.count(b"?"):
        return True
    again = _AGAIN.get(charset)
    return again is not None and any(
        re.fullmatch(again, code, re.DOTALL) for code in characters(charset, value)
    )


@cache
def _plain_bytes(charset: str) -> bytes:
    odd = _odd_bytes(charset)
    return bytes(byte for byte in range(256) if byte not in odd)


@cache
def _odd_bytes(charset: str) -> bytes:
    again = _SINGLE_AGAIN.get(charset, b"")
    return bytes(
        byte
        for byte in range(256)
        if byte in again
        or (byte != 0x3F and charset_texts.decode_text(bytes([byte]), charset) == "?")
    )
