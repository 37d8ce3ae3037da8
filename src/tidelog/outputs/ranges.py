"""What a batch holds for one output: its tables, and what is gone from the source."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.model.schema import TableName, TableSchema
from tidelog.pipeline import planning, segment_rows
from tidelog.pipeline.run import output_batch
from tidelog.pipeline.shapes import SEGMENTS
from tidelog.ports import OutputBatch


def batch_of(log: EventLog, start: int, end: int) -> OutputBatch:
    """Offsets ``[start, end)`` as a batch, whatever the stream's batches are."""
    rows = segment_rows.rows(log, start, end, ())
    found = [dict(zip(SEGMENTS.names, row, strict=True)) for row in rows]
    if not found:
        return OutputBatch(log.generation, start, end, ())
    whole = output_batch(log, found)
    return OutputBatch(log.generation, start, end, whole.tables, whole.completed)


def gone_below(log: EventLog, batch: OutputBatch) -> dict[str, int]:
    """By table, the version below which its rows are gone: truncates, complete dumps."""
    gone = truncated(log, batch.start, batch.end)
    for done in batch.completed:
        if done.delete_absent:
            gone[done.table] = max(done.first_offset, gone.get(done.table, 0))
    return gone


def truncated(log: EventLog, start: int, end: int) -> dict[str, int]:
    """The newest truncate of each table in the range, by table; reads the records' kinds only."""
    result: dict[str, int] = {}
    for ref in log.segments(start, end):
        for batch in log.batches(ref, ("offset", "kind", "schema_id")):
            kinds = batch.column("kind").to_numpy()
            for at in np.flatnonzero(kinds == Kind.TRUNCATE).tolist():
                table = str(log.schemas.get(batch.column("schema_id")[at].as_py()).table)
                result[table] = batch.column("offset")[at].as_py()
    return result


def schema_in(log: EventLog, table: TableName, start: int, end: int) -> TableSchema | None:
    """The version of the table's last record in the range."""
    return planning.schema_at(log, table, start, end)


def delivered_schema(schema: TableSchema, columns: Collection[str]) -> TableSchema:
    """What records are decoded to where ``columns`` alone are delivered, as they are: a column that
    an output has not followed may not be decodable any more.
    """
    return schema.only(columns) if _can_be_named(schema) else schema


def columns_option(shape: str, schema: TableSchema) -> dict[str, str]:
    """The source's option for no other columns than the schema's."""
    if shape != "changes" or not _can_be_named(schema):
        return {}
    return {"columns": ",".join(schema.column_names)}


def _can_be_named(schema: TableSchema) -> bool:
    return not any("," in name for name in schema.column_names)


def refs_of(log: EventLog, table: TableName, start: int, end: int) -> list[SegmentRef]:
    """Those segments of the range that hold records of the table."""
    name = str(table)
    holding = {
        segment.name for segment in log.chain().between(start, end) if name in segment.rows_by_table
    }
    return [ref for ref in log.segments(start, end, tables=(name,)) if ref.name in holding]
