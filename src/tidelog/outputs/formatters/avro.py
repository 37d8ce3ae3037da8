"""Formats Avro in the wire format of Confluent's schema registry: a byte 0, the schema's id in four
bytes, and the record in binary. Keys are Avro, too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import TextCells
from tidelog.codecs.source_blocks import connector_of, source_block, source_fields
from tidelog.model.records import Bools
from tidelog.model.schema import TableName
from tidelog.outputs.formatters import avro_encoding, avro_schema
from tidelog.outputs.formatters.avro_encoding import AvroRows, number, text
from tidelog.outputs.formatters.avro_schema import AvroField, fields_of, nullable
from tidelog.outputs.formatters.messages import EventColumns, messages, topic_of
from tidelog.ports import FormatOptions, MessageSchemas, SourceId, TargetTable
from tidelog.spark.formats.envelope import snapshots, tidelog_version
from tidelog.spark.formats.json_values import UNAVAILABLE, time_micros


@dataclass(frozen=True)
class Avro:
    """`tidelog.ports.SchemaFormatter` of Debezium's envelope.

    Missing columns are listed in ``unavailable``; those of texts and bytes have Debezium's
    placeholder, others null.
    """

    topic: str = "{table}"
    tombstones: bool = True

    @classmethod
    def of(cls, options: FormatOptions) -> Avro:
        return cls(options.topic, options.tombstones)

    def schemas(self, table: TargetTable) -> MessageSchemas:
        fields = fields_of(table, table.columns.names, plain_key=True)
        value = avro_schema.envelope_schema(table, fields, source_schema(table.origin))
        return MessageSchemas(_key_schema(table), value)

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        fields = fields_of(table, found.names, plain_key=True)
        rows = _new_rows(found.n, table.schema_ids[1])
        truncated, deleted = _bools(found.truncate), _bools(found.deleted)
        has_row = ~truncated & ~deleted
        if found.before is None:
            before, old = found.row, deleted
        else:
            # If a created row took another row's key, the delete before has the old row.
            created = _bools(pc.equal(found.op, "c"))
            before, old = found.before, _bools(found.before.is_valid()) & ~created
        rows.union_branch(old)
        _write_row(rows, fields, before, old, None)
        rows.union_branch(has_row)
        _write_row(rows, fields, found.row, has_row, found.missing)
        write_source(rows, table.origin, table.source, found.source)
        rows.constant(avro_encoding.number(0))  # transaction
        rows.field("op", found.op, nullable=False)
        for values in _times(found.commit_ts):
            rows.field("ts", values, nullable=True)
        _write_unavailable(rows, fields, found.missing, has_row)
        topic = topic_of(self.topic, table)
        key = _key(found)
        return messages(found, topic, key, rows.finish(), None, tombstones=self.tombstones)


@dataclass(frozen=True)
class AvroFlat:
    """`tidelog.ports.SchemaFormatter` of flat rows: the members of the JSON of format ``flat``;
    missing columns as in `Avro`.
    """

    topic: str = "{table}"
    tombstones: bool = True

    @classmethod
    def of(cls, options: FormatOptions) -> AvroFlat:
        return cls(options.topic, options.tombstones)

    def schemas(self, table: TargetTable) -> MessageSchemas:
        fields = _flat_fields(table)
        return MessageSchemas(_key_schema(table), avro_schema.flat_schema(table, fields))

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        found = EventColumns(table, events)
        fields = _flat_fields(table)
        rows = _new_rows(found.n, table.schema_ids[1])
        all_of_them = np.ones(found.n, np.bool_)
        _write_row(rows, fields, found.row, all_of_them, found.missing)
        rows.field("__op", found.op, nullable=False)
        rows.constant(avro_encoding.text(table.name))
        rows.field("__version", found.version, nullable=False)
        rows.field("__schema_version", found.source.column("schema_id"), nullable=False)
        rows.field("__ts_ms", pc.divide(found.commit_ts, 1000), nullable=False)
        rows.field("__deleted", found.deleted, nullable=False)
        _write_unavailable(rows, fields, found.missing, all_of_them)
        topic = topic_of(self.topic, table)
        key = _key(found)
        return messages(found, topic, key, rows.finish(), None, tombstones=self.tombstones)


def _flat_fields(table: TargetTable) -> list[AvroField]:
    # A truncate has no columns, so those of the key may be null as well.
    reserved = (*avro_schema.FLAT, avro_schema.FLAT_UNAVAILABLE)
    return fields_of(table, table.columns.names, reserved, plain_key=False)


def _key_schema(table: TargetTable) -> str | None:
    if not table.key:
        return None
    return avro_schema.key_schema(table, fields_of(table, table.key, plain_key=True))


def _key(found: EventColumns) -> pa.BinaryArray:
    table = found.table
    if not table.key:
        return pa.nulls(found.n, pa.binary())
    has_row = ~_bools(found.truncate)
    rows = _new_rows(found.n, table.schema_ids[0], has_row)
    _write_row(rows, fields_of(table, table.key, plain_key=True), found.row, has_row, None)
    return rows.finish(has_row)


def _new_rows(n: int, schema_id: int, there: Bools | None = None) -> AvroRows:
    rows = AvroRows(n)
    rows.constant(struct.pack(">BI", 0, schema_id), there)
    return rows


def _write_row(
    rows: AvroRows,
    fields: list[AvroField],
    struct_: pa.StructArray,
    there: Bools,
    missing: Bools | None,
) -> None:
    """``missing``: bool[n, columns of the struct]."""
    for field in fields:
        at = struct_.type.get_field_index(field.column)
        values = pa.nulls(rows.n, field.kind) if at < 0 else struct_.field(at)
        if values.type != field.kind:
            values = values.cast(field.kind)
        if field.of_day:
            values = time_micros(values, field.column)
        elif field.any_text and missing is not None and missing[:, at].any():
            placeholder = pa.scalar(UNAVAILABLE).cast(field.kind)
            values = pc.if_else(pa.array(missing[:, at]), placeholder, values)
        rows.field(field.column, values, nullable=field.nullable, there=there)


def _write_unavailable(
    rows: AvroRows, fields: list[AvroField], missing: Bools | None, there: Bools
) -> None:
    if missing is None or not missing.any():
        rows.constant(avro_encoding.number(0))
        return
    patterns, which = np.unique(missing & there[:, None], axis=0, return_inverse=True)
    encoded = []
    for pattern in patterns:
        names = [field.name for field, is_absent in zip(fields, pattern, strict=True) if is_absent]
        branch = avro_encoding.number(bool(names))
        encoded.append(branch + (avro_encoding.names(names) if names else b""))
    rows.choice(encoded, which.reshape(-1))


def _times(commit_ts: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    return pc.divide(commit_ts, 1000), commit_ts, pc.multiply(commit_ts, 1000)


def _bools(array: pa.Array) -> Bools:
    found: Bools = array.to_numpy(zero_copy_only=False)
    return found


_TYPES = {"int32": "int", "int64": "long"}


def source_schema(source: SourceId) -> dict[str, Any]:
    """Returns the record's schema; it is the same for all tables of a source."""
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
    """Write the record of each of ``records``, the log's columns of the events."""
    block = source_block(source, table, records)
    micros = records.column("commit_ts")
    values: dict[str, Any] = {
        "version": tidelog_version(),
        "connector": connector_of(source),
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
    """Returns integers, or values of JSON texts."""
    if kind != "string":
        return cells.values
    return pc.replace_substring(pc.utf8_slice_codeunits(cells.texts(), 1, -1), '\\"', '"')


def _encoded(value: str | int | None, optional: bool) -> bytes:
    if value is None:
        return number(0)
    encoded = text(value) if isinstance(value, str) else number(value)
    return number(1) + encoded if optional else encoded
