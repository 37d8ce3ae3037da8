"""Reads the contents of a batch for one output: tables, schema versions, removed rows, messages.

The source's logical messages belong to no table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import DumpCompleted, OutputBatch, TargetTable
from tidelog.spark.datasource import partitions
from tidelog.spark.datasource.segment_rows import batch_of


def tables_of(batch: OutputBatch, further: Sequence[str]) -> dict[str, TableName]:
    """Return the tables with records in the batch, and ``further`` ones, sorted by name."""
    names = {str(each.table): each.table for each in batch.tables}
    names |= {name: TableName.parse(name) for name in further if name not in names}
    return dict(sorted(names.items()))


def split_by_schema(
    log: EventLog, batch: OutputBatch, wanted: Callable[[TableName], bool]
) -> list[OutputBatch]:
    """Split the batch into as few parts as possible, in order, so that each table that is
    ``wanted`` has one schema version in each part. The parts before a split do not depend on where
    the batch ends.
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


def split_by_key(log: EventLog, batch: OutputBatch) -> list[OutputBatch]:
    """Split the batch so that no part has records of a table from both before and after it got a
    key, or lost it.
    """
    parted = keyed_in_part(log, batch)
    return split_by_schema(log, batch, parted.__contains__) if parted else [batch]


def keyed_in_part(log: EventLog, batch: OutputBatch) -> set[TableName]:
    """Return the tables with records in the batch of schemas both with and without a key."""
    return {
        each.table
        for each in batch.tables
        if len({bool(log.schemas.get(number).match_key) for number in each.schema_ids}) > 1
    }


def _schemas_in_order(
    log: EventLog,
    batch: OutputBatch,
    wanted: Callable[[TableName], bool],
    current: Mapping[TableName, int],
) -> Iterator[tuple[int, TableName, int]]:
    """Yield (offset, table, schema id) wherever a table's schema may differ from ``current``.
    Reads records only around such offsets.
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
    """Return, by table, the version below which its rows are deleted: by truncates and complete
    dumps.
    """
    versions = truncated(log, batch.start, batch.end)
    for table, done in whole_dumps(batch).items():
        versions[table] = max(done.first_offset, versions.get(table, 0))
    return versions


def whole_dumps(batch: OutputBatch) -> dict[str, DumpCompleted]:
    """Return, by table, the complete dump of all its rows that began last."""
    whole = [done for done in batch.completed if done.delete_absent]
    return {done.table: done for done in sorted(whole, key=lambda each: each.first_offset)}


def truncated(log: EventLog, start: int, end: int) -> dict[str, int]:
    """Return, by table, the offset of its newest truncate in the range; reads only the records'
    kinds.
    """
    result: dict[str, int] = {}
    for ref in log.segments(start, end):
        for batch in log.batches(ref, ("offset", "kind", "schema_id")):
            kinds = batch.column("kind").to_numpy()
            for at in np.flatnonzero(kinds == RecordKind.TRUNCATE).tolist():
                table = str(log.schemas.get(batch.column("schema_id")[at].as_py()).table)
                result[table] = batch.column("offset")[at].as_py()
    return result


def removals_of(
    log: EventLog, table: TableName, start: int, end: int, dumps: Sequence[DumpCompleted]
) -> list[tuple[int, int, int]]:
    """Return what removed rows of the table in ``[start, end)`` without a change of each: its
    truncates, and those of its complete ``dumps`` whose record is in the range. Each is the version
    of its record, the version below which it removed rows, and the record's time (microseconds
    since 1970 UTC).
    """
    found = []
    for ref in log.segments(start, end, tables=(str(table),)):
        for batch in log.batches(ref, ("offset", "kind", "schema_id", "commit_ts")):
            kinds = batch.column("kind").to_numpy()
            for at in np.flatnonzero(kinds == RecordKind.TRUNCATE).tolist():
                if log.schemas.get(batch.column("schema_id")[at].as_py()).table == table:
                    offset, time = (batch.column(n)[at].as_py() for n in ("offset", "commit_ts"))
                    found.append((offset, offset, time))
    for done in dumps:
        at = done.finalized_until - 1
        for ref in log.segments(at, done.finalized_until) if start <= at < end else ():
            for batch in log.batches(ref, ("commit_ts",)):
                found += [(at, done.first_offset, time) for time in batch.column(0).to_pylist()]
    return found


def schema_in(log: EventLog, table: TableName, start: int, end: int) -> TableSchema | None:
    """Return the schema version of the table's last record in the range."""
    return partitions.schema_at(log, table, start, end)


def schema_before(log: EventLog, table: TableName, end: int) -> TableSchema | None:
    """Return the schema version of the table's last record before ``end``, or the newest version
    if the log has no such record any more.
    """
    return schema_in(log, table, log.chain(end).head, end) or partitions.schema_now(log, table)


def delivered_schema(schema: TableSchema, columns: Collection[str]) -> TableSchema:
    """Return the schema to decode records with where only ``columns`` are delivered, unchanged: a
    column that an output has not followed may not be decodable any more.
    """
    return schema.only(columns) if _can_be_named(schema) else schema


def _can_be_named(schema: TableSchema) -> bool:
    return not any("," in name for name in schema.column_names)


def refs_of(log: EventLog, table: TableName, start: int, end: int) -> list[SegmentRef]:
    """Return the segments of the range that have records of the table."""
    name = str(table)
    holding = {
        segment.name
        for segment in log.chain(end).between(start, end)
        if name in segment.rows_by_table
    }
    return [ref for ref in log.segments(start, end, tables=(name,)) if ref.name in holding]


# Logical messages.

MESSAGES_TABLE: Final = TableName("", "message")
"""The table name of logical messages, which no source can have: namespaces have names."""


def segments_with_messages(log: EventLog, start: int, end: int) -> tuple[SegmentRef, ...]:
    """Return the segments of offsets ``[start, end)`` that have logical messages."""
    holding = {s.name for s in log.chain(end).between(start, end) if 0 in s.rows_by_schema}
    return tuple(
        ref
        for ref in log.segments(start, end)
        if ref.name in holding
        and any(True for _ in message_records(log, [ref], ("kind", "schema_id")))
    )


def message_target(log: EventLog) -> TargetTable:
    """Return the `TargetTable` that stands for logical messages. A message's key is its prefix."""
    schema = TableSchema(MESSAGES_TABLE, 0, (), (), (), "n", "none")
    return TargetTable(
        MESSAGES_TABLE, "logical messages", schema, pa.schema([]), ("prefix",), log.source
    )


def message_records(
    log: EventLog, refs: Sequence[SegmentRef], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield those records of ``refs`` that are messages, in order, as the log has them."""
    for ref in refs:
        for batch in log.batches(ref, columns, schema_ids=(0,)):
            found = batch.filter(pc.field("kind") == int(RecordKind.MESSAGE))
            if found.num_rows:
                yield found
