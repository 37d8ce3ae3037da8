"""What a batch holds for one output: its tables, and what is gone from the source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise

import numpy as np

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import DumpCompleted, OutputBatch
from tidelog.spark.changes.batches import batch_of
from tidelog.spark.datasource import partitions


def of_one_schema(
    log: EventLog, batch: OutputBatch, wanted: Callable[[TableName], bool]
) -> list[OutputBatch]:
    """The batch in as few parts, in order, as leave each table that is ``wanted`` one schema
    version in each. What comes before a cut does not depend on where the batch ends.
    """
    bounds = [batch.start]
    current: dict[TableName, int] = {}
    for offset, table, schema_id in _schemas_in_order(log, batch, wanted, current):
        if current.get(table, schema_id) != schema_id:
            bounds.append(offset)
            current.clear()
        current[table] = schema_id
    if len(bounds) == 1:
        return [batch]
    return [batch_of(log, start, end) for start, end in pairwise([*bounds, batch.end])]


def _schemas_in_order(
    log: EventLog,
    batch: OutputBatch,
    wanted: Callable[[TableName], bool],
    current: Mapping[TableName, int],
) -> Iterator[tuple[int, TableName, int]]:
    """(offset, table, schema id) wherever a table's may differ from ``current``. Reads records
    around such places alone.
    """
    for segment in log.chain(batch.end).between(batch.start, batch.end):
        tables = {n: log.schemas.get(n).table for n in segment.rows_by_schema if n}
        tables = {n: table for n, table in tables.items() if wanted(table)}
        first, following = max(batch.start, segment.first), min(batch.end, segment.next)
        whole = (first, following) == (segment.first, segment.next)
        single = len(set(tables.values())) == len(tables)
        if whole and single and all(current.get(t, n) == n for n, t in tables.items()):
            yield from ((first, table, number) for number, table in tables.items())
            continue
        for ref in log.segments(first, following) if tables else ():
            for records in log.batches(ref, ("offset", "schema_id"), schema_ids=tables):
                numbers = records.column("schema_id").to_numpy()
                for at in np.flatnonzero(np.diff(numbers, prepend=-1)).tolist():
                    number = int(numbers[at])
                    yield records.column("offset")[at].as_py(), tables[number], number


def deleted_below(log: EventLog, batch: OutputBatch) -> dict[str, int]:
    """By table, the version below which its rows are gone: truncates, complete dumps."""
    gone = truncated(log, batch.start, batch.end)
    for table, done in whole_dumps(batch).items():
        gone[table] = max(done.first_offset, gone.get(table, 0))
    return gone


def whole_dumps(batch: OutputBatch) -> dict[str, DumpCompleted]:
    """By table, of the complete dumps of all its rows the one that began last."""
    whole = [done for done in batch.completed if done.delete_absent]
    return {done.table: done for done in sorted(whole, key=lambda each: each.first_offset)}


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
    return partitions.schema_at(log, table, start, end)


def schema_before(log: EventLog, table: TableName, end: int) -> TableSchema | None:
    """The version that the table was last told under before ``end``; if the log has no record of
    that any more, the newest.
    """
    return schema_in(log, table, log.chain(end).head, end) or partitions.schema_now(log, table)


def delivered_schema(schema: TableSchema, columns: Collection[str]) -> TableSchema:
    """What records are decoded to where ``columns`` alone are delivered, as they are: a column that
    an output has not followed may not be decodable any more.
    """
    return schema.only(columns) if _can_be_named(schema) else schema


def _can_be_named(schema: TableSchema) -> bool:
    return not any("," in name for name in schema.column_names)


def refs_of(log: EventLog, table: TableName, start: int, end: int) -> list[SegmentRef]:
    """The segments of the range that hold records of the table."""
    name = str(table)
    holding = {
        segment.name
        for segment in log.chain(end).between(start, end)
        if name in segment.rows_by_table
    }
    return [ref for ref in log.segments(start, end, tables=(name,)) if ref.name in holding]
