"""Log payloads in MySQL's row format from Python values.

A row is written into a binlog in plain Python, as a server writes it
(`tests.integration.mysql.test_builders`), and what the scanner makes of it is the payload.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from tests.support.binlog_events import BinlogBytes

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.records import LogBatch
from tidelog.model.schema import Column, TableName, TableSchema

_INTEGERS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_ONE_BYTE = frozenset(
    {types.FLOAT, types.DOUBLE, types.TIMESTAMP2, types.DATETIME2, types.TIME2, types.BLOB,
     types.JSON, types.GEOMETRY}
)  # fmt: skip
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_EPOCH = dt.datetime(1970, 1, 1)
_WRITE, _UPDATE, _DELETE = 30, 31, 32
_TABLE_ID = 5


class Stored(bytes):
    """A value as it is stored."""


def schema_of(columns: Sequence[Column], key: Sequence[str] = ()) -> TableSchema:
    """A table of the wire format ``binlog``."""
    names = tuple(column.name for column in columns)
    return TableSchema(
        TableName("shop", "orders"), 0, tuple(columns), tuple(key), names, "f", types.WIRE_FORMAT, 1
    )


def insert(schema: TableSchema, after: Mapping[str, Any]) -> bytes:
    """An insert's payload; columns that ``after`` lacks are absent from the image."""
    bits = {"after": present(schema, after)}
    return _scanned(schema, _WRITE, image(schema, after), **bits)


def delete(schema: TableSchema, before: Mapping[str, Any]) -> bytes:
    """A delete's payload."""
    bits = {"before": present(schema, before)}
    return _scanned(schema, _DELETE, image(schema, before), **bits)


def update(schema: TableSchema, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    """An update's payload."""
    bits = {"before": present(schema, before), "after": present(schema, after)}
    return _scanned(schema, _UPDATE, image(schema, before) + image(schema, after), **bits)


def _scanned(schema: TableSchema, kind: int, images: bytes, **bits: bytes) -> bytes:
    log, scanner = _begun(schema)
    log.events.clear()
    log.rows(kind, _TABLE_ID, len(schema.columns), images, **bits)
    (batch,) = scanner.feed(*log.arrays())
    assert isinstance(batch, LogBatch)
    assert len(batch) == 1
    return batch.payload[batch.payload_offsets[0] :].tobytes()


@lru_cache
def _begun(schema: TableSchema) -> tuple[BinlogBytes, BinlogScanner]:
    """A binlog amid a transaction, behind the table's map, and what has read it so far."""
    log = BinlogBytes(checksum=False)
    log.format_description()
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(_TABLE_ID, *map_of(schema), table=schema.table.name)
    scanner = BinlogScanner(Flavor.MYSQL, checksum=False, file_number=1, offset=4)
    for item in scanner.feed(*log.arrays()):
        if isinstance(item, TableMapSeen):
            scanner.bind(item.table_id, 1)
    return log, scanner


def map_of(schema: TableSchema) -> tuple[bytes, bytes]:
    """Type codes and metadata as a table map has them."""
    codes, metas = b"", b""
    for column in schema.columns:
        code, meta = column.type_id, types.metadata(column)
        listed = code in (types.ENUM, types.SET)
        codes += bytes([types.STRING if listed else code])
        if listed or code in (types.STRING, types.NEWDECIMAL):
            metas += meta.to_bytes(2, "big")
        elif code in (types.VARCHAR, types.BIT):
            metas += meta.to_bytes(2, "little")
        elif code in _ONE_BYTE:
            metas += bytes([meta])
    return codes, metas


def present(schema: TableSchema, row: Mapping[str, Any]) -> bytes:
    """The bitmap of the columns that an image has."""
    return _bits([column.name in row for column in schema.columns])


def image(schema: TableSchema, row: Mapping[str, Any]) -> bytes:
    """A row image: NULL bits and values."""
    given = [(column, row[column.name]) for column in schema.columns if column.name in row]
    nulls = _bits([each is None for _, each in given])
    return nulls + b"".join(value(column, each) for column, each in given if each is not None)


def _bits(flags: Sequence[bool]) -> bytes:
    """Spare bits are ones, as servers have them."""
    size = (len(flags) + 7) // 8
    number = (1 << 8 * size) - (1 << len(flags))
    number |= sum(1 << i for i, flag in enumerate(flags) if flag)
    return number.to_bytes(size, "little")


def value(column: Column, given: Any) -> bytes:
    """A value in a row image: numbers, Decimal, str, bytes, date, datetime, timedelta, or for JSON
    what `json` reads; `Stored` bytes as they are.
    """
    if isinstance(given, Stored):
        return given
    code, meta = column.type_id, types.metadata(column)
    if code in _INTEGERS:
        return int(given).to_bytes(_INTEGERS[code], "little", signed=not types.is_unsigned(column))
    if code == types.YEAR:
        return bytes([given - 1900 if given else 0])
    if code in (types.FLOAT, types.DOUBLE):
        return struct.pack("<f" if code == types.FLOAT else "<d", given)
    if code == types.NEWDECIMAL:
        return decimal(given, meta >> 8, meta & 0xFF)
    number: int
    if code == types.DATE:
        number = given.day | given.month << 5 | given.year << 9
        return number.to_bytes(3, "little")
    if code == types.DATETIME2:
        packed = (given.year * 13 + given.month) << 22 | given.day << 17
        packed |= given.hour << 12 | given.minute << 6 | given.second
        number = int(packed + (1 << 39))
        return number.to_bytes(5, "big") + _fraction(given.microsecond, meta)
    if code == types.TIMESTAMP2:
        seconds = (given - _EPOCH) // dt.timedelta(seconds=1)
        return int(seconds).to_bytes(4, "big") + _fraction(given.microsecond, meta)
    if code == types.TIME2:
        return _time(given, meta)
    if code == types.BIT:
        return int(given).to_bytes((meta >> 8) + (meta & 0xFF > 0), "big")
    if code in (types.ENUM, types.SET):
        return int(given).to_bytes(meta & 0xFF, "little")
    if code == types.JSON:
        text = json_document(given)
    else:
        text = given.encode() if isinstance(given, str) else given
    if code in (types.VARCHAR, types.STRING):
        most = meta if code == types.VARCHAR else types.string_bytes(meta)
        return len(text).to_bytes(1 if most < 256 else 2, "little") + text
    return len(text).to_bytes(meta, "little") + text


def decimal(given: Decimal, precision: int, scale: int) -> bytes:
    """A DECIMAL in MySQL's binary format (``decimal2bin``)."""
    _, parts, exponent = given.as_tuple()
    digits = "".join(map(str, parts)) + "0" * (int(exponent) + scale)
    digits = digits.rjust(precision, "0")
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    first = len(whole) % 9
    groups = [whole[:first], *(whole[at : at + 9] for at in range(first, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    out = b"".join(int(g).to_bytes(_DIGIT_BYTES[len(g)], "big") for g in groups if g)
    out = bytes([out[0] ^ 0x80]) + out[1:]
    return bytes(byte ^ 0xFF for byte in out) if given < 0 else out


def _fraction(micros: int, digits: int) -> bytes:
    size = (digits + 1) // 2
    stored: int = micros // 10 ** (6 - 2 * size)
    return stored.to_bytes(size, "big")


def _time(given: dt.timedelta, digits: int) -> bytes:
    seconds, micros = divmod(abs(given) // dt.timedelta(microseconds=1), 1_000_000)
    size: int = (digits + 1) // 2
    packed: int = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
    packed = packed << 8 * size | micros // 10 ** (6 - 2 * size)
    if given < dt.timedelta(0):
        packed = -packed
    number: int = packed + (0x800000 << 8 * size)
    return number.to_bytes(3 + size, "big")


def json_document(document: Any) -> bytes:
    """MySQL's binary JSON (the small form) of what `json` reads; keys in the server's order."""
    kind, body = _json(document)
    return bytes([kind]) + body


def _json(document: Any) -> tuple[int, bytes]:
    if document is None or isinstance(document, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[document]])
    if isinstance(document, int):
        small = ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"))
        for kind, layout in small if document < 1 << 32 else ((10, "<Q"),):
            try:
                return kind, struct.pack(layout, document)
            except struct.error:
                continue
        raise ValueError("too large an integer")
    if isinstance(document, float):
        return 11, struct.pack("<d", document)
    if isinstance(document, str):
        text = document.encode()
        size, prefix = len(text), b""
        while size > 127:
            prefix += bytes([size & 127 | 128])
            size >>= 7
        return 12, prefix + bytes([size]) + text
    is_object = isinstance(document, dict)
    keys = sorted((k.encode() for k in document), key=lambda k: (len(k), k)) if is_object else []
    items = [document[k.decode()] for k in keys] if is_object else list(document)
    start = 4 + len(keys) * 4 + len(items) * 3
    key_entries, entries, tail = b"", b"", b"".join(keys)
    at = start
    for key in keys:
        key_entries += struct.pack("<HH", at, len(key))
        at += len(key)
    for item in items:
        kind, body = _json(item)
        if kind in (4, 5, 6):
            entries += bytes([kind]) + body.ljust(2, b"\0")
        else:
            entries += struct.pack("<BH", kind, start + len(tail))
            tail += body
    body = struct.pack("<HH", len(items), start + len(tail)) + key_entries + entries + tail
    return (0 if is_object else 2), body
