"""Tasks of a lake output on executors: they read a range and settle it with a table.

Others rewrite a table's files. A task writes data files, which are invisible until the driver
commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelog.codecs.cell_positions import named_lists
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.scheduling import bytes_of
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.base.tasks import without_values
from tidelog.outputs.lake.contents import COMPLETE_DUMP
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, shared_cache
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.history import Removals
from tidelog.outputs.lake.settling.rows import RowBuffer
from tidelog.outputs.lake.settling.settle import (
    FileChanges,
    SettledChanges,
    SettleOptions,
    replace_files,
    rewrite,
    settle,
)
from tidelog.outputs.lake.settling.settle_history import settle_history, settle_removals
from tidelog.ports import DumpCompleted
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, EVENT_BEFORE
from tidelog.system import failpoints

# Copies, and tables of changes.

# Bytes of changes that are settled at once.
_PART_BYTES = 128 << 20


@dataclass(frozen=True)
class CopyFiles:
    """A copy as tasks see it.

    Attributes:
        location: its location, for messages.
        store: the store of its files.
        layout: the layout of its files.
        files: all its files.
        options: how changes are settled with them.
        armed: the driver's failpoints, for tests that kill executors.
    """

    location: str
    store: FileStore
    layout: FileLayout
    files: tuple[DataFile, ...]
    options: SettleOptions
    armed: str = ""


@dataclass(frozen=True)
class RangeOfTable:
    """Rows of one table in the event log.

    Attributes:
        log_path, generation: of the log.
        schema: the schema that records are decoded to.
        refs: segments, in log order.
    """

    log_path: str
    generation: str
    schema: TableSchema
    refs: tuple[SegmentRef, ...]


@dataclass(frozen=True)
class SettleWork:
    """The changes that one task settles.

    Attributes:
        copy: the copy that receives them.
        rows: the range to read; None: there is none, or Spark delivers the rows.
        columns: names of the delivered columns.
        deleted_below: rows of a lower version were deleted in the source.
        alone: whether no other task settles changes of this copy, so that this task can also change
            its files.
    """

    copy: CopyFiles
    rows: RangeOfTable | None
    columns: tuple[str, ...]
    deleted_below: int = 0
    alone: bool = True

    @property
    def size_bytes(self) -> int:
        return _size_of(self.copy, self.rows, removes=self.deleted_below > 0)

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(self.copy, lambda: _settle_work(self, None))


@dataclass(frozen=True)
class SettleResult:
    """The result of a `SettleWork`: ``error``, or new files; ``files`` if it was alone. That of a
    `RewriteWork`: ``error`` or ``files``.
    """

    settled: SettledChanges | None = None
    files: FileChanges | None = None
    error: TidelogError | None = field(default=None, compare=False)


class TableWrite(Protocol):
    """The work of a task for one table."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes it processes, with the files that it may rewrite."""

    def run(self) -> SettleResult: ...


_LARGE_BYTES = 1 << 20  # smaller files are rewritten in little time


def _size_of(copy: CopyFiles, rows: RangeOfTable | None, *, removes: bool = False) -> int:
    """Return about how many bytes a task processes, with the files that it may rewrite.
    ``removes``: besides rows of the range it removes others.
    """
    refs = () if rows is None else rows.refs
    size_bytes, changed = sum(map(bytes_of, refs)), sum(ref.rows for ref in refs)
    marks = copy.options.deletion_vectors and not removes
    for file in copy.files:
        if marks and file.size < _LARGE_BYTES:
            continue
        most = copy.options.rewrite_share * file.statistics.get("numRecords", 0)
        if not marks or file.deleted_rows + changed > most:
            size_bytes += file.size
    return size_bytes


def write_tables(works: Sequence[TableWrite]) -> list[SettleResult]:
    """Run a task's works one after the other. An error of one does not affect the others."""
    return [work.run() for work in works]


@dataclass(frozen=True)
class SettlePartition:
    """Settles changes that Spark has read and transformed: one partition of them in each task."""

    work: SettleWork

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> SettleResult:
        return result_or_error(self.work.copy, lambda: _settle_work(self.work, batches))


@dataclass(frozen=True)
class RewriteWork:
    """Files to rewrite, or to remove deleted rows from.

    Attributes:
        copy: the copy; ``copy.files`` are the files.
        dead: by path, the rows to leave out (see `SettledChanges`); empty: only those of the
            vectors.
        null_columns: columns whose values become null.
        drop_deleted: whether rows that are marked as deleted are left out.
    """

    copy: CopyFiles
    dead: Mapping[str, bytes] = field(default_factory=dict)
    null_columns: tuple[str, ...] = ()
    drop_deleted: bool = False


def rewrite_files(work: RewriteWork) -> FileChanges:
    """Run one task."""
    copy = work.copy
    with failpoints.arm(failpoints.parse(copy.armed)), without_values(f"rewriting {copy.location}"):
        failpoints.hit("lake.task.rewrite")
        if work.dead:
            return _without_dead(copy, work.dead)
        return rewrite(
            copy.files,
            copy.store,
            copy.layout,
            null_columns=work.null_columns,
            drop_deleted=work.drop_deleted,
            cache=shared_cache(copy.options.cache_bytes),
        )


def rewrite_or_error(work: RewriteWork) -> SettleResult:
    """Run one task. An error of one does not fail the job, which rewrites files of other tables."""
    try:
        return SettleResult(files=rewrite_files(work))
    except TidelogError as error:
        return SettleResult(error=error)


def result_or_error(copy: CopyFiles, write: Callable[[], SettleResult]) -> SettleResult:
    """Return the result of ``write``, or its error, without values."""
    with failpoints.arm(failpoints.parse(copy.armed)):
        try:
            with without_values(f"writing {copy.location}"):
                return write()
        except TidelogError as error:
            return SettleResult(error=error)


def _settle_work(work: SettleWork, batches: Iterable[pa.RecordBatch] | None) -> SettleResult:
    failpoints.hit("output.task.open")
    copy = work.copy
    cache = shared_cache(copy.options.cache_bytes)
    return result_of(copy, _settle_parts(work, batches, cache), alone=work.alone)


def result_of(copy: CopyFiles, settled: SettledChanges, *, alone: bool) -> SettleResult:
    """Return the result of a task that has settled its changes; one that is ``alone`` removes the
    dead rows from the copy's files.
    """
    failpoints.hit("output.task.written")
    if not alone:
        return SettleResult(settled)
    replaced = _without_dead(copy, settled.dead)
    failpoints.hit("output.task.committed")
    return SettleResult(settled, replaced)


def _without_dead(copy: CopyFiles, dead: Mapping[str, bytes]) -> FileChanges:
    files = {file.path: file for file in copy.files}
    cache = shared_cache(copy.options.cache_bytes)
    return replace_files(dead, files, copy.store, copy.layout, copy.options, cache)


def _settle_parts(
    work: SettleWork, batches: Iterable[pa.RecordBatch] | None, cache: KeyIndexCache
) -> SettledChanges:
    """Settle many changes in parts with distinct keys, since each part is copied several times.
    Removing rows below a version needs all changes at once.
    """
    copy, below = work.copy, work.deleted_below
    given = _read(work.rows) if batches is None else batches
    filled = [batch for batch in given if batch.num_rows]
    if not filled:
        changes = FoldedChanges.none(below)
        return settle(changes, copy.files, copy.store, copy.layout, (), cache)
    names = () if work.rows is None else work.rows.schema.column_names
    rows = pa.Table.from_batches(filled)
    del filled
    together = below > 0 and len(copy.files) > 0
    size = len(rows) if together else -(-len(rows) // -(-rows.nbytes // _PART_BYTES))
    parts = []
    for start in range(0, len(rows), size):
        changes = FoldedChanges.from_changes(rows.slice(start, size), names, below)
        parts.append(settle(changes, copy.files, copy.store, copy.layout, work.columns, cache))
    return SettledChanges.of_parts(parts)


def _read(rows: RangeOfTable | None) -> Iterator[pa.RecordBatch]:
    return iter(()) if rows is None else read_range(rows, "changes", shapes.changes(rows.schema))


def read_range(rows: RangeOfTable, shape: str, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the range in a shape of the source, ``schema`` in Spark's types, in log order."""
    from tidelog.spark.datasource import executor
    from tidelog.spark.datasource.source import cached_log

    options = {"path": rows.log_path, "shape": shape, "table": str(rows.schema.table)}
    plan = ReadPlan(SourceOptions.parse(options), rows.schema, schema)
    return executor.batches(plan, cached_log(rows.log_path, rows.generation), rows.refs)


@dataclass(frozen=True)
class AppendWork:
    """The changes that one task appends.

    Attributes:
        table: the table that receives them; its files are not used.
        source: name of the source's table.
        rows: the range to read; None: there is none.
        dumps: the complete dumps of the whole table.
    """

    table: CopyFiles
    source: str
    rows: RangeOfTable | None
    dumps: tuple[DumpCompleted, ...] = ()

    @property
    def size_bytes(self) -> int:
        return _size_of(self.table, self.rows)

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(self.table, lambda: _append_changes(self))


def _append_changes(work: AppendWork) -> SettleResult:
    failpoints.hit("output.task.open")
    table = work.table
    added = RowBuffer(ParquetFileWriter(table.store, table.layout))
    count = 0
    if work.rows is not None:
        shape = shapes.typed(work.rows.schema, None)
        for batch in read_range(work.rows, "typed", shape):
            added.add(_to_table(batch, table.layout))
            count += batch.num_rows
    if work.dumps:
        added.add(_to_table(_complete_dumps(work), table.layout))
    settled = SettledChanges(added.close(), {}, (), count)
    failpoints.hit("output.task.written")
    failpoints.hit("output.task.committed")
    return SettleResult(settled, FileChanges((), (), ()))


def _complete_dumps(work: AppendWork) -> pa.RecordBatch:
    """Return a row for each dump."""
    n = len(work.dumps)
    source = {
        "table": pa.repeat(pa.scalar(work.source), n),
        "ordinal": pa.array([each.rows_ordinal for each in work.dumps], pa.int64()),
        "origin": pa.repeat(pa.scalar("dump"), n),
    }
    columns = {
        "op": pa.repeat(pa.scalar(COMPLETE_DUMP), n),
        "version": pa.array([each.first_offset for each in work.dumps], pa.int64()),
        "source": pa.StructArray.from_arrays(list(source.values()), list(source)),
    }
    return pa.record_batch(columns)


def _to_table(rows: pa.RecordBatch, layout: FileLayout) -> pa.Table:
    """Return ``rows`` by the table's names, which may differ by case, and its types, which fit all
    values; missing columns are null, or as the table says.
    """
    given, schema = {name.lower() for name in rows.schema.names}, layout.schema
    for column in layout.columns:
        if column.written is not None and column.name.lower() not in given:
            rows = rows.append_column(column.name, pa.repeat(column.written, len(rows)))
    found = _cast_to(pa.StructArray.from_arrays(rows.columns, rows.schema.names), pa.struct(schema))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(found)], schema)


def _cast_to(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type.equals(kind):
        return values
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    at = {field.name.lower(): n for n, field in enumerate(values.type)}
    members = [
        pa.nulls(len(values), field.type)
        if (position := at.get(field.name.lower())) is None
        else _cast_to(values.field(position), field.type)
        for field in kind
    ]
    nulls = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=nulls)


# Tables of history.


@dataclass(frozen=True)
class HistoryWork:
    """The changes that one task settles.

    Attributes:
        table: the table that receives them.
        rows: the range to read; None: there is none, or Spark delivers the rows.
        columns: names of the delivered columns.
        removals: those of the range.
        alone: whether no other task settles changes of this table, so that this task also closes
            the rows of other keys, and changes the table's files.
    """

    table: CopyFiles
    rows: RangeOfTable | None
    columns: tuple[str, ...]
    removals: Removals
    alone: bool = True

    @property
    def size_bytes(self) -> int:
        return _size_of(self.table, self.rows, removes=len(self.removals) > 0)

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(self.table, lambda: _settle(self, None))


@dataclass(frozen=True)
class HistoryPartition:
    """Settles changes that Spark has read and transformed: one partition of them in each task, with
    all changes of its keys, in any order.
    """

    work: HistoryWork

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> SettleResult:
        return result_or_error(self.work.table, lambda: _settle(self.work, batches))


@dataclass(frozen=True)
class RemovalsWork:
    """Closes the rows of keys that were removed and not changed, after tasks have settled the
    changes of all others; ``dead``: the rows that these remove (see `SettledChanges`).
    """

    table: CopyFiles
    removals: Removals
    dead: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return _size_of(self.table, None, removes=True)

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(
            self.table, lambda: SettleResult(_settle_removals(self.table, self.removals, self.dead))
        )


def _settle(work: HistoryWork, batches: Iterable[pa.RecordBatch] | None) -> SettleResult:
    failpoints.hit("output.task.open")
    table = work.table
    cache = shared_cache(table.options.cache_bytes)
    events = _events(_read_history(work.rows) if batches is None else batches, work.rows)
    settled = settle_history(
        events, table.files, table.store, table.layout, work.columns, cache, work.removals
    )
    if work.alone and len(work.removals):
        others = _settle_removals(table, work.removals, settled.dead)
        settled = SettledChanges.of_parts([settled, others])
    return result_of(table, settled, alone=work.alone)


def _settle_removals(
    table: CopyFiles, removals: Removals, dead: Mapping[str, bytes]
) -> SettledChanges:
    cache = shared_cache(table.options.cache_bytes)
    return settle_removals(table.files, table.store, table.layout, cache, removals, dead)


def _events(batches: Iterable[pa.RecordBatch], rows: RangeOfTable | None) -> pa.Table | None:
    """Return all changes in order, without truncates, with the names of missing columns."""
    filled = [_named(batch, rows) for batch in batches if batch.num_rows]
    if not filled:
        return None
    events = pa.Table.from_batches(filled)
    is_row = pc.not_equal(events.column(CHANGE_OP), "t")
    if not pc.all(is_row).as_py():
        events = events.filter(is_row)
    return events if rows is not None else events.sort_by(shapes.CHANGE_VERSION)


def _named(batch: pa.RecordBatch, rows: RangeOfTable | None) -> pa.RecordBatch:
    names = () if rows is None else rows.schema.column_names
    at = batch.schema.get_field_index(CHANGE_MISSING)
    lists = named_lists(batch.column(at), names)
    found = batch.set_column(at, CHANGE_MISSING, lists)
    return found.drop_columns([name for name in (EVENT_BEFORE,) if name in found.schema.names])


def _read_history(rows: RangeOfTable | None) -> Iterator[pa.RecordBatch]:
    return iter(()) if rows is None else read_range(rows, "events", shapes.events(rows.schema))
