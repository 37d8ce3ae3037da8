"""A micro-batch of the shape ``segments`` as what outputs take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.ports import DumpCompleted, OutputBatch, TableRange
from tidelog.spark.datasource import segment_rows
from tidelog.spark.formats.shapes import SEGMENTS

if TYPE_CHECKING:
    from pyspark.sql import Row

DUMP_COMPLETED = "dump-completed"  # type of the control record


def output_batch(log: EventLog, rows: Sequence[Row | Mapping[str, Any]]) -> OutputBatch:
    """Rows of the shape ``segments`` as what outputs take."""
    totals: dict[TableName, list[Any]] = {}
    completed = []
    for row in rows:
        if row["table"] is None:
            done = _completed(row["control"], row["first"] + 1)
            completed += [] if done is None else [done]
            continue
        table = log.schemas.get(row["schema_ids"][0]).table
        total = totals.setdefault(table, [set(), 0, 0])
        total[0] |= set(row["schema_ids"])
        total[1] += row["rows"]
        total[2] += row["bytes"]
    return OutputBatch(
        generation=log.generation,
        start=min(row["first"] for row in rows),
        end=max(row["next"] for row in rows),
        tables=tuple(
            TableRange(table, frozenset(ids), count, size)
            for table, (ids, count, size) in sorted(totals.items())
        ),
        completed=tuple(completed),
    )


def _completed(control: str, finalized_until: int) -> DumpCompleted | None:
    record = json.loads(control)
    if record.get("type") != DUMP_COMPLETED:
        return None
    return DumpCompleted(
        record["dump_id"],
        record["table"],
        record["first_offset"],
        record["delete_absent"],
        finalized_until,
    )


def rest_of(log: EventLog, start: int, end: int) -> OutputBatch:
    """Offsets ``[start, end)`` as a batch, which may hold nothing that has a row of the shape."""
    found = segment_rows.rows(log, start, end, ())
    if not found:
        return OutputBatch(log.generation, start, end, ())
    return output_batch(log, [dict(zip(SEGMENTS.names, row, strict=True)) for row in found])
