"""Texts of key columns in character sets that Unicode does not hold all of.

Such a set keeps characters that have no text (surrogates in ``ucs2`` and ``utf32``, codes that
``gbk`` does not define), or two that have one (``cp932`` has NEC's and IBM's). Elsewhere the
server's question mark will do; two keys must not become one. So a key's value that does not come
back from UTF-8 as it was is `MARK` and the hexadecimal digits of its bytes, from log and dump
alike.
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
"""Begins such a text: a code point that never is a character."""

_WHOLE = frozenset({"utf16", "utf16le"})
"""Sets of several bytes a character whose characters all have a text of their own."""
_SINGLE_AGAIN = {
    "armscii8": bytes.fromhex("a4a5a9abacff"),
    "tis620": bytes.fromhex("a0dbdcdddefcfdfe"),
}
"""Bytes whose character another one has too, which the server takes for it."""
_AGAIN = {
    "big5": rb"\xa1[\x5a\xc3\xc5\xfe]|\xa2[\x40\xcc]",
    "sjis": rb"\x81\x5f",  # a backslash as 0x5C is, which is the one people type
    "cp932": rb"\x87[\x90-\x92\x95-\x97\x9a-\x9c]|[\xed\xee].|\xfa[\x4a-\x54\x58-\x5b]",
    "ujis": rb"\x8f\xa2\xb7|\xa1\xc0",
    "eucjpms": rb"\x8f\xa2[\xb7\xf1]|\x8f\xf3[\xfd\xfe]|\x8f\xf4[\xa1-\xa8\xab-\xad]"
    rb"|\xad[\xf0-\xf2\xf5-\xf7\xfa-\xfc]",
}
"""Codes of the sets of several bytes a character, likewise. Both were read from the servers."""
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_ODD = {
    "ucs2": "HEX({k}) REGEXP '^(....)*D[89A-F]'",
    "utf32": "HEX({k}) REGEXP '^(........)*0000D[89A-F]|^0010FFFF'",
}


def needs_exact(column: Column) -> bool:
    """Is it a text of such a set?"""
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
    """Has the set characters that need such texts?"""
    if charset is None or charset in charset_texts.UTF8 or charset in _WHOLE:
        return False
    return not charset_texts.is_single_byte(charset) or bool(_odd_bytes(charset))


def is_plain_ascii(charset: str) -> bool:
    """Do values of bytes below 0x80 alone come back?"""
    return charset_texts.keeps_ascii(charset) and charset != "swe7"


def exact(charset: str, value: bytes) -> str | None:
    """The text of a value that does not come back; None if it does. ``charset``: a lossy one."""
    return MARK + value.hex() if _is_odd(charset, value) else None


def value_of(charset: str | None, text: str) -> bytes | None:
    """The bytes that `exact` made such a text of; None if it is none, or is spelled otherwise."""
    if charset is None or not text.startswith(MARK) or not is_lossy(charset):
        return None
    digits = text[len(MARK) :]
    value = bytes.fromhex(digits) if _HEX.fullmatch(digits) else b""
    return value if exact(charset, value) == text else None


def sql(name: str, charset: str) -> str:
    """The text of column ``name``, quoted, of a lossy set, as the server gives it."""
    plain = f"CONVERT({name} USING utf8mb4)"
    marked = f"CONCAT(_utf8mb4 X'{MARK.encode().hex()}', LOWER(HEX({name})))"
    return f"IF({_odd_sql(name, charset)}, {marked}, {plain})"


def _odd_sql(name: str, charset: str) -> str:
    if charset in SURROGATES:
        return _ODD[charset].format(k=name)
    back = f"CONVERT(CONVERT({name} USING utf8mb4) USING {charset})"
    if charset != "sjis":
        return f"CAST({back} AS BINARY) <> CAST({name} AS BINARY)"
    # Whose 0x5C comes back as 0x815F, one byte longer. 0x3F is no other character's second byte.
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
        if byte in again or (byte != 0x3F and charset_texts.decoded(bytes([byte]), charset) == "?")
    )
