"""The record ``source`` of Debezium's envelope in Avro: the fields that its JSON has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.schema import TableName
from tidelog.outputs.formatters.avro_encoding import AvroRows, number, text
from tidelog.outputs.formatters.avro_schema import nullable
from tidelog.pipeline.envelope import snapshots, tidelog_version
from tidelog.ports import SourceId
from tidelog.wire.joining import Cells
from tidelog.wire.source_blocks import source_block

# (name, type, may be null). Debezium's connectors have these types.
_COMMON = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "long", False),
    ("snapshot", "string", False),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "long", True),
    ("ts_ns", "long", True),
)
_POSTGRES = (
    ("schema", "string", False),
    ("table", "string", False),
    ("txId", "long", True),
    ("lsn", "long", True),
    ("xmin", "long", True),
)
_BINLOG = (
    ("table", "string", True),
    ("server_id", "long", False),
    ("gtid", "string", True),
    ("file", "string", False),
    ("pos", "long", False),
    ("row", "int", False),
    ("thread", "long", True),
    ("query", "string", True),
)
_OTHER = (("schema", "string", False), ("table", "string", False), ("position", "long", False))
_CONNECTORS = {"postgres": "postgresql"}
_OWN = {"postgres": _POSTGRES, "mysql": _BINLOG, "mariadb": _BINLOG}


def source_schema(source: SourceId) -> dict[str, Any]:
    """The record's schema; it is the same for all tables of a source."""
    connector = _CONNECTORS.get(source.kind, source.kind)
    fields = [
        nullable(name, kind) if optional else {"name": name, "type": kind}
        for name, kind, optional in _fields(source)
    ]
    space = f"io.debezium.connector.{connector}"
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
    for name, kind, optional in _fields(source):
        value = values[name]
        if isinstance(value, Cells):
            value = _plain(value, kind)
        if isinstance(value, pa.Array):
            rows.field(name, value, nullable=optional)
        else:
            rows.constant(_encoded(value, optional))


def _fields(source: SourceId) -> tuple[tuple[str, str, bool], ...]:
    return (*_COMMON, *_OWN.get(source.kind, _OTHER))


def _plain(cells: Cells, kind: str) -> pa.Array:
    """Integers, or values of JSON texts."""
    if kind != "string":
        return cells.values
    return pc.replace_substring(pc.utf8_slice_codeunits(cells.texts(), 1, -1), '\\"', '"')


def _encoded(value: str | int | None, optional: bool) -> bytes:
    if value is None:
        return number(0)
    encoded = text(value) if isinstance(value, str) else number(value)
    return number(1) + encoded if optional else encoded
