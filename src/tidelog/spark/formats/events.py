"""Records → the shape `events`: every change as a row, column-wise, on executors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.decode import Decoded, decode
from tidelog.codecs.missing import missing_indices
from tidelog.model.records import Bools
from tidelog.model.schema import TableSchema
from tidelog.spark.formats.shapes import EVENT_BEFORE, EVENT_SOURCE


def events_batch(
    records: pa.RecordBatch, written: TableSchema, target: TableSchema, schema: pa.Schema
) -> pa.RecordBatch:
    """Records of one schema version in the shape `tidelog.spark.formats.shapes.events` of
    ``target``.
    """
    decoded = decode(records, written, target=target)
    after, before = decoded.after, decoded.before
    assert after is not None
    assert before is not None
    moved = _moved(decoded, target)
    n = len(decoded)
    op = decoded.op
    use_old = after.is_null()
    at = None
    if moved.any():  # such a record twice: its old key's delete, then its new key's creation
        at = np.repeat(np.arange(n), 1 + moved)
        first = np.zeros(len(at), np.bool_)
        first[np.flatnonzero(moved[at])[::2]] = True
        op = op.take(pa.array(at))
        op = pc.if_else(pa.array(first), "d", pc.if_else(pa.array(moved[at]), "c", op))
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


def _moved(decoded: Decoded, target: TableSchema) -> Bools:
    """bool[n]: updates whose key is not that of the old row."""
    before, after = decoded.before, decoded.after
    assert before is not None
    assert after is not None
    moved = np.zeros(len(decoded), np.bool_)
    both = pc.and_(before.is_valid(), after.is_valid())
    if not both.true_count:
        return moved
    for name in target.match_key:
        at = before.type.get_field_index(name)
        # A null old key is one that the record does not tell: unchanged.
        differs = pc.fill_null(pc.not_equal(before.field(at), after.field(at)), False)
        moved |= pc.and_(both, differs).to_numpy(zero_copy_only=False)
    return moved
