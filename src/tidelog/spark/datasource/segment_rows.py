"""Describes a range of the log by metadata, without records: as ``segments`` rows, as a batch.

Outputs use the shape ``segments``: a micro-batch is some rows of it, and each output then reads the
range table by table, on executors (docs/adr/0005).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName
from tidelog.ports import DumpCompleted, OutputBatch, TableRange

MESSAGES_CONTROL = '{"type":"messages"}'
"""Control text of the rows that stand for logical messages, which outputs may need."""


def rows_of_segments(
    log: EventLog, start: int, end: int, tables: Sequence[str | TableName]
) -> list[tuple[Any, ...]]:
    """Return one row per segment and table in ``[start, end)``, in order, one per control record,
    and one per segment with logical messages: (first, next, table, schema ids, rows, bytes,
    control). ``bytes`` is an estimate.
    """
    result: list[tuple[Any, ...]] = []
    for segment in log.chain(end).between(start, end):
        first, following = max(start, segment.first), min(end, segment.next)
        counts: Mapping[int, int] = segment.rows_by_schema
        if (first, following) != (segment.first, segment.next):
            # A rolled-up segment has many tables; the new part of it may have one.
            counts = _count_records(log, first, following)
        by_table: dict[str, list[int]] = {}
        for schema_id in sorted(counts):
            if schema_id:
                schema = log.schemas.get(schema_id)
                if not tables or matches(tables, schema.table):
                    by_table.setdefault(str(schema.table), []).append(schema_id)
        for table, schema_ids in by_table.items():
            count = sum(counts[schema_id] for schema_id in schema_ids)
            size = segment.payload_bytes * count // max(1, segment.rows)
            result.append((first, following, table, schema_ids, count, size, None))
        if 0 in counts:
            result += _rows_without_table(log, first, following)
    return result


def _count_records(log: EventLog, first: int, following: int) -> dict[int, int]:
    """Return the number of records of a part of a segment by schema id."""
    found: Counter[int] = Counter()
    for ref in log.segments(first, following):
        for batch in log.batches(ref, ("offset", "schema_id")):
            ids, counts = np.unique(batch.column("schema_id").to_numpy(), return_counts=True)
            found.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    return found


def _rows_without_table(log: EventLog, first: int, following: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for ref in log.segments(first, following, tables=()):
        messages, end = [], 0
        for batch in log.batches(ref, ("offset", "kind", "payload"), schema_ids=(0,)):
            for record in batch.filter(pc.field("kind") == int(RecordKind.CONTROL)).to_pylist():
                text = record["payload"].decode()
                offset = record["offset"]
                found.append((offset, offset + len(text.encode()), None, [0], 1, 0, text))
            of_application = batch.filter(pc.field("kind") == int(RecordKind.MESSAGE))
            if of_application.num_rows:
                messages += of_application.column("offset").to_pylist()
                end = messages[-1] + len(of_application.column("payload")[-1].as_py())
        if messages:
            found.append((messages[0], end, None, [0], len(messages), 0, MESSAGES_CONTROL))
    return sorted(found, key=itemgetter(0))


def batches(found: Sequence[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `rows_of_segments` as Arrow batches."""
    if found:
        columns = zip(*found, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


# The range as the batch that outputs write.

# Types of control records.
DUMP_STARTED = "dump-started"
DUMP_COMPLETED = "dump-completed"


def batch_of(log: EventLog, start: int, end: int) -> OutputBatch:
    """Return offsets ``[start, end)`` of ``log`` as a batch, by metadata alone."""
    schema_ids: dict[TableName, set[int]] = {}
    totals: dict[TableName, list[int]] = {}
    completed, started = [], []
    for first, _, table, ids, rows, size, control in rows_of_segments(log, start, end, ()):
        if table is None:
            record = json.loads(control)
            if record.get("type") == DUMP_COMPLETED:
                completed.append(_completed(record, first + 1))
            elif record.get("type") == DUMP_STARTED and record.get("whole", True):
                started.append(record["table"])
            continue
        name = log.schemas.get(ids[0]).table
        schema_ids.setdefault(name, set()).update(ids)
        total = totals.setdefault(name, [0, 0])
        total[0] += rows
        total[1] += size
    tables = tuple(
        TableRange(table, frozenset(schema_ids[table]), rows, size)
        for table, (rows, size) in sorted(totals.items())
    )
    return OutputBatch(log.generation, start, end, tables, tuple(completed), started=tuple(started))


def _completed(record: Mapping[str, Any], finalized_until: int) -> DumpCompleted:
    return DumpCompleted(
        record["dump_id"],
        record["table"],
        record["first_offset"],
        record["delete_absent"],
        finalized_until,
        record.get("rows_ordinal"),
    )
