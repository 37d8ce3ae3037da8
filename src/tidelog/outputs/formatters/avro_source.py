"""The record ``source`` of Debezium's envelope in Avro: the fields that its JSON has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.source_blocks import source_block
from tidelog.model.schema import TableName
from tidelog.outputs.formatters.avro_encoding import AvroRows, number, text
from tidelog.outputs.formatters.avro_schema import nullable
from tidelog.outputs.formatters.source_fields import connector_of, source_fields
from tidelog.ports import SourceId
from tidelog.spark.formats.envelope import snapshots, tidelog_version

_TYPES = {"int32": "int", "int64": "long"}


def source_schema(source: SourceId) -> dict[str, Any]:
    """The record's schema; it is the same for all tables of a source."""
    fields = [
        nullable(name, avro) if optional else {"name": name, "type": avro}
        for name, kind, optional in source_fields(source)
        for avro in [_TYPES.get(kind, kind)]
    ]
    space = f"io.debezium.connector.{connector_of(source)}"
    return {"type": "record", "name": "Source", "namespace": space, "fields": fields}


def write_source(
    rows: AvroRows, source: SourceId, table: TableName, records: pa.RecordBatch
) -> None:
    """The record of each of ``records``, the log's columns of the events."""
    block = source_block(source, table, records)
    micros = records.column("commit_ts")
    values: dict[str, Any] = {
        "version": tidelog_version(),
        "connector": block.connector,
        "name": "tidelog",
        "ts_ms": pc.divide(micros, 1000),
        "snapshot": snapshots(records),
        "db": block.db,
        "sequence": block.sequence,
        "ts_us": micros,
        "ts_ns": pc.multiply(micros, 1000),
        **block.own,
    }
    for name, kind, optional in source_fields(source):
        value = values[name]
        if isinstance(value, TextCells):
            value = _plain(value, kind)
        if isinstance(value, pa.Array):
            rows.field(name, value, nullable=optional)
        else:
            rows.constant(_encoded(value, optional))


def _plain(cells: TextCells, kind: str) -> pa.Array:
    """Integers, or values of JSON texts."""
    if kind != "string":
        return cells.values
    return pc.replace_substring(pc.utf8_slice_codeunits(cells.texts(), 1, -1), '\\"', '"')


def _encoded(value: str | int | None, optional: bool) -> bytes:
    if value is None:
        return number(0)
    encoded = text(value) if isinstance(value, str) else number(value)
    return number(1) + encoded if optional else encoded
