"""Converts records to the shape `events`: every change as a row, column by column, on executors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.decode import decode
from tidelog.codecs.key_changes import expand_key_changes, find_key_changes, ops_of
from tidelog.codecs.missing_columns import missing_indices
from tidelog.model.schema import TableSchema
from tidelog.spark.formats.shapes import EVENT_BEFORE, EVENT_SOURCE


def events_batch(
    records: pa.RecordBatch, written: TableSchema, target: TableSchema, schema: pa.Schema
) -> pa.RecordBatch:
    """Returns records of one schema version in the shape `tidelog.spark.formats.shapes.events` of
    ``target``.
    """
    decoded = decode(records, written, target=target)
    after, before = decoded.after, decoded.before
    assert after is not None
    assert before is not None
    moved = find_key_changes(decoded, target)
    op = decoded.op
    use_old = after.is_null()
    at = None
    if moved.any():  # such a record twice: its old key's delete, then its new key's creation
        at, first = expand_key_changes(moved)
        op = ops_of(op, moved, at, first)
        use_old = pc.or_(use_old.take(pa.array(at)), pa.array(first))
    places = None if at is None else pa.array(at)

    def spread(values: pa.Array) -> pa.Array:
        return values if places is None else values.take(places)

    after, before = spread(after), spread(before)
    columns = [
        pc.if_else(use_old, before.field(i), after.field(i)) if use_old.true_count else c
        for i, c in enumerate(after.flatten())
    ]
    source = pa.StructArray.from_arrays(
        [spread(records.column(f.name)).cast(f.type) for f in schema.field(EVENT_SOURCE).type],
        fields=list(schema.field(EVENT_SOURCE).type),
    )
    missing = decoded.missing
    if missing is not None and at is not None:
        missing = missing[at]
        missing[np.asarray(use_old.to_numpy(zero_copy_only=False))] = False
    old = before.cast(schema.field(EVENT_BEFORE).type)
    arrays = [
        op.cast(pa.string()),
        spread(decoded.version),
        *columns,
        missing_indices(missing, len(op)),
        old,
        source,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
