"""PostgreSQL's rows in the event log: their cells, their types, and their origin for Debezium.

Formats: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.codecs.cell_positions import (
    MISSING,
    NULL,
    CellPlaces,
    Image,
    integers,
    matrices,
    payloads,
)
from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.key_kernel import MALFORMED, TUPLE_FAULTS, UNKNOWN_KIND, read_tuple
from tidelog.codecs.source_blocks import SourceBlock, SourceBlocks
from tidelog.codecs.wire_formats import WireFormat
from tidelog.errors import DecodeError
from tidelog.model.option_values import ColumnTypes
from tidelog.model.patterns import matches_column
from tidelog.model.records import Int32s, RecordKind, UInt8s
from tidelog.model.schema import (
    Column,
    TableName,
    TableSchema,
    element_logical,
    element_name,
    element_of,
    is_native,
)
from tidelog.ports import SourceId

# Types that can be more than text: arrays, JSON, and numbers without limits.

# Types of users and extensions have greater ids. Their arrays may have another separator.
FIRST_USER_ID = 16_384
_NUMERIC = 1700
_JSON = (114, 3802)  # json, jsonb
_TIME, _INTERVAL = (1083,), (1186,)
# Ranges and what their bounds decode to; multiranges.
RANGES = {
    3904: "int32", 3926: "int64", 3906: "numeric", 3908: "timestamp", 3910: "timestamptz",
    3912: "date",
}  # fmt: skip
MULTIRANGES = {4451: 3904, 4536: 3926, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912}
_HSTORE = "hstore"  # an extension's type, in whatever schema
_MOST_DIGITS = 38
_NUMBER = re.compile(r"numeric\((\d+),(-?\d+)\)")


def native_logical(schema: TableSchema, column: Column, types: ColumnTypes) -> str | None:
    """Return the logical type that the option ``types`` gives a column that is text without it;
    None: it is text.
    """
    if column.type_id == _NUMERIC and column.logical == "text":
        return _number(types)
    if column.type_id in _JSON:
        return "variant" if types.json == "variant" else None
    if column.type_id in _TIME:
        return "time" if types.time == "time" else None
    if column.type_id in _INTERVAL:
        return "interval" if types.interval == "struct" else None
    if column.type_id in RANGES or column.type_id in MULTIRANGES:
        return _range(column.type_id, types) if types.ranges == "struct" else None
    if column.type_id >= FIRST_USER_ID:
        if column.type_name.rpartition(".")[2] == _HSTORE:
            return "map" if types.hstore == "map" else None
        found = _structure(dict(schema.structures).get(column.name), types)
        if found is None or not found.startswith("array("):
            return found
        found = element_of(found)
        assert found is not None
    else:
        name = element_name(column.type_name)
        if types.arrays == "text" or name is None:
            return None
        found = _element(name, types)
    depth = dimensions(types, schema, column.name)
    return "array(" * depth + found + ")" * depth


def dimensions(types: ColumnTypes, schema: TableSchema, column: str) -> int:
    """Return how many dimensions the arrays of a column have: by the option ``types``, else as
    declared.
    """
    found = (n for p, n in types.dimensions if matches_column(p, schema.table, column))
    return next(found, dict(schema.dimensions).get(column, 1))


def _range(type_id: int, types: ColumnTypes) -> str:
    if type_id in MULTIRANGES:
        return "multi" + _range(MULTIRANGES[type_id], types)
    bound = RANGES[type_id]
    return f"range({(_number(types) or 'text') if bound == 'numeric' else bound})"


def _structure(logical: str | None, types: ColumnTypes) -> str | None:
    """Return the structure of a type that users defined, if the options ask for all its kinds."""
    if logical is None:
        return None
    asked = {"range": types.ranges, "multirange": types.ranges, "struct": types.composites}
    element = element_of(logical) if logical.startswith("array(") else logical
    if element is None or (element != logical and types.arrays == "text"):
        return None
    return logical if asked.get(element.partition("(")[0]) == "struct" else None


def _number(types: ColumnTypes) -> str | None:
    return None if types.numeric is None else "numeric({},{})".format(*types.numeric)


def _element(name: str, types: ColumnTypes) -> str:
    number = _NUMBER.fullmatch(name)
    if number is not None:
        precision, scale = int(number[1]), int(number[2])
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return f"numeric({precision},{scale})"  # a decimal would make NaN null
    if number is not None or name == "numeric":
        return _number(types) or "text"
    return element_logical(name)


# HOT PATH. Where each cell of a batch of payloads begins and how long it is.

_I, _U, _D, _T = (
    int(RecordKind.INSERT),
    int(RecordKind.UPDATE),
    int(RecordKind.DELETE),
    int(RecordKind.TRUNCATE),
)
_R, _A = int(RecordKind.DUMP_ROW), int(RecordKind.ABSENT)
_K, _O, _N = ord("K"), ord("O"), ord("N")


def parse(
    records: pa.RecordBatch,
    schema: TableSchema,
    wanted: Sequence[int],
    *,
    old: bool,
    old_columns: Sequence[int] | None = None,
) -> CellPlaces:
    """See `tidelog.codecs.wire_formats.parse`."""
    del old_columns
    data, offsets = payloads(records)
    kind: UInt8s = records.column("kind").to_numpy(zero_copy_only=True)
    version = integers(records, "offset")
    n, columns = len(kind), len(schema.columns)
    slot = np.full(columns, -1, dtype=np.int32)
    slot[list(wanted)] = np.arange(len(wanted), dtype=np.int32)
    full = schema.identity_kind == "f"
    identity = np.array([full or c.name in schema.identity for c in schema.columns], np.bool_)
    keep_old = old and _any_old(data, offsets, kind)
    new_image = Image(*matrices(len(wanted), n), np.empty(n, dtype=np.bool_))
    old_shape = (len(wanted), n) if keep_old else (0, 0)
    old_image = Image(*matrices(*old_shape), np.empty(n, dtype=np.bool_))
    row, reason, any_missing = _parse(
        data, offsets, kind, slot, identity, keep_old,
        old_image.start, old_image.length, old_image.present,
        new_image.start, new_image.length, new_image.present,
    )  # fmt: skip
    if row >= 0:
        raise DecodeError(f"{schema.table}: version {version[row]}: {TUPLE_FAULTS[reason]}")
    return CellPlaces(data, version, kind, old_image if keep_old else None, new_image, any_missing)


@njit(cache=True, nogil=True)
def _any_old(data: UInt8s, offsets: Int32s, kind: UInt8s) -> bool:
    for i in range(len(kind)):
        if kind[i] == _D or kind[i] == _A:
            return True
        if kind[i] == _U and offsets[i + 1] - offsets[i] > 5 and data[offsets[i] + 5] != _N:
            return True
    return False


@njit(cache=True, nogil=True)
def _parse(  # type: ignore[no-untyped-def]
    data, offsets, kind, slot, identity, keep_old,
    old_start, old_length, old_present, new_start, new_length, new_present,
):  # fmt: skip
    """Fill the matrices; returns the first bad row (-1 if none), the reason, and whether a new cell
    is missing.
    """
    columns = len(slot)
    wire = np.empty(len(slot), dtype=np.int64)  # matrix row -> wire column
    rows = 0
    for c in range(columns):
        if slot[c] >= 0:
            wire[slot[c]] = c
            rows += 1
    scratch_old_start = np.empty(columns, dtype=np.int32)
    scratch_old_length = np.empty(columns, dtype=np.int32)
    scratch_start = np.empty(columns, dtype=np.int32)
    scratch_length = np.empty(columns, dtype=np.int32)
    any_missing = False
    for i in range(len(kind)):
        what = kind[i]
        position = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        has_old = False
        has_new = False
        if what == _T:
            position = end
        elif what not in (_I, _U, _D, _R, _A):
            return i, UNKNOWN_KIND, False
        else:
            position += 5
            if position >= end:
                return i, MALFORMED, False
            tag = data[position]
            if what in (_U, _D, _A) and tag in (_K, _O):
                has_old = True
                position = read_tuple(
                    data, position + 1, end, columns, scratch_old_start, scratch_old_length
                )
                if position < 0:
                    return i, -position, False
                if what != _A:
                    # Columns outside the identity are sent as NULL (logicalrep_write_tuple). Tag
                    # and identity are the root's, the tuple is the partition's, which may log more
                    # (FULL) or less than its root.
                    for c in range(columns):
                        if not identity[c] and scratch_old_length[c] == NULL:
                            scratch_old_length[c] = MISSING
            if what in (_I, _U, _R):
                if position >= end or data[position] != _N:
                    return i, MALFORMED, False
                has_new = True
                position = read_tuple(
                    data, position + 1, end, columns, scratch_start, scratch_length
                )
                if position < 0:
                    return i, -position, False
            elif not has_old:
                return i, MALFORMED, False
            if position != end:
                return i, MALFORMED, False
        new_present[i] = has_new
        old_present[i] = has_old
        if has_new:
            for r in range(rows):
                c = wire[r]
                size = scratch_length[c]
                begin = scratch_start[c]
                if size == MISSING:
                    if has_old and scratch_old_length[c] != MISSING:
                        size = scratch_old_length[c]
                        begin = scratch_old_start[c]
                    else:
                        any_missing = True
                new_start[r, i] = begin
                new_length[r, i] = size
        else:
            for r in range(rows):
                new_start[r, i] = 0
                new_length[r, i] = NULL
        if keep_old:
            for r in range(rows):
                c = wire[r]
                if has_old:
                    old_start[r, i] = scratch_old_start[c]
                    old_length[r, i] = scratch_old_length[c]
                else:
                    old_start[r, i] = 0
                    old_length[r, i] = NULL
    return -1, 0, any_missing


# The format, and where its rows come from.

# PostgreSQL stores only these out of line, so only these can be unchanged TOAST.
_OUT_OF_LINE = ("text", "binary", "bytes", "decimal")
# The value that an infinite date or timestamp decodes to (`tidelog.codecs.columns.times`),
# and its text: two values become one (docs/sources/postgresql.md, "What is not one-to-one").
_EPOCH = date(1970, 1, 1)
_INFINITE = {
    str(_EPOCH + timedelta(days=2_932_896)): "infinity",
    str(_EPOCH - timedelta(days=719_160)): "-infinity",
}
_MIDNIGHTS = ("", "00:00:00", "00:00:00+00")
_EXAMPLE = {
    "int64": b"1",
    "int32": b"1",
    "int16": b"1",
    "bool": b"t",
    "float64": b"1.5",
    "float32": b"1.5",
    "decimal(10,2)": b"1.50",
    "date": b"2026-01-02",
    "timestamp": b"2026-01-02 03:04:05",
    "timestamptz": b"2026-01-02 03:04:05+00",
    "binary": b"\\x00",
    "text": b"x",
    "bytes": b"x",
    "array(text)": b'{x,NULL,"a b"}',
    "numeric(38,18)": b"1.5",
    "map": b'"a"=>"1", "b"=>NULL',
}


def _possibly_missing_columns(schema: TableSchema) -> frozenset[str]:
    return frozenset(
        column.name
        for column in schema.columns
        if column.logical.partition("(")[0] in _OUT_OF_LINE or is_native(column.logical)
    )


def _key_spellings(text: str, column: Column) -> tuple[str, ...]:
    day, _, rest = text.partition(" ")
    of_time = column.logical in ("date", "timestamp", "timestamptz")
    infinite = _INFINITE.get(day) if of_time and rest in _MIDNIGHTS else None
    return (text,) if infinite is None else (text, infinite)


def _example() -> tuple[bytes, TableSchema]:
    columns = tuple(Column(kind, 0, -1, kind, kind) for kind in _EXAMPLE)
    schema = TableSchema(
        TableName("warm", "up"), 1, columns, ("int64",), ("int64",), "d", "pgoutput", 1
    )
    cells = b"".join(b"t" + struct.pack("!I", len(text)) + text for text in _EXAMPLE.values())
    return struct.pack("!cIcH", b"I", 1, b"N", len(_EXAMPLE)) + cells, schema


def _source_block(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    lsn = records.column("position")
    own = {
        "schema": table.namespace,
        "table": table.name,
        "txId": TextCells(records.column("xid")),
        "lsn": TextCells(lsn),
        "xmin": None,
    }
    return SourceBlock(source.database, TextCells(lsn, '"[null,\\"', '\\"]"'), own)


PGOUTPUT = WireFormat(
    parse=parse,
    possibly_missing_columns=_possibly_missing_columns,
    key_spellings=_key_spellings,
    fraction_digits=6,
    decimals_have_nan=True,
    sorts_uuids_as_texts=True,
    example=_example,
)
SOURCE_BLOCKS = SourceBlocks(
    _source_block,
    (
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
    ),
    connector="postgresql",
)
