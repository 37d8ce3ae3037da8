"""Decodes records of the event log into an engine's events, column by column."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.decode import decode
from tidelog.codecs.key_changes import doubled, moved_keys, ops_of
from tidelog.codecs.missing_columns import missing_names
from tidelog.engine.event_batches import EventBatch, event_schema
from tidelog.model.records import Int64s
from tidelog.model.schema import TableSchema
from tidelog.ports import SourceId


def decoded_events(
    records: pa.RecordBatch,
    schema_of: Callable[[int], TableSchema],
    origin: SourceId,
    steps: Callable[[EventBatch], EventBatch] = lambda batch: batch,
) -> list[EventBatch]:
    """Row changes of any tables as runs of one schema version, in the log's order.

    Each version's records are decoded together, however the tables alternate, and go through
    ``steps``, which keep their number.

    Raises:
        DecodeError: names table, column and version.
    """
    ids = records.column("schema_id").to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    found: dict[int, tuple[EventBatch, Int64s]] = {}
    for number in np.unique(ids).tolist():
        mask = ids == number
        own = records if mask.all() else records.filter(pa.array(mask))
        batch, places = _events(own, schema_of(number), origin)
        found[number] = steps(batch), places
    taken = dict.fromkeys(found, 0)
    runs = []
    for low, high in pairwise(cuts):
        number = int(ids[low])
        batch, places = found[number]
        start = taken[number]
        stop = taken[number] = start + high - low
        runs.append(batch.slice(int(places[start]), int(places[stop])))
    return runs


def _events(
    records: pa.RecordBatch, schema: TableSchema, origin: SourceId
) -> tuple[EventBatch, Int64s]:
    """The decoded events, and int64[n + 1]: where the events of each record begin."""
    decoded = decode(records, schema)
    before, after = decoded.before, decoded.after
    assert before is not None
    assert after is not None
    moved = moved_keys(decoded, schema)
    op = decoded.op
    missing = missing_names(decoded.missing, schema.column_names, len(decoded))
    columns = [records.column(name) for name in ("kind", "schema_id", "position", "ordinal", "xid")]
    columns.append(decoded.commit_ts.view(pa.timestamp("us", "UTC")))
    version = decoded.version
    if moved.any():
        at, first = doubled(moved)
        op = ops_of(op, moved, at, first)
        places = pa.array(at)
        deleted, created = pa.array(first), pa.array(moved[at] & ~first)
        before = _without(before.take(places), created)
        after = _without(after.take(places), deleted)
        missing = _without(missing.take(places), deleted)
        version, *columns = (column.take(places) for column in (version, *columns))
    arrays = [op, version, before, after, missing, *columns]
    data = pa.RecordBatch.from_arrays(arrays, schema=event_schema(before.type))
    return EventBatch(schema, origin, data), np.concatenate([[0], np.cumsum(1 + moved)])


def _without(values: pa.Array, null: pa.BooleanArray) -> pa.Array:
    return pc.if_else(null, pa.scalar(None, values.type), values)
