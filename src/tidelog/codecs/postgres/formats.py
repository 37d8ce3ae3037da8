"""PostgreSQL's rows in the event log, and their origin as Debezium writes it."""

from __future__ import annotations

import struct
from datetime import date, timedelta

import pyarrow as pa

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.postgres.cells import parse
from tidelog.codecs.source_blocks import SourceBlock, SourceBlocks
from tidelog.codecs.wire_formats import WireFormat
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId

# PostgreSQL stores only these out of line, so only these can be unchanged TOAST.
_OUT_OF_LINE = ("text", "binary", "bytes", "decimal", "array", "numeric")
# The value that an infinite date or timestamp decodes to (`tidelog.codecs.columns.time_kernels`),
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
}


def _possibly_missing_columns(schema: TableSchema) -> frozenset[str]:
    return frozenset(c.name for c in schema.columns if c.logical.partition("(")[0] in _OUT_OF_LINE)


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
