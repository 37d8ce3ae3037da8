"""The Spark jobs of an output into a lake: tasks settle changes with the files of its tables.

For each batch one job reads the ranges of all tables that changed, settles them with the tables'
files, or takes each change as a row, and writes new files, without Spark's SQL. A table with steps,
or with too many rows for a task, has a job of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, FloatType

from tidelog.codecs.wire_formats import nan_key
from tidelog.errors import RowsLeftOutError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.schema import TableName, backticked
from tidelog.outputs.base.ranges import delivered_schema, removals_of
from tidelog.outputs.lake.errors import left_out_error
from tidelog.outputs.lake.settling import tasks as settle_tasks
from tidelog.outputs.lake.settling.history import Removals
from tidelog.outputs.lake.settling.settle import FileChanges, SettledChanges
from tidelog.outputs.lake.settling.tasks import (
    AppendWork,
    HistoryPartition,
    HistoryWork,
    RangeOfTable,
    RemovalsWork,
    RewriteWork,
    SettlePartition,
    SettleResult,
    SettleWork,
    TableWrite,
)
from tidelog.outputs.lake.table import LakeTable
from tidelog.ports import DumpCompleted, TargetTable
from tidelog.spark import folding, transforms
from tidelog.spark.executor_jobs import is_small, run_on_executors, run_on_partitions
from tidelog.spark.formats.shapes import CHANGE_OP
from tidelog.spark.session import exact_session
from tidelog.spark.sessions.errors import known_error, lasting_reason
from tidelog.spark.transforms import Step, steps_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableWork:
    """The work for one table in one batch. ``dumps``: complete dumps of the whole table."""

    table: TableName
    start: int
    end: int
    has_rows: bool
    deleted_below: int  # rows of a lower version were deleted in the source (truncate, full dump)
    dumps: tuple[DumpCompleted, ...] = ()


@dataclass(frozen=True)
class CopyWrite:
    """The rows to write to an existing copy that has the columns.

    Attributes:
        copy: the table.
        work: the work of the batch.
        since: the offset below which the table had everything when it was read; None: it had
            nothing. If the table was restored to an older state, this offset is at or beyond the
            end of ``work``: the rows are written a second time.
        parts: segments with rows of the table, one part for each task that folds them; empty: no
            rows.
        target: the table as rows are delivered; None: there are no rows.
        columns: names of the columns that rows have.
    """

    copy: LakeTable
    work: TableWork
    since: int | None
    parts: Sequence[Sequence[SegmentRef]] = ()
    target: TargetTable | None = None
    columns: tuple[str, ...] = ()

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        return tuple(ref for part in self.parts for ref in part)


class LakeJobs:
    """Runs the Spark jobs of an output into a lake.

    Args:
        spark: the session that runs them.
        log: the event log that batches refer to.
        log_path: its path.
        output: the output's name.
        steps: of the output.
        parallel_tables: number of tables with jobs of their own that are read at once.
        cores: returns the number of tasks that run at once; called for each batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: EventLog,
        log_path: str,
        output: str,
        steps: Sequence[Step],
        parallel_tables: int,
        cores: Callable[[], int],
    ) -> None:
        self._spark = spark
        self._read_session = exact_session(spark)
        self._log = log
        self._log_path = log_path
        self._steps = steps
        self._cores = cores
        self._pool = ThreadPoolExecutor(max(1, parallel_tables), thread_name_prefix=output)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def settle(self, writes: Sequence[CopyWrite]) -> list[list[SettleResult]]:
        """Return, for each write, the results of its tasks."""
        tasks = [(at, self._tasks(write)) for at, write in enumerate(writes)]
        framed = {
            at: self._pool.submit(self._settle_by_frame, writes[at])
            for at, works in tasks
            if not works
        }
        items = [(at, work) for at, works in tasks for work in works]
        cores = self._cores()
        groups = [items[n::cores] for n in range(cores)]
        groups = [group for group in groups if group]
        works = [[work for _, work in group] for group in groups]
        done: dict[int, list[SettleResult]] = defaultdict(list)
        try:
            found = run_on_executors(
                self._spark,
                settle_tasks.write_tables,
                works,
                small=is_small(self._spark, sum(work.size_bytes for _, work in items)),
            )
        finally:
            wait(framed.values())  # they read states, which a retry of the batch refreshes
        for group, results in zip(groups, found, strict=True):
            for (at, _), result in zip(group, results, strict=True):
                done[at].append(result)
        done |= {at: future.result() for at, future in framed.items()}
        return [done[at] for at in range(len(writes))]

    def _tasks(self, write: CopyWrite) -> Sequence[TableWrite]:
        """Return what the batch's job does for a table; empty: the table has a job of its own."""
        if write.copy.layout.holds == "changes":
            return self._appends(write)
        steps = steps_of(self._steps, write.work.table)
        if len(write.parts) > 1 or (write.parts and steps):
            return []
        history = write.copy.layout.holds == "history"
        return [self._history(write) if history else self._work(write)]

    def _appends(self, write: CopyWrite) -> list[AppendWork]:
        """Return a work for each part of the range: versions are the changes' only order."""
        table, work, target = replace(write.copy.files(), files=()), write.work, write.target
        ranges: list[RangeOfTable | None] = []
        if target is not None:
            ranges += [self._range(write, target, part) for part in write.parts]
        found = [AppendWork(table, str(work.table), each) for each in ranges or [None]]
        dumps = [each for each in work.dumps if each.finalized_until > work.start]
        return [*found[:-1], replace(found[-1], dumps=tuple(dumps))]

    def _work(self, write: CopyWrite, *, alone: bool = True) -> SettleWork:
        copy, target = write.copy, write.target
        if target is None:
            return SettleWork(copy.files(), None, (), write.work.deleted_below)
        set_key(copy, target)
        rows = self._range(write, target, write.refs) if alone and write.parts else None
        return SettleWork(copy.files(), rows, write.columns, write.work.deleted_below, alone)

    def _history(self, write: CopyWrite, *, alone: bool = True) -> HistoryWork:
        work, target, rows = write.work, write.target, None
        removals = Removals.of(
            removals_of(self._log, work.table, work.start, work.end, work.dumps)
            if work.deleted_below
            else ()
        )
        if target is not None:
            set_key(write.copy, target)
            if alone and write.parts:
                rows = self._range(write, target, write.refs)
        return HistoryWork(write.copy.files(), rows, write.columns, removals, alone)

    def _range(
        self, write: CopyWrite, target: TargetTable, refs: Sequence[SegmentRef]
    ) -> RangeOfTable:
        schema = delivered_schema(target.schema, write.columns)
        return RangeOfTable(self._log_path, self._log.generation, schema, tuple(refs))

    def _settle_by_frame(self, write: CopyWrite) -> list[SettleResult]:
        """Settle a table that Spark reads: one with steps, or too many rows for a task."""
        try:
            return self._settle_frame(write)
        except Exception as error:
            ours = known_error(error)
            if ours is None and (why := lasting_reason(error)):
                ours = RowsLeftOutError(f"{write.copy.location}: {why}")
            if left_out_error(ours) is not None:
                return [SettleResult(error=ours)]
            raise

    def _settle_frame(self, write: CopyWrite) -> list[SettleResult]:
        if write.copy.layout.holds == "history":
            return self._settle_history_by_frame(write)
        target, below = write.target, write.work.deleted_below
        assert target is not None  # there are rows
        steps = steps_of(self._steps, write.work.table)
        schema = target.schema if steps else delivered_schema(target.schema, write.columns)
        read = (self._read_session, self._log_path, self._log.generation, schema, write.refs)
        work = self._work(write, alone=False)
        # A task that removes rows below a version must have all rows that were written again, or
        # read those that it removes.
        together = bool(below) and (bool(write.copy.layout.deleted) or work.copy.layout.change_feed)
        with folding.read_newest(*read, parts=len(write.parts)) as source:
            changes = folding.with_deletes_below(source, below)
            # Names of missing columns instead of their numbers.
            changes = transforms.apply(changes, steps, schema, keyed=True)
            if together:
                changes = changes.coalesce(1)
            of_each = work if together else replace(work, deleted_below=0)
            results = run_on_partitions(changes, SettlePartition(of_each))
        if below and not (together and results):
            results += run_on_executors(self._spark, settle_tasks.write_tables, [[work]])[0]
        return results

    def _settle_history_by_frame(self, write: CopyWrite) -> list[SettleResult]:
        target, work = write.target, self._history(write, alone=False)
        assert target is not None  # there are rows
        steps, schema = steps_of(self._steps, write.work.table), target.schema
        read = (self._read_session, self._log_path, self._log.generation, schema, write.refs)
        found = folding.read_planned(*read, parts=len(write.parts), shape="events")
        # As steps of copies see them: states and deletes.
        op = f.when(f.col(CHANGE_OP) == "d", "d").otherwise("u")
        changes = found.where(f.col(CHANGE_OP) != "t").withColumn(CHANGE_OP, op)
        changes = transforms.apply(changes, steps, schema, keyed=True)
        if len(write.parts) > 1:
            changes = changes.repartition(len(write.parts), *_hashed(changes, target.key))
        results = run_on_partitions(changes, HistoryPartition(work))
        settled = [each.settled for each in results if each.settled is not None]
        if len(work.removals) and len(settled) == len(results):
            dead = SettledChanges.of_parts(settled).dead
            others = RemovalsWork(work.table, work.removals, dead)
            results += run_on_executors(self._spark, settle_tasks.write_tables, [[others]])[0]
        return results

    def rewrite(self, works: Sequence[RewriteWork]) -> list[FileChanges]:
        """Return the results of the works, all of one table, or raises the error of one."""
        return [files_of(each) for each in self.try_rewrite(works)]

    def try_rewrite(self, works: Sequence[RewriteWork]) -> list[SettleResult]:
        size_bytes = sum(file.size for work in works for file in work.copy.files)
        small = is_small(self._spark, size_bytes)
        return run_on_executors(self._spark, settle_tasks.rewrite_or_error, works, small=small)

    def replace_dead_files(
        self, copy: LakeTable, settled: Sequence[SettledChanges]
    ) -> list[FileChanges]:
        """Return the changes of files with deleted rows, after tasks have settled them."""
        dead = SettledChanges.of_parts(settled).dead
        if not dead:
            return []
        whole, files, paths = copy.files(), copy.data_files(), sorted(dead)
        cores = self._cores()
        groups = [paths[n::cores] for n in range(cores)]
        works = [
            RewriteWork(
                replace(whole, files=tuple(files[path] for path in group)),
                {path: dead[path] for path in group},
            )
            for group in groups
            if group
        ]
        return self.rewrite(works)


def set_key(copy: LakeTable, target: TargetTable) -> None:
    """Let the table know the columns of its key, by the names that it has them under."""
    own = {name.lower(): name for name in copy.column_types()}
    copy.key = tuple(own[name.lower()] for name in target.key)
    copy.null_key = bool(nan_key(target.schema))


def files_of(result: SettleResult) -> FileChanges:
    """Return the changed files, or raise the error of the task."""
    if result.error is not None:
        raise left_out_error(result.error) or result.error
    assert result.files is not None
    return result.files


def _hashed(changes: DataFrame, key: Sequence[str]) -> list[Column]:
    """Return the columns of the key, for Spark to hash: equal values have equal hashes."""
    floats = {x.name for x in changes.schema if isinstance(x.dataType, FloatType | DoubleType)}
    # Spark hashes -0.0 and 0.0 differently.
    return [f.col(backticked(n)) + 0.0 if n in floats else f.col(backticked(n)) for n in key]
