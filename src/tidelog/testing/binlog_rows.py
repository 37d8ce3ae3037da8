"""Rows of a binlog file as log payloads, walked in plain Python: a check on the scanner's kernels.

Reads what the embedded servers of the tests write: table maps and row events (v1 and v2, partial
updates), no compressed events. Format: MySQL internals, "Binary Log", "Table_map_event",
"Rows_event".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog.model.records import Kind
from tidelog.wire import binlog_types as types

_MAGIC = b"\xfebin"
_HEADER = struct.Struct("<IBIIIH")
_TABLE_MAP = 19
_KINDS = {
    23: Kind.INSERT, 30: Kind.INSERT, 24: Kind.UPDATE, 31: Kind.UPDATE, 39: Kind.UPDATE,
    25: Kind.DELETE, 32: Kind.DELETE,
}  # fmt: skip
_PARTIAL_UPDATE = 39
_VERSION_2 = frozenset({30, 31, 32, 39})
_ONE_BYTE = frozenset(
    {
        types.FLOAT, types.DOUBLE, types.TIMESTAMP2, types.DATETIME2, types.TIME2, types.BLOB,
        types.BLOB_COMPRESSED, types.JSON, types.GEOMETRY, types.VECTOR,
    }
)  # fmt: skip
_LITTLE = frozenset({types.VARCHAR, types.VARCHAR_COMPRESSED, types.BIT})
_BIG = frozenset({types.STRING, types.VAR_STRING, types.NEWDECIMAL, types.ENUM, types.SET})
_SIZES = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, 13: 1, 14: 3}


@dataclass(frozen=True, slots=True)
class MappedTable:
    """What a table map says: a column's type code and metadata as one number each."""

    database: str
    name: str
    codes: tuple[int, ...]
    metas: tuple[int, ...]
    body: bytes
    """The event's body, with null bits and optional metadata."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row of a row event: its table, kind and payload (`tidelog.wire.binlog_cells`)."""

    table: MappedTable
    kind: Kind
    payload: bytes


def file_rows(path: Path, start: int = 4, checksum: bool = True) -> Iterator[FileRow]:
    """The rows of a binlog file from offset ``start`` on."""
    data = path.read_bytes()
    assert data[:4] == _MAGIC
    tables: dict[int, MappedTable] = {}
    at = start
    while at + _HEADER.size <= len(data):
        _, code, _, size, _, _ = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + size - (4 if checksum else 0)]
        if code == _TABLE_MAP:
            number = int.from_bytes(body[:6], "little")
            tables[number] = mapped_table(body)
        elif code in _KINDS:
            yield from _rows(code, body, tables)
        at += size


def mapped_table(body: bytes) -> MappedTable:
    """The table map event with this body (header and checksum taken off)."""
    at = 8
    database = body[at + 1 : at + 1 + body[at]].decode()
    at += body[at] + 2
    name = body[at + 1 : at + 1 + body[at]].decode()
    at += body[at] + 2
    columns, at = _packed(body, at)
    codes = tuple(body[at : at + columns])
    at += columns
    _, at = _packed(body, at)
    metas = []
    for code in codes:
        meta = 0
        if code in _ONE_BYTE:
            meta, at = body[at], at + 1
        elif code in _LITTLE:
            meta, at = body[at] | body[at + 1] << 8, at + 2
        elif code in _BIG:
            meta, at = body[at] << 8 | body[at + 1], at + 2
        metas.append(meta)
    return MappedTable(database, name, codes, tuple(metas), body)


def _rows(code: int, body: bytes, tables: dict[int, MappedTable]) -> Iterator[FileRow]:
    table = tables[int.from_bytes(body[:6], "little")]
    at = 8
    if code in _VERSION_2:
        at += int.from_bytes(body[at : at + 2], "little")
    columns, at = _packed(body, at)
    size = (columns + 7) // 8
    kind = _KINDS[code]
    before = body[at : at + size]
    at += size
    after = before
    if kind == Kind.UPDATE:
        after = body[at : at + size]
        at += size
    flags = {Kind.INSERT: 2, Kind.DELETE: 1, Kind.UPDATE: 3}[kind]
    flags |= 4 if code == _PARTIAL_UPDATE else 0
    while at < len(body):
        payload = bytes([1, flags]) + struct.pack("<H", columns)
        if flags & 1:
            end = _image_end(table, before, body, at)
            payload += before + body[at:end]
            at = end
        if flags & 2:
            begin = at
            if flags & 4:
                options, at = _packed(body, at)
                if options & 1:
                    at += (table.codes.count(types.JSON) + 7) // 8
            payload += body[begin:at] + after
            end = _image_end(table, after, body, at)
            payload += body[at:end]
            at = end
        yield FileRow(table, kind, payload)


def _image_end(table: MappedTable, present: bytes, body: bytes, at: int) -> int:
    columns = [c for c in range(len(table.codes)) if present[c // 8] >> c % 8 & 1]
    nulls = body[at : at + (len(columns) + 7) // 8]
    at += len(nulls)
    for number, column in enumerate(columns):
        if not nulls[number // 8] >> number % 8 & 1:
            at += _value_bytes(table.codes[column], table.metas[column], body, at)
    return at


def _value_bytes(code: int, meta: int, body: bytes, at: int) -> int:
    if code in _SIZES:
        return _SIZES[code]
    if code in (types.TIMESTAMP2, types.DATETIME2, types.TIME2):
        base = {types.TIMESTAMP2: 4, types.DATETIME2: 5, types.TIME2: 3}[code]
        return base + (meta + 1) // 2
    if code == types.NEWDECIMAL:
        digits = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
        whole, scale = (meta >> 8) - (meta & 0xFF), meta & 0xFF
        return whole // 9 * 4 + digits[whole % 9] + scale // 9 * 4 + digits[scale % 9]
    if code == types.BIT:
        return (meta >> 8) + (1 if meta & 0xFF else 0)
    if code == types.STRING and meta >> 8 in (types.ENUM, types.SET):
        return meta & 0xFF
    if code == types.STRING:
        prefix = 1 if types.string_bytes(meta) < 256 else 2
    elif code in (types.VARCHAR, types.VARCHAR_COMPRESSED, types.VAR_STRING):
        prefix = 1 if meta < 256 else 2
    else:
        prefix = meta
    return prefix + int.from_bytes(body[at : at + prefix], "little")


def _packed(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    more = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    if not more:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + more], "little"), at + 1 + more
