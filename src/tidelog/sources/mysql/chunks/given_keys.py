"""Spells requested keys as the log spells them.

The server finds ``7`` by ``007``, and a datetime with any number of zeros after its point. But a
key without a row is compared with the log's records by text: if the row is created in the meantime,
it must be recognized. So keys are sent to the server in the log's spelling.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.rows import bytes_keys
from tidelog.codecs.mysql.texts.network_texts import inet4_text, inet6_text, uuid_text
from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import Column, TableSchema
from tidelog.sources.mysql.chunks.key_sql import Key

_BITS = {types.TINY: 8, types.SHORT: 16, types.INT24: 24, types.LONG: 32, types.LONGLONG: 64}
_TRUTHS = {"t": "1", "true": "1", "f": "0", "false": "0"}
_INTEGER = re.compile(r"([+-]?\d+)(?:\.0*)?")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?")
_SCALE = re.compile(r"\((\d+)(?:,(\d+))?\)")
_CLOCK = r"(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?"
_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_INSTANT = re.compile(rf"{_DATE}(?:[ T]{_CLOCK})?(?:Z|\+00(?::?00)?)?")
_TIME = re.compile(rf"(-?){_CLOCK}")
_DATES = (types.DATE, types.NEWDATE)
_TIMES = (types.TIME, types.TIME2)
_INSTANTS = (types.DATETIME, types.DATETIME2, types.TIMESTAMP, types.TIMESTAMP2)
_WITH_DIGITS = (types.TIME2, types.DATETIME2, types.TIMESTAMP2)
_NORMALIZERS: dict[str, Callable[[str], bytes]] = {
    "uuid": lambda text: uuid_text(uuid.UUID(text).bytes),
    "inet4": lambda text: inet4_text(ipaddress.IPv4Address(text).packed),
    "inet6": lambda text: inet6_text(ipaddress.IPv6Address(text).packed),
}


def normalize_keys(
    keys: Sequence[Key], schema: TableSchema, columns: Sequence[str]
) -> tuple[Key, ...]:
    """The keys of ``columns`` in the log's spelling, in the same order.

    Text values, for which a collation may match several spellings, and bytes are unchanged.

    Raises:
        ChunkRefusedError: no row can have this key: a value does not fit its column's type.
    """
    of = [schema.columns[schema.column_index(name)] for name in columns]
    return tuple(tuple(map(_value, of, key)) for key in keys)


def _value(column: Column, text: str | None) -> str | None:
    if text is None or column.logical == bytes_keys.LOGICAL:
        return text
    try:
        return _normalize(column, text)
    except ValueError:
        raise ChunkRefusedError(
            f"no row has such a key: a value is not of column {column.name}'s type"
        ) from None


def _normalize(column: Column, text: str) -> str:
    """Raises ValueError if the column can't hold the value."""
    kind = column.type_id
    if kind in _BITS or kind in (types.YEAR, types.BIT):
        return _integer(column, text)
    if kind == types.NEWDECIMAL:
        return _decimal(column, text)
    if kind in _DATES or kind in _INSTANTS:
        return _instant(column, text)
    if kind in _TIMES:
        sign, hours, minutes, seconds, fraction = _match(_TIME, text)
        clock = _clock(hours, minutes, seconds, _fraction(column, fraction), most=838)
        return sign + clock if sign and clock.strip("0:.") else clock
    if kind == types.SET:
        chosen = set(text.split(",")) if text else set()
        labels = types.labels(column)
        _require(chosen <= set(labels))
        return ",".join(label for label in labels if label in chosen)
    if kind == types.STRING and column.type_name in _NORMALIZERS:
        return _NORMALIZERS[column.type_name](text).decode()
    if kind == types.STRING:
        return text.rstrip(" ")  # CHAR(n) stores no trailing spaces
    return text


def _integer(column: Column, text: str) -> str:
    kind = column.type_id
    number = int(_match(_INTEGER, _TRUTHS.get(text, text))[0])
    if kind == types.YEAR:
        _require(number == 0 or 1901 <= number <= 2155)
        return f"{number:04d}"
    if kind == types.BIT:
        bits = (column.type_mod >> 8) * 8 + (column.type_mod & 0xFF)
        _require(0 <= number < 1 << bits)
        if column.logical == "bool":
            return "t" if number else "f"
    elif types.is_unsigned(column):
        _require(0 <= number < 1 << _BITS[kind])
    else:
        most = 1 << _BITS[kind] - 1
        _require(-most <= number < most)
    return str(number)


def _decimal(column: Column, text: str) -> str:
    _require(_DECIMAL.fullmatch(text) is not None)
    found = _SCALE.search(column.type_name)
    assert found is not None
    digits, scale = int(found[1]), int(found[2] or 0)
    exactly = Context(prec=100, traps=[Inexact, InvalidOperation])
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=exactly)
    except ArithmeticError:
        raise ValueError from None
    # Not abs, which rounds to the context's 28 digits.
    _require(number.copy_abs() < Decimal(10) ** (digits - scale))
    return f"{number.copy_abs() if number == 0 else number:f}"


def _instant(column: Column, text: str) -> str:
    year, month, day, hours, minutes, seconds, fraction = _match(_INSTANT, text)
    _require(int(month) <= 12 and int(day) <= 31)
    date = f"{year}-{int(month):02d}-{int(day):02d}"
    clock = _clock(hours or "0", minutes or "0", seconds, _fraction(column, fraction), most=23)
    if column.type_id in _DATES:
        _require(not clock.strip("0:."))
        return date
    return f"{date} {clock}"


def _clock(hours: str, minutes: str, seconds: str | None, fraction: str, *, most: int) -> str:
    numbers = int(hours), int(minutes), int(seconds or 0)
    _require(numbers[0] <= most and numbers[1] <= 59 and numbers[2] <= 59)
    return "{:02d}:{:02d}:{:02d}".format(*numbers) + (f".{fraction}" if fraction else "")


def _fraction(column: Column, digits: str | None) -> str:
    """The fraction with as many digits as the column has.

    Raises ValueError for a text with more digits: it is not a value of the column, and is not
    rounded.
    """
    kept = column.type_mod if column.type_id in _WITH_DIGITS else types.old_digits(column)
    digits = (digits or "").rstrip("0")
    _require(len(digits) <= kept)
    return digits.ljust(kept, "0")


def _match(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = pattern.fullmatch(text)
    _require(found is not None)
    assert found is not None
    return found.groups()


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError
