"""Change events as the records of files: typed columns, or lines of JSON; column-wise."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.instant_texts import date_texts, timestamp_texts
from tidelog.outputs.formatters.messages import EventColumns
from tidelog.ports import TargetTable
from tidelog.spark.formats.envelope import joined, json_rows
from tidelog.spark.formats.shapes import CHANGE_MISSING

_TS = pa.timestamp("us", "UTC")


def records(table: TargetTable, events: pa.RecordBatch, *, typed: bool, named: bool) -> pa.Table:
    """One record for each event, in order.

    Columns, as in the source's shape ``typed``: ``op``, ``version``, ``ts`` (of the commit; of a
    dump's row: when it was read), ``schema_version``, ``position``, ``xid``, ``key``, ``before``,
    ``after``, ``missing`` (names of columns of ``after`` that the log does not tell).

    Args:
        table: whose they are.
        events: of the shape `tidelog.spark.formats.shapes.events`, missing columns by name.
        typed: ``key``, ``before`` and ``after`` are structs of the table's columns; else JSON text.
        named: with a column ``table`` before the others.
    """
    found = EventColumns(table, events)
    before = _before(found)
    gone = pc.or_(found.deleted, found.truncate)
    columns: dict[str, pa.Array] = {}
    if named:
        columns["table"] = pa.repeat(pa.scalar(table.name), found.n)
    columns |= {
        "op": found.op.cast(pa.string()),
        "version": found.version,
        "ts": found.commit_ts.cast(_TS),
        "schema_version": found.source.column("schema_id"),
        "position": found.source.column("position"),
        "xid": found.source.column("xid"),
    }
    if typed:
        if table.key:
            columns["key"] = _only(found.row, table.key)
        columns["before"] = before
        columns["after"] = _only(found.row, found.names, nulls=gone)
    else:
        columns["key"] = found.key
        columns["before"] = _texts(before, found.names)
        columns["after"] = _texts(_only(found.row, found.names, nulls=gone), found.names)
    columns["missing"] = events.column(CHANGE_MISSING).cast(pa.list_(pa.string()))
    return pa.table(columns)


def json_lines(rows: pa.Table) -> pa.Buffer:
    """`records` with JSON texts, as JSON lines; ``key``, ``before`` and ``after`` are objects."""
    batch = rows.combine_chunks().to_batches()[0]
    pieces: list[str | pa.Array] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(("," if pieces else "{") + json.dumps(name) + ":")
        if name in ("key", "before", "after"):
            pieces.append(column)
        elif name == "missing":
            pieces.append(_lists(column))
        elif name == "ts":
            pieces += ['"', timestamp_texts(column), 'Z"']
        elif pa.types.is_string(column.type):
            plain = pa.array([json.dumps(v) for v in column.unique().to_pylist()], pa.string())
            pieces.append(plain.take(column.dictionary_encode().indices))
        else:
            pieces.append(column.cast(pa.string()))
    lines = joined(*pieces, "}\n")
    return lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py())


def _before(found: EventColumns) -> pa.StructArray:
    """The old row, of the delivered columns: what the log has of it; of a delete at least the key.
    After transforms: of deletes alone.
    """
    if found.before is None:
        return _only(found.row, found.names, nulls=pc.invert(found.deleted))
    kind = found.before.type
    names = [name for name in found.names if kind.get_field_index(name) >= 0]
    # If a created row took another row's key, the delete before has the old row.
    nulls = pc.or_(found.before.is_null(), pc.equal(found.op, "c"))
    return _only(found.before, names, nulls=nulls)


def _only(
    rows: pa.StructArray, names: Sequence[str], nulls: pa.Array | None = None
) -> pa.StructArray:
    """The members ``names`` of a struct; null where it is null, and where ``nulls``."""
    at = [rows.type.get_field_index(name) for name in names]
    nulls = rows.is_null() if nulls is None else pc.or_(nulls, rows.is_null())
    fields = [pa.field(name, rows.type.field(i).type) for name, i in zip(names, at, strict=True)]
    return pa.StructArray.from_arrays([rows.field(i) for i in at], fields=fields, mask=nulls)


def _texts(rows: pa.StructArray, names: Sequence[str]) -> pa.StringArray:
    """As JSON objects, dates and times in ISO 8601."""
    kept = [name for name in names if rows.type.get_field_index(name) >= 0]
    arrays = [_spelled(rows.field(rows.type.get_field_index(name))) for name in kept]
    fields = [pa.field(name, array.type) for name, array in zip(kept, arrays, strict=True)]
    plain = pa.StructArray.from_arrays(arrays, fields=fields, mask=rows.is_null())
    return json_rows(plain, kept)


def _spelled(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_date32(kind):
        return date_texts(values)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return timestamp_texts(values.cast(pa.timestamp("us")))
    return values


def _lists(names: pa.Array) -> pa.Array:
    """list<string> as JSON; few differ."""
    if names.null_count == len(names):
        return pa.nulls(len(names), pa.string())
    texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in names.to_pylist()]
    return pa.array(texts, pa.string())
