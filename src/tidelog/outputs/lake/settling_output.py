"""An output that settles changes with the files of a lake's tables, without Spark's SQL.

For each batch one Spark job reads the ranges of all tables that changed, settles them with the
tables' files, or takes each change as a row, and writes new files. The driver, which knows every
table's state, commits them together with the batch's end. What is a table format's own is in its
`SettledTable`; the rest is in `tidelog.outputs.lake.output`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, FloatType

from tidelog.codecs.wire_formats import nan_key
from tidelog.errors import (
    ConflictError,
    OutputBusyError,
    RowsLeftOutError,
    TableLeftOutError,
    TidelogError,
)
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, backticked
from tidelog.outputs.base.ranges import delivered_schema, removals_of
from tidelog.outputs.lake.output import (
    CopyWrite,
    LakeOptions,
    LakeOutput,
    TableWork,
    left_out_error,
    reason_of,
)
from tidelog.outputs.lake.settled_table import COMMIT_TRIES, SettledTable
from tidelog.outputs.lake.settling import tasks as settle_tasks
from tidelog.outputs.lake.settling.history import Removals
from tidelog.outputs.lake.settling.reading import FileRows, bounds_of, file_rows, frame_of
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
from tidelog.outputs.lake.table import KEYLESS_PROPERTY
from tidelog.ports import StateStore, TargetTable
from tidelog.spark import folding, transforms
from tidelog.spark.executor_jobs import is_small, run_on_executors, run_on_partitions
from tidelog.spark.formats.shapes import CHANGE_OP
from tidelog.spark.sessions.connect import default_parallelism
from tidelog.spark.sessions.errors import known_error, lasting_reason
from tidelog.spark.transforms import steps_of
from tidelog.system import failpoints

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

_Key = Sequence[str | None] | None
Range = tuple[_Key, _Key]
"""``after < key <= upto``; None: open."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Settled = TypeVar("Settled", bound=SettledTable)

_TABLES_AT_ONCE: Final = 8
"""Tables whose logs are read and committed to at once: each takes some requests in sequence."""


class SettlingOutput(LakeOutput[Settled]):
    """An output into tables whose rows tasks settle.

    Args:
        spark, log_path, tables, name, options, state: see `LakeOutput`.
        parallel_tables: number of tables with steps, or with very large ranges, that are read at
            once.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        *,
        tables: Sequence[str],
        name: str,
        options: LakeOptions,
        parallel_tables: int,
        state: StateStore | None,
    ) -> None:
        super().__init__(spark, log_path, tables=tables, name=name, options=options, state=state)
        self._pool = ThreadPoolExecutor(max(1, parallel_tables), thread_name_prefix=name)
        self._waiting = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix=f"{name}-store")
        self._written: list[Settled] = []  # since the last compaction

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._waiting.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _clean_up(self, written: Sequence[Settled]) -> None:
        """Remove what readers of the tables do not need any more. The copies are correct without
        it: an error is logged. ``written``: tables of the batch.
        """

    def _check_layout(self, copy: Settled, target: TargetTable, *, exists: bool) -> None:
        table = target.source
        if copy.layout.holds == "changes" and (steps := steps_of(self._options.steps, table)):
            raise TableLeftOutError(
                f"output {self.name} keeps the changes of {table} as the log has them, and its "
                f"step {steps[0].action} would alter rows: remove {table} from the step's "
                "tables, or keep a copy of it"
            )
        super()._check_layout(copy, target, exists=exists)

    def _holds_changes(self, table: TableName) -> bool:
        return matches(self._patterns, table) and self._table(table).layout.holds != "copy"

    def _write_copies(self, works: Sequence[TableWork]) -> None:
        if not works:
            return
        with self._named_errors(*works):
            planned = self._map_tables(self._plan_write, works)
            self._write_all([each for each in planned if each is not None])

    def _write_all(self, writes: Sequence[CopyWrite[Settled]]) -> None:
        """Write and commit the rows; they are settled again if another has committed since."""
        if not writes:
            return
        for _ in range(COMMIT_TRIES):
            self._check_lease()
            results = self._settle(writes)
            failpoints.hit("lake.table.write")
            self._check_lease()
            outcomes = self._map_tables(self._try_commit, [*zip(writes, results, strict=True)])
            conflicts: list[CopyWrite[Settled]] = []
            errors: list[TidelogError] = []
            for write, error in zip(writes, outcomes, strict=True):
                refused = left_out_error(error)
                if isinstance(error, ConflictError):
                    conflicts.append(write)
                elif refused is not None and not self._is_changed(write.copy, refused):
                    self._leave_out(write.work.table, refused, write.work.start)
                elif refused is not None:
                    conflicts.append(write)
                elif error is not None:
                    errors.append(error)
            if errors:
                raise errors[0]
            refreshed = [self._refresh_write(write) for write in conflicts]
            writes = [write for write in refreshed if write is not None]
            if not writes:
                return
        raise OutputBusyError(
            f"{writes[0].copy.location}: others committed to the table {COMMIT_TRIES} times while "
            "a batch was written; it is tried again"
        )

    def _is_changed(self, copy: Settled, error: TableLeftOutError) -> bool:
        """Has somebody else committed to the table since it was read, so that ``error`` may be of
        a file that it has no more?
        """
        if not isinstance(error, RowsLeftOutError):
            return False
        with suppress(TableLeftOutError):
            before = copy.files().files
            return copy.exists() and copy.files().files != before
        return False

    def _refresh_write(self, write: CopyWrite[Settled]) -> CopyWrite[Settled] | None:
        """Return the same rows, prepared for the table as it is now; None: it is left out."""
        logger.info("%s: somebody else committed: the batch is settled again", write.copy.location)
        try:
            return self._write_of_newest(write)
        except TableLeftOutError as error:
            self._leave_out(write.work.table, error, write.work.start)
            return None

    def _write_of_newest(self, write: CopyWrite[Settled]) -> CopyWrite[Settled]:
        copy, table = write.copy, write.work.table
        if not copy.exists():
            raise OutputBusyError(f"{copy.location} was removed while a batch was written")
        copy.check_ours(table, self._log.generation)
        if copy.committed(self._application) != write.since:
            raise OutputBusyError(
                f"{copy.location}: another pipeline of this name committed to the table"
            )
        if copy.find_restore(self._application, write.since or 0) is not None:
            raise OutputBusyError(f"{copy.location} was restored while a batch was written")
        if write.target is None:
            return write
        return replace(write, columns=self._evolve(copy, table, write.target))

    def _map_tables(self, call: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
        """Return ``call(item)`` for each item, several at once, as they wait for the store. An
        error is raised once all calls have ended.
        """
        if len(items) < 2:  # a copy that is repaired is written by a thread of this pool
            return [call(item) for item in items]
        futures = [self._waiting.submit(call, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def _maintain(self) -> None:
        """Compact small files, remove old ones. Copies are right without it: an error is logged."""
        copies = list(dict.fromkeys(self._written))
        self._written.clear()
        self._compact(copies)
        self._clean_up(copies)

    def _compact(self, copies: Sequence[Settled]) -> None:
        """Compact the files of all tables in one Spark job. If it fails, compact each table by
        itself, so that one table does not stop the others.
        """
        try:
            works = [copy.compaction() for copy in copies]
            results = iter(self._try_rewrite([work for each in works for work in each]))
            found = [
                (copy, [(work, next(results)) for work in each])
                for copy, each in zip(copies, works, strict=True)
            ]
            self._map_tables(lambda pair: self._commit_compaction(*pair), found)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            if len(copies) > 1:
                for copy in copies:
                    self._compact([copy])
                return
            reason = error if isinstance(error, TidelogError) else reason_of(error)
            logger.warning("%s: small files were not compacted: %s", copies[0].location, reason)

    def _commit_compaction(
        self, copy: Settled, rewritten: Sequence[tuple[RewriteWork, SettleResult]]
    ) -> None:
        """Commit what was rewritten. Files that can't be read are not read again for this."""
        changes = []
        for work, result in rewritten:
            if result.error is None:
                changes.append(_files_of(result))
                continue
            if left_out_error(result.error) is not None:
                copy.not_compacted.update(file.path for file in work.copy.files)
            logger.warning("%s: small files were not compacted: %s", copy.location, result.error)
        copy.commit_compaction(changes)

    def columns(self, table: TableName) -> Collection[str] | None:
        """Return the names of the copy's columns; None: there is no copy."""
        copy = self._table(table)
        if not copy.exists() or copy.property(KEYLESS_PROPERTY) is not None:
            return None
        return copy.columns().names

    def read(self, target: TargetTable, part: Range = (None, None)) -> DataFrame | None:
        """Return the copy's current rows, at least those of a range of the key, read by the session
        that the output was created with; None: there is no copy.
        """
        copy = self._table(target.source)
        if not copy.exists():
            return None
        self._set_key(copy, target)
        return frame_of(self._spark, copy.files(), copy.columns(), bounds_of(*part))

    def row_sources(self, target: TargetTable, part: Range) -> list[FileRows] | None:
        """Return the same rows for tasks: batches of the target's columns; None: there is no copy,
        or a column has another type in it.
        """
        copy = self._table(target.source)
        if not copy.exists():
            return None
        self._set_key(copy, target)
        files = copy.files()
        types = {each.name: each.type for each in files.layout.columns}
        if any(types.get(each.name) != each.type for each in target.columns):
            return None
        return file_rows(files, target.columns.names, bounds_of(*part), self._cores())

    # ------------------------------------------------ Spark jobs

    def _cores(self) -> int:
        """Return the number of tasks that run at once now: executors come and go."""
        return default_parallelism(self._spark)

    def _settle(self, writes: Sequence[CopyWrite[Settled]]) -> list[list[SettleResult]]:
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

    def _tasks(self, write: CopyWrite[Settled]) -> Sequence[TableWrite]:
        """Return what the batch's job does for a table; empty: the table has a job of its own."""
        if write.copy.layout.holds == "changes":
            return self._appends(write)
        steps = steps_of(self._options.steps, write.work.table)
        if len(write.parts) > 1 or (write.parts and steps):
            return []
        history = write.copy.layout.holds == "history"
        return [self._history(write) if history else self._work(write)]

    def _appends(self, write: CopyWrite[Settled]) -> list[AppendWork]:
        """Return a work for each part of the range: versions are the changes' only order."""
        table, work, target = replace(write.copy.files(), files=()), write.work, write.target
        ranges: list[RangeOfTable | None] = []
        if target is not None:
            ranges += [self._range(write, target, part) for part in write.parts]
        found = [AppendWork(table, str(work.table), each) for each in ranges or [None]]
        dumps = [each for each in work.dumps if each.finalized_until > work.start]
        return [*found[:-1], replace(found[-1], dumps=tuple(dumps))]

    def _work(self, write: CopyWrite[Settled], *, alone: bool = True) -> SettleWork:
        copy, target = write.copy, write.target
        if target is None:
            return SettleWork(copy.files(), None, (), write.work.deleted_below)
        self._set_key(copy, target)
        rows = self._range(write, target, write.refs) if alone and write.parts else None
        return SettleWork(copy.files(), rows, write.columns, write.work.deleted_below, alone)

    def _history(self, write: CopyWrite[Settled], *, alone: bool = True) -> HistoryWork:
        work, target, rows = write.work, write.target, None
        removals = Removals.of(
            removals_of(self._log, work.table, work.start, work.end, work.dumps)
            if work.deleted_below
            else ()
        )
        if target is not None:
            self._set_key(write.copy, target)
            if alone and write.parts:
                rows = self._range(write, target, write.refs)
        return HistoryWork(write.copy.files(), rows, write.columns, removals, alone)

    def _range(
        self, write: CopyWrite[Settled], target: TargetTable, refs: Sequence[SegmentRef]
    ) -> RangeOfTable:
        schema = delivered_schema(target.schema, write.columns)
        return RangeOfTable(self._log_path, self._log.generation, schema, tuple(refs))

    def _set_key(self, copy: Settled, target: TargetTable) -> None:
        own = {name.lower(): name for name in copy.column_types()}
        copy.key = tuple(own[name.lower()] for name in target.key)
        copy.null_key = bool(nan_key(target.schema))

    def _settle_by_frame(self, write: CopyWrite[Settled]) -> list[SettleResult]:
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

    def _settle_frame(self, write: CopyWrite[Settled]) -> list[SettleResult]:
        if write.copy.layout.holds == "history":
            return self._settle_history_by_frame(write)
        target, below = write.target, write.work.deleted_below
        assert target is not None  # there are rows
        steps = steps_of(self._options.steps, write.work.table)
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

    def _settle_history_by_frame(self, write: CopyWrite[Settled]) -> list[SettleResult]:
        target, work = write.target, self._history(write, alone=False)
        assert target is not None  # there are rows
        steps, schema = steps_of(self._options.steps, write.work.table), target.schema
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

    def _rewrite(self, works: Sequence[RewriteWork]) -> list[FileChanges]:
        """Return the results of the works, all of one table, or raises the error of one."""
        return [_files_of(each) for each in self._try_rewrite(works)]

    def _try_rewrite(self, works: Sequence[RewriteWork]) -> list[SettleResult]:
        size_bytes = sum(file.size for work in works for file in work.copy.files)
        small = is_small(self._spark, size_bytes)
        return run_on_executors(self._spark, settle_tasks.rewrite_or_error, works, small=small)

    # ------------------------------------------------ commits

    def _try_commit(
        self, settled: tuple[CopyWrite[Settled], list[SettleResult]]
    ) -> TidelogError | None:
        """Return the error that kept a write from being committed, or None."""
        write, results = settled
        failed = [each.error for each in results if each.error is not None]
        if failed:
            return failed[0]
        try:
            self._commit(write, results)
        except TidelogError as error:
            return error
        return None

    def _commit(self, write: CopyWrite[Settled], results: Sequence[SettleResult]) -> None:
        copy = write.copy
        changes = [each.files for each in results if each.files is not None]
        settled = [each.settled for each in results if each.settled is not None]
        shared = [each.settled for each in results if each.files is None and each.settled]
        changes += self._replace_dead_files(copy, shared)
        added = FileChanges(tuple(file for each in settled for file in each.added), (), ())
        fed = [file for each in settled for file in each.change_files]
        start, end = write.since, write.work.end
        copy.commit_settled([*changes, added], fed, self._application, start, end)
        self._written.append(copy)

    def _replace_dead_files(
        self, copy: Settled, settled: Sequence[SettledChanges]
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
        return self._rewrite(works)


def _files_of(result: SettleResult) -> FileChanges:
    if result.error is not None:
        raise left_out_error(result.error) or result.error
    assert result.files is not None
    return result.files


def _hashed(changes: DataFrame, key: Sequence[str]) -> list[Column]:
    """Return the columns of the key, for Spark to hash: equal values have equal hashes."""
    floats = {x.name for x in changes.schema if isinstance(x.dataType, FloatType | DoubleType)}
    # Spark hashes -0.0 and 0.0 differently.
    return [f.col(backticked(n)) + 0.0 if n in floats else f.col(backticked(n)) for n in key]
