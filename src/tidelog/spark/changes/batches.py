"""Describes a range of the event log as the batch that outputs write."""

from __future__ import annotations

import json

from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.ports import DumpCompleted, OutputBatch, TableRange
from tidelog.spark.datasource import segment_rows

DUMP_COMPLETED = "dump-completed"  # type of the control record


def batch_of(log: EventLog, start: int, end: int) -> OutputBatch:
    """Returns offsets ``[start, end)`` of ``log`` as a batch, from metadata, without
    reading rows.
    """
    schema_ids: dict[TableName, set[int]] = {}
    totals: dict[TableName, list[int]] = {}
    completed = []
    for first, _, table, ids, rows, size, control in segment_rows.rows(log, start, end, ()):
        if table is None:
            found = _completed(control, first + 1)
            completed += [] if found is None else [found]
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
    return OutputBatch(log.generation, start, end, tables, tuple(completed))


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
        record.get("rows_ordinal"),
    )
