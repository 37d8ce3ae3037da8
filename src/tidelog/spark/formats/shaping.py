"""Converts records to Arrow batches of a shape, column by column, on executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.cell_positions import missing_names
from tidelog.codecs.decode import Decoded, decode
from tidelog.codecs.fold import KeyedChanges
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.spark.formats.json_values import ValueModes


class ShapeOptions(Protocol):
    """The options of a reader that shape its records."""

    @property
    def columns(self) -> tuple[str, ...] | None: ...

    @property
    def before(self) -> bool: ...

    @property
    def handling(self) -> ValueModes: ...


def typed_batch(
    records: pa.RecordBatch,
    written: TableSchema,
    target: TableSchema,
    columns: Sequence[str] | None,
    before: bool,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Return records of one schema version in the typed shape of ``target``; ``schema`` is the
    shape's.
    """
    names = list(target.column_names if columns is None else columns)
    asked = list(dict.fromkeys([*names, *target.match_key]))
    decoded = decode(records, written, target=target, columns=asked)
    n = len(decoded)
    struct = schema.field("after").type
    after, old = decoded.after, decoded.before
    assert after is not None  # both were requested
    assert old is not None
    arrays = [
        decoded.op,
        as_struct(old, struct) if before else pa.nulls(n, struct),
        as_struct(after, struct),
        key_struct(decoded, schema.field("key").type),
        decoded.version,
        _repeated(pa.scalar(written.schema_id, pa.int32()), n),
        source_struct(records, decoded, target.table, schema.field("source").type),
        timestamps(decoded.commit_ts),
        missing_names(decoded.missing, asked, n),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def by_schema(
    records: pa.RecordBatch, of_one: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> pa.RecordBatch:
    """Return records of any tables, shaped by ``of_one`` version by version, in log order."""
    ids = records.column("schema_id").to_numpy()
    parts = []
    for schema_id in np.unique(ids).tolist():
        mask = ids == schema_id
        parts.append(of_one(records if mask.all() else records.filter(pa.array(mask))))
    if len(parts) == 1:
        return parts[0]
    shaped = pa.concat_batches(parts)
    return shaped.take(pc.sort_indices(shaped.column("version")))


def key_struct(decoded: Decoded, kind: pa.StructType) -> pa.StructArray:
    """Return the match key: of the new row, or of the old row if there is no new one."""
    after, old = decoded.after, decoded.before
    assert after is not None
    assert old is not None
    if not after.null_count or not kind.num_fields:  # a table without a key
        return as_struct(after, kind, valid=True)
    is_deleted = after.is_null()
    children = [
        pc.if_else(is_deleted, _child(old, field.name), _child(after, field.name)) for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def raw_batch(
    records: pa.RecordBatch, schema_of: Callable[[int], TableSchema], schema: pa.Schema
) -> pa.RecordBatch:
    """Return records as they are stored, with their table and schema (JSON); control records with
    the table that they are about.
    """
    kinds, kind_at = np.unique(records.column("kind").to_numpy(), return_inverse=True)
    ids, id_at = np.unique(records.column("schema_id").to_numpy(), return_inverse=True)
    schemas = [schema_of(number) if number else None for number in ids.tolist()]
    names = [None if each is None else str(each.table) for each in schemas]
    tables = pa.array(names, pa.string()).take(pa.array(id_at))
    ours = np.flatnonzero(ids[id_at] == 0) if 0 in ids else ()
    if len(ours):
        spelled = tables.to_pylist()
        for place in ours:
            spelled[place] = control_table(records, int(place))
        tables = pa.array(spelled, pa.string())
    described = [None if each is None else json.dumps(each.to_json()) for each in schemas]
    arrays = [
        records.column("offset"),
        pa.array([RecordKind(code).name.lower() for code in kinds.tolist()]).take(
            pa.array(kind_at)
        ),
        records.column("schema_id"),
        records.column("position"),
        records.column("ordinal"),
        records.column("xid"),
        timestamps(records.column("commit_ts")),
        records.column("payload"),
        tables,
        pa.array(described, pa.string()).take(pa.array(id_at)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def control_table(records: pa.RecordBatch, place: int) -> str | None:
    """Return the table that the control record at ``place`` is about; None for another record."""
    if records.column("kind")[place].as_py() != RecordKind.CONTROL:
        return None
    found: str | None = json.loads(records.column("payload")[place].as_py()).get("table")
    return found


def changes_batch(folded: KeyedChanges, schema: pa.Schema) -> pa.RecordBatch:
    """Return folded rows in the shape `changes`; the output reads truncates by itself."""
    arrays = [folded.op, folded.version, *folded.rows.columns, folded.missing]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def timestamps(microseconds: pa.Array) -> pa.Array:
    """Return int64 microseconds since 1970 UTC as instants, without a copy."""
    return microseconds.view(pa.timestamp("us", tz="UTC"))


def source_struct(
    records: pa.RecordBatch, decoded: Decoded, table: TableName, kind: pa.StructType
) -> pa.StructArray:
    """Return the origin of each record: the column ``source`` of the shapes typed and variant."""
    n = len(decoded)
    kinds = records.column("kind").to_numpy(zero_copy_only=True)
    dumped = (kinds == RecordKind.DUMP_ROW) | (kinds == RecordKind.ABSENT)
    origin = pa.array(["log", "dump"]).take(pa.array(dumped.astype(np.int8)))
    children = [
        _repeated(pa.scalar(str(table)), n),
        decoded.position,
        records.column("ordinal"),
        decoded.xid,
        timestamps(decoded.commit_ts),
        origin,
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def as_struct(array: pa.StructArray, kind: pa.StructType, valid: bool = False) -> pa.StructArray:
    """Return ``array`` with the fields of ``kind`` only, in their order, and its own validity."""
    children = [_child(array, field.name) for field in kind]
    validity = None if valid or not array.null_count else array.buffers()[0]
    return pa.Array.from_buffers(kind, len(array), [validity], children=children)


def _child(array: pa.StructArray, name: str) -> pa.Array:
    # A table's column names are unique, so there is one index.
    return array.field(array.type.get_field_index(name))


def _repeated(value: pa.Scalar, n: int) -> pa.Array:
    return pa.repeat(value, n)
