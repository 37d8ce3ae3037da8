"""MySQL's and MariaDB's rows in the event log, and their origin as Debezium writes it."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns import times
from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.mysql.binlog.items import OFFSET_BITS
from tidelog.codecs.mysql.rows.cells import parse
from tidelog.codecs.source_blocks import SourceBlock, SourceBlocks
from tidelog.codecs.wire_formats import WireFormat
from tidelog.model.schema import Column, TableName, TableSchema, backticked
from tidelog.ports import SourceId

_FILE_DIGITS = 6
# A date of year 0 or before it, as Spark writes it, and the rest of a timestamp.
_INVALID = re.compile(r"(-\d{4}|0000)-(\d\d)-(\d\d)(.*)")


def _possibly_missing_columns(schema: TableSchema) -> frozenset[str]:
    """A binlog_row_image other than FULL leaves out unchanged columns."""
    return frozenset(schema.column_names) - set(schema.match_key)


def _key_spellings(text: str, column: Column) -> tuple[str, ...]:
    if column.logical in ("date", "timestamp", "timestamptz"):
        found = _INVALID.match(text)
        return (text if found is None else _invalid_date(found),)
    if column.logical == "bytes" and text.startswith("\\x"):
        return ("0x" + text[2:],)
    if column.logical == "float32":
        return (repr(float(np.float32(text))),)  # the server compares it as a double
    return (text,)


def _invalid_date(found: re.Match[str]) -> str:
    """Return a date that no calendar has, as MySQL and MariaDB write it."""
    year, month, day, rest = found.groups()
    days = np.datetime64(f"{year}-{month}-{day}", "D").astype(np.int32)
    [text] = times.texts_with_invalid_dates(
        pa.array([days.item()], pa.int32()).view(pa.date32())
    ).to_pylist()
    return f"{text}{rest}"


def _source_block(source: SourceId, table: TableName, records: pa.RecordBatch) -> SourceBlock:
    """``file`` and ``pos`` are the transaction's beginning, ``row`` counts within the transaction.
    The files of a promoted server have higher numbers than those of the former one.

    Fields that are not captured have the values of Debezium's snapshots: ``server_id`` 0, the
    others null.
    """
    del source
    position = records.column("position")
    number = pc.shift_right(position, OFFSET_BITS)
    offset = pc.subtract(position, pc.shift_left(number, OFFSET_BITS))
    name = pc.utf8_lpad(number.cast(pa.string()), _FILE_DIGITS, "0")
    own = {
        "table": table.name,
        "server_id": 0,
        "gtid": None,
        "file": TextCells(name, '"binlog.', '"'),
        "pos": TextCells(offset),
        "row": TextCells(records.column("ordinal")),
        "thread": None,
        "query": None,
    }
    return SourceBlock(table.namespace, TextCells(pa.nulls(len(position), pa.string())), own)


BINLOG = WireFormat(
    parse=parse,
    possibly_missing_columns=_possibly_missing_columns,
    key_spellings=_key_spellings,
    fraction_digits=0,
    quoted=backticked,
    row_id="BIGINT AUTO_INCREMENT",
    has_invalid_dates=True,
)
SOURCE_BLOCKS = SourceBlocks(
    _source_block,
    (
        ("table", "string", True),
        ("server_id", "int64", False),
        ("gtid", "string", True),
        ("file", "string", False),
        ("pos", "int64", False),
        ("row", "int32", False),
        ("thread", "int64", True),
        ("query", "string", True),
    ),
)
