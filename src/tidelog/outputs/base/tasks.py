"""Tasks on executors: they read a part of the log, decode, format, write and commit it.

The two events of a key change, the old key's delete and the new key's creation, get each other's
key before they go to different tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidelog.codecs.cell_positions import named_lists
from tidelog.errors import OutputError, OutputRefusedError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.ranges import message_records
from tidelog.ports import DeadLetters, Formatter, Rejection, TargetTable, TaskWriter, WriteTask
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.sessions.errors import lasting_reason
from tidelog.system import failpoints

_Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0x100000001B3)


def select_rows(
    rows: pa.RecordBatch, key: Sequence[str], partition: int, count: int
) -> pa.RecordBatch:
    """Return the rows whose key belongs to task ``partition`` of ``count``, in their order."""
    if count == 1 or not rows.num_rows:
        return rows
    return rows.filter(pa.array(partition_numbers(rows, key, count) == partition))


def partition_numbers(
    rows: pa.RecordBatch, key: Sequence[str], count: int
) -> npt.NDArray[np.int64]:
    """Return the partition of each row, ``0 … count - 1``."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for name in key:
        hashes = (hashes ^ _hashes(rows.column(name))) * _ODD
        hashes ^= hashes >> np.uint64(29)
    return ((hashes >> np.uint64(16)) % np.uint64(count)).astype(np.int64)


def _hashes(column: pa.Array) -> _Hashes:
    """Return uint64[n]: equal for equal values; null is a value."""
    kind = column.type
    if pa.types.is_integer(kind):
        plain = pc.fill_null(column, 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        found: _Hashes = plain.view(np.uint64)
        return found
    if not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    column = pc.fill_null(column, "").cast(pa.large_binary())
    n = len(column)
    _, bounds_buffer, data = column.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int64, n + 1, column.offset * 8)
    result = np.zeros(n, np.uint64)
    if data is not None:
        _hash_texts(np.frombuffer(data, np.uint8), bounds, result)
    return result


@njit(cache=True, nogil=True)
def _hash_texts(data, bounds, out):  # type: ignore[no-untyped-def]
    """HOT PATH. Fill uint64[n] with a polynomial of each text's bytes."""
    for row in range(len(out)):
        power = _BASE
        for at in range(bounds[row], bounds[row + 1]):
            out[row] += (np.uint64(data[at]) + np.uint64(1)) * power
            power *= _BASE


# Key changes.

OTHER_KEY = "_tidelog_other_key"


def with_other_keys(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Return rows of the shape `events` with the column ``_tidelog_other_key``: a struct of the
    columns ``key``, null where no key changed. Without that column if no row changed its key.
    """
    version = rows.column(CHANGE_VERSION).to_numpy()
    op = rows.column(CHANGE_OP)
    deleted, created = (pc.equal(op, each).to_numpy(zero_copy_only=False) for each in ("d", "c"))
    first = np.flatnonzero((version[1:] == version[:-1]) & deleted[:-1] & created[1:])
    if not key or not len(first):
        return rows
    none = np.ones(rows.num_rows, np.bool_)
    at = np.zeros(rows.num_rows, np.int64)
    at[first], at[first + 1] = first + 1, first
    none[first] = none[first + 1] = False
    places = pa.array(at, mask=none)
    cells = [rows.column(name).take(places) for name in key]
    other = pa.StructArray.from_arrays(cells, names=list(key), mask=pa.array(none))
    return rows.append_column(OTHER_KEY, other)


# Tasks.

Batches = Iterator[tuple[TargetTable, pa.RecordBatch]]


@dataclass(frozen=True)
class TableSlice:
    """A table's part of a batch, as a task reads it from the log.

    ``hash_partition`` (i, n): only the events whose key belongs to the i-th of n tasks, which all
    read the same records. Decoding costs little compared to formatting and writing, and much less
    than a shuffle.
    """

    table: TargetTable
    refs: tuple[SegmentRef, ...]
    hash_partition: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class BatchWork:
    """What all tasks of a batch have in common; pickled to each.

    Attributes:
        armed: the driver's failpoints, for tests that kill executors.
        skipped: operations that are not delivered.
        truncated: tables whose truncates are delivered even if they are in ``skipped``.
    """

    log_path: str
    shape: str
    task: WriteTask
    writer: TaskWriter
    formatter: Formatter | None
    dead_letters: DeadLetters
    armed: str = ""
    skipped: frozenset[str] = frozenset()
    truncated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WriteCounts:
    """The counts that a task returns to the driver."""

    rows: int
    rejected: int


def armed_failpoints() -> str:
    """Return the failpoints of this process's environment, for `BatchWork.armed`."""
    return os.environ.get(failpoints.ENVIRONMENT_VARIABLE, "")


def run_items(work: BatchWork, number: int, items: Sequence[TableSlice]) -> WriteCounts:
    """Write ``items``, one after the other, over one connection."""
    return run_task(work, number, _read_items(work, items))


def run_messages(work: BatchWork, number: int, items: Sequence[TableSlice]) -> WriteCounts:
    """Write the source's logical messages, as the log has them."""
    log = _log(work)
    found = ((item.table, batch) for item in items for batch in message_records(log, item.refs))
    return run_task(work, number, found)


def run_in_order(
    work: BatchWork, tables: Sequence[TargetTable], refs: Sequence[SegmentRef]
) -> WriteCounts:
    """Write all tables' events in the log's order, by one task."""
    return run_task(work, 0, _read_in_order(work, tables, refs))


def run_rows(
    work: BatchWork, number: int, table: TargetTable, rows: Iterable[pa.RecordBatch]
) -> WriteCounts:
    """Write rows that Spark has read and transformed."""
    return run_task(work, number, ((table, batch) for batch in rows))


def run_task(work: BatchWork, number: int, batches: Batches) -> WriteCounts:
    """Run one task from open to close; all errors but OutputError become one, without values."""
    task = replace(work.task, number=number)
    with failpoints.arm(failpoints.parse(work.armed)):
        what = f"output {task.output}: writing offsets {task.start} to {task.end}"
        with without_values(what):
            return _run(work, task, batches)


@contextmanager
def without_values(what: str) -> Iterator[None]:
    """Turn an error that is not a TidelogError into an OutputError that names ``what`` failed and
    contains no values. It is an OutputRefusedError if every retry would fail.
    """
    try:
        yield
    except TidelogError:
        raise
    except Exception as error:
        lasting = lasting_reason(error)
        if lasting:
            raise OutputRefusedError(
                f"{what} failed, and every retry will fail:  {lasting}"
            ) from error
        raise OutputError(f"{what} failed with {type(error).__name__}") from error


def _run(work: BatchWork, task: WriteTask, batches: Batches) -> WriteCounts:
    rows = 0
    rejections: list[Rejection] = []
    writer = work.writer
    failpoints.hit("output.task.open")
    task.check_lease()  # before it opens: that may end what another driver's task has begun
    try:
        writer.open(task)
        for table, every in batches:
            batch = _without_skipped(work, table, every)
            if batch is None:
                continue
            rows += batch.num_rows
            shaped = batch
            if work.formatter is not None:
                shaped = work.formatter.format(table, batch)
            task.check_lease()
            rejections += writer.write(table, shaped) or ()
            failpoints.hit("output.task.written")
        task.check_lease()
        failpoints.hit("output.task.commit")
        rejections += writer.commit() or ()
        failpoints.hit("output.task.committed")
    finally:
        writer.close()
    if rejections:
        work.dead_letters.put(task, rejections)
    return WriteCounts(rows, len(rejections))


def _without_skipped(
    work: BatchWork, table: TargetTable, events: pa.RecordBatch
) -> pa.RecordBatch | None:
    """Return the events without skipped operations, or None if no events are left."""
    skipped = work.skipped
    if str(table.source) in work.truncated:
        skipped = skipped - {"t"}
    if not skipped:
        return events
    unwanted = pc.is_in(events.column(CHANGE_OP), value_set=pa.array(sorted(skipped), pa.string()))
    if not unwanted.true_count:
        return events
    left = events.filter(pc.invert(unwanted))
    return left if left.num_rows else None


def _read_items(work: BatchWork, items: Sequence[TableSlice]) -> Batches:
    from tidelog.spark.datasource import executor

    log = _log(work)
    for item in items:
        plan = _read_plan(work, item.table.schema)
        for read in executor.batches(plan, log, item.refs):
            key = item.table.schema.match_key
            rows_with_keys = read if work.formatter is None else with_other_keys(read, key)
            batch = select_rows(rows_with_keys, key, *item.hash_partition)
            yield item.table, prepare_rows(batch, item.table, work.task.deleted_below)


def _read_in_order(
    work: BatchWork, tables: Sequence[TargetTable], refs: Sequence[SegmentRef]
) -> Batches:
    from tidelog.spark.datasource import executor

    log = _log(work)
    by_name = {str(table.source): table for table in tables}
    plans = {name: _read_plan(work, table.schema) for name, table in by_name.items()}
    for schema, batch in executor.events_in_order(log, refs, plans):
        table = by_name[str(schema.table)]
        if work.formatter is not None:
            batch = with_other_keys(batch, table.schema.match_key)
        yield table, prepare_rows(batch, table, {})


def prepare_rows(
    rows: pa.RecordBatch, table: TargetTable, deleted_below: Mapping[str, int]
) -> pa.RecordBatch:
    """Return rows of `changes` or `events` as writers receive them: missing columns by name, only
    the delivered columns, and rows that a truncate or a full dump removed as deletes.
    """
    below = deleted_below.get(str(table.source), 0)
    op = rows.column(CHANGE_OP)
    if below:
        op = pc.if_else(pc.less(rows.column(CHANGE_VERSION), below), "d", op)
    own = set(table.schema.column_names)
    names, arrays = [], []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in own and table.columns.get_field_index(name) < 0:
            continue
        if name == CHANGE_OP:
            column = op
        elif name == CHANGE_MISSING:
            column = named_lists(column, table.schema.column_names)
        names.append(name)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _log(work: BatchWork) -> EventLog:
    from tidelog.spark.datasource.source import cached_log

    return cached_log(work.log_path, work.task.generation)


def _read_plan(work: BatchWork, schema: TableSchema) -> ReadPlan:
    options = {"path": work.log_path, "shape": work.shape, "table": str(schema.table)}
    spark = shapes.changes(schema) if work.shape == "changes" else shapes.events(schema)
    return ReadPlan(SourceOptions.parse(options), schema, spark)
