"""Reads the source's logical messages, which belong to no table, for outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import TargetTable

MESSAGES: Final = TableName("", "message")
"""The table name of logical messages, which no source can have: namespaces have names."""


def refs_of(log: EventLog, start: int, end: int) -> tuple[SegmentRef, ...]:
    """Returns the segments of offsets ``[start, end)`` that have logical messages."""
    holding = {s.name for s in log.chain(end).between(start, end) if 0 in s.rows_by_schema}
    return tuple(
        ref
        for ref in log.segments(start, end)
        if ref.name in holding and any(True for _ in records(log, [ref], ("kind", "schema_id")))
    )


def target(log: EventLog) -> TargetTable:
    """Returns the `TargetTable` that stands for logical messages. A message's key is its prefix."""
    schema = TableSchema(MESSAGES, 0, (), (), (), "n", "none")
    return TargetTable(MESSAGES, "logical messages", schema, pa.schema([]), ("prefix",), log.source)


def records(
    log: EventLog, refs: Sequence[SegmentRef], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields those records of ``refs`` that are messages, in order, as the log has them."""
    for ref in refs:
        for batch in log.batches(ref, columns, schema_ids=(0,)):
            found = batch.filter(pc.field("kind") == int(Kind.MESSAGE))
            if found.num_rows:
                yield found
