"""Plans reads: which offsets a batch has, and how its segments are split into partitions. Without
Spark.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tidelog.codecs.wire_formats import native_logicals
from tidelog.errors import ConfigError, EventLogError, ForeignSegmentError, OffsetGoneError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema

if TYPE_CHECKING:
    from tidelog.spark.datasource.options import SourceOptions

IntArray = npt.NDArray[np.int64]


def schemas_of(log: EventLog, patterns: Sequence[str | TableName]) -> dict[int, TableSchema] | None:
    """Return all schema versions of the tables that match, by id; None: no restriction."""
    if not patterns:
        return None
    return {
        schema.schema_id: schema
        for table, versions in log.schemas.by_table().items()
        if matches(patterns, table)
        for schema in versions
    }


def table_versions(log: EventLog, table: TableName) -> list[TableSchema]:
    """Return all versions of the table's schema, oldest first. Raises ConfigError if there are
    none.
    """
    if found := log.schemas.versions(table):
        return found
    known = ", ".join(str(name) for name in log.schemas.tables()) or "none yet"
    raise ConfigError(f"{log.storage!r} has no records of table {table}. Tables it knows: {known}.")


def table_schema(log: EventLog, table: TableName, version: int | None) -> TableSchema:
    """Return the table's schema at ``version`` (a schema id), by default that of `schema_now`."""
    versions = table_versions(log, table)
    if version is None:
        return _in_use(log, versions)
    for schema in versions:
        if schema.schema_id == version:
            return schema
    numbers = ", ".join(str(schema.schema_id) for schema in versions)
    raise ConfigError(f"table {table} has no schema version {version}; it has: {numbers}")


def with_types(schema: TableSchema, options: SourceOptions) -> TableSchema:
    """Return the schema with the types that the option ``types`` gives its columns."""
    if options.logicals is not None:
        return schema.with_logicals(options.logicals)
    return schema.with_logicals(native_logicals(schema, options.types))


def check_columns(schema: TableSchema, columns: Sequence[str]) -> None:
    """Raise ConfigError if the table does not have one of the columns."""
    for name in columns:
        if name not in schema.column_names:
            raise ConfigError(
                f"tidelog source: option 'columns': {schema.table} has no column {name!r}; it has: "
                f"{', '.join(schema.column_names)}"
            )


def changes_schema(log: EventLog, options: SourceOptions) -> TableSchema:
    """Return the schema that the shape `changes` is decoded to: with the option ``columns`` only
    those, so that columns that an output leaves out need not be decodable.
    """
    assert options.table is not None  # checked by SourceOptions
    found = table_schema(log, options.table, options.schema_version)
    found = with_types(found, options)
    return found if options.columns is None else found.only(options.columns)


def schema_at(log: EventLog, table: TableName, start: int, end: int) -> TableSchema | None:
    """Return the schema version of the table's last record in ``[start, end)``. Not always the
    greatest number: a schema that is used again keeps its old number (`SchemaStore.register`).
    """
    for segment in reversed(log.chain(end).between(start, end)):
        own = [n for n in segment.rows_by_schema if n and log.schemas.get(n).table == table]
        low, high = max(start, segment.first), min(end, segment.next)
        if len(own) == 1 and (low, high) == (segment.first, segment.next):
            return log.schemas.get(own[0])
        if own and (last := _last(log, "schema_id", own, low, high)) is not None:
            return log.schemas.get(last)
    return None


def _last(
    log: EventLog, column: str, schema_ids: Collection[int], start: int, end: int
) -> int | None:
    """Return the column's value in the last record in ``[start, end)`` of these versions."""
    last: int | None = None
    for ref in log.segments(start, end):
        for batch in log.batches(ref, (column,), schema_ids=schema_ids):
            if batch.num_rows:
                last = batch.column(column)[-1].as_py()
    return last


def schema_now(log: EventLog, table: TableName) -> TableSchema | None:
    """Return the schema version of the table's last record, else the greatest."""
    versions = log.schemas.versions(table)
    return _in_use(log, versions) if versions else None


def _in_use(log: EventLog, versions: Sequence[TableSchema]) -> TableSchema:
    newest = versions[-1]
    if len(versions) == 1:
        return newest
    chain = log.chain()
    return schema_at(log, newest.table, chain.head, chain.next) or newest


def schemas_now(log: EventLog) -> dict[TableName, TableSchema]:
    """Return `schema_now` of all tables, sorted, by one walk through the log."""
    versions = log.schemas.by_table()
    found = {table: schemas[-1] for table, schemas in versions.items()}
    open_tables = {table for table, schemas in versions.items() if len(schemas) > 1}
    chain = log.chain()
    for segment in reversed(chain.between(chain.head, chain.next)):
        if not open_tables:
            break
        tables = {log.schemas.get(number).table for number in segment.rows_by_schema if number}
        for table in tables & open_tables:
            last = schema_at(log, table, segment.first, segment.next)
            if last is not None:
                found[table] = last
                open_tables.discard(table)
    return found


def check_generation(log: EventLog, generation: str) -> None:
    """Raise ForeignSegmentError for another generation, where offsets have no meaning."""
    if log.generation != generation:
        raise ForeignSegmentError(
            f"{log.storage!r} was recreated: this query's checkpoint is of generation "
            f"{generation}, the log is of generation {log.generation}. Start with a new "
            "checkpoint, and dump the tables again."
        )


def check_start(log: EventLog, start: int, who: str) -> None:
    """Raise OffsetGoneError if retention removed ``start``, OffsetAheadError if the log ends
    before ``start``.
    """
    head = log.chain(start).head
    if start < head:
        raise OffsetGoneError(
            f"{log.storage!r}: {who} stands at offset {start}, but retention removed "
            f"everything before {head}. Start with a new checkpoint, and dump the tables again "
            "(tidelog dump). To prevent it, let the pipeline register as a consumer, or raise "
            "log.retention."
        )
    log.check_offsets(start, who=who)


RECORD_BYTES: Final = 64
"""What a record counts besides its payload where the memory of a task is limited."""


def end_of_batch(
    log: EventLog,
    start: int,
    end: int,
    *,
    max_bytes: int | None,
    max_records: int | None,
    tables: Sequence[str | TableName] = (),
    whole: bool = False,
    record_bytes: int = 0,
) -> int:
    """Return the end of a micro-batch of ``[start, end)``: within the limits, but at least one
    record.

    Args:
        log: the event log.
        start: start of the batch.
        end: its greatest possible end.
        max_bytes: limit of the records' payload bytes.
        max_records: limit of the number of records.
        tables: patterns; records of other tables do not count.
        whole: whether to take whole segments, at least one.
        record_bytes: with ``whole``, what a record counts besides its payload.
    """
    schemas = schemas_of(log, tables)
    wanted = None if schemas is None else schemas.keys()
    room = _Room(max_bytes, max_records)
    at = start
    for segment in log.chain(end).between(start, end):
        following = min(segment.next, end)
        counts = wanted is None or not wanted.isdisjoint(segment.rows_by_schema)
        complete = whole or (segment.first, segment.next) == (at, following)
        size = segment.payload_bytes + record_bytes * segment.rows
        if counts and not (complete and room.take_if_free(segment.rows, size)):
            if not whole:
                cut = _cut(log, at, following, wanted, room)
                if cut is not None:
                    return cut
            elif room.empty:
                room.take(segment.rows, size)
            else:
                return at
        at = following
    return at


def whole_segments(
    log: EventLog, start: int, end: int, max_bytes: int, tables: Sequence[str | TableName] = ()
) -> int:
    """Return `end_of_batch` of whole segments whose bytes are counted as those of a task, so that
    one task can take a batch of one table.
    """
    return end_of_batch(
        log,
        start,
        end,
        max_bytes=max_bytes,
        max_records=None,
        tables=tables,
        whole=True,
        record_bytes=RECORD_BYTES,
    )


class _Room:
    """The remaining limits of a micro-batch."""

    def __init__(self, max_bytes: int | None, max_records: int | None) -> None:
        self._bytes = math.inf if max_bytes is None else max_bytes
        self._records = math.inf if max_records is None else max_records
        self.empty = True

    def take_if_free(self, records: int, size: int) -> bool:
        """Take the records if there is room for all. Returns whether they were taken."""
        if size > self._bytes or records > self._records:
            return False
        self.take(records, size)
        return True

    def take(self, records: int, size: int) -> None:
        self._bytes -= size
        self._records -= records
        self.empty &= not records

    def count(self, sizes: IntArray) -> int:
        """Return how many records of these sizes there is room for; one if the batch is empty."""
        fits = int(np.searchsorted(np.cumsum(sizes), self._bytes, side="right"))
        return int(max(min(fits, self._records, len(sizes)), self.empty and len(sizes) > 0))


def _cut(
    log: EventLog, start: int, end: int, wanted: Collection[int] | None, room: _Room
) -> int | None:
    """Return the offset of the first record in ``[start, end)`` without room; None: all
    have room.
    """
    for ref in log.segments(start, end):
        for batch in log.batches(ref, ("offset", "payload"), schema_ids=wanted):
            sizes = pc.binary_length(batch.column("payload")).to_numpy().astype(np.int64)
            count = room.count(sizes)
            if count < len(sizes):
                return int(batch.column("offset")[count].as_py())
            room.take(count, int(sizes.sum()))
    return None


def end_of_version(log: EventLog, schema: TableSchema) -> int:
    """Return the offset after the last record that was written under this version; the log's end
    if there is none.
    """
    chain = log.chain()
    for segment in reversed(chain.between(chain.head, chain.next)):
        if schema.schema_id in segment.rows_by_schema:
            last = _last(log, "offset", [schema.schema_id], segment.first, segment.next)
            if last is not None:
                return last + 1
    return chain.next


def new_schema_at(
    log: EventLog, schema: TableSchema, start: int, end: int
) -> tuple[int, TableSchema] | None:
    """Return the offset of the first record in ``[start, end)`` of another version of the table,
    and that version. Its number may be smaller: see `schema_at`.
    """
    versions = {other.schema_id: other for other in log.schemas.versions(schema.table)}
    del versions[schema.schema_id]
    for segment in log.chain(end).between(start, end) if versions else ():
        if not (own := versions.keys() & segment.rows_by_schema.keys()):
            continue
        for ref in log.segments(max(start, segment.first), min(end, segment.next)):
            for batch in log.batches(ref, ("offset", "schema_id"), schema_ids=own):
                if batch.num_rows:
                    offset, schema_id = (column[0].as_py() for column in batch.columns)
                    return offset, versions[schema_id]
    return None


def stop_at_new_schema(log: EventLog, schema: TableSchema, start: int, end: int) -> None:
    """Raise EventLogError if the table's schema changes: a stream of its columns has one."""
    found = new_schema_at(log, schema, start, end)
    if found is None:
        return
    at, newer = found
    written = log.schemas.get(schema.schema_id)  # without the option `types`
    old = {column.name: column.logical for column in written.columns}
    new = {column.name: column.logical for column in newer.columns}
    changed = [f"added {name}" for name in new if name not in old]
    changed += [f"dropped {name}" for name in old if name not in new]
    changed += [
        f"{name} is {new[name]}, was {old[name]}"
        for name in new
        if name in old and new[name] != old[name]
    ]
    what = "; ".join(changed) or "keys or source types changed"
    raise EventLogError(
        f"table {schema.table} has a new schema version {newer.schema_id} (this stream reads "
        f"version {schema.schema_id}) at offset {at}: {what}. A stream of a table's columns has "
        "one schema; restart the query to continue with the new one."
    )


def partition_refs(
    refs: Sequence[SegmentRef], *, partition_bytes: int, partitions: int | None
) -> list[list[SegmentRef]]:
    """Split ``refs`` into partitions: neighbours of about equal payload bytes.

    Args:
        refs: segments, in log order.
        partition_bytes: bytes of a partition, which limit the number of partitions.
        partitions: the most partitions.
    """
    sizes = [_bytes(ref) for ref in refs]
    total = sum(sizes)
    count = max(1, min(len(refs), -(-total // max(1, partition_bytes))))
    if partitions is not None:
        count = min(count, partitions)
    result: list[list[SegmentRef]] = [[] for _ in range(count)]
    before = 0
    for ref, size in zip(refs, sizes, strict=True):
        # By the position of its middle, so that no run gets a big neighbour on top of its share.
        result[min(count - 1, (before + size // 2) * count // max(1, total))].append(ref)
        before += size
    return [run for run in result if run]


def _bytes(ref: SegmentRef) -> int:
    return ref.payload_bytes + RECORD_BYTES * ref.rows
