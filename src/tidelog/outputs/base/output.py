"""The base of outputs that write from executors: the driver plans, and sees no row.

*Keyed* delivery: for each table of a batch, the newest state of every key (op u or d, version,
columns, missing columns), for destinations that keep rows by key. *Ordered* delivery: every change,
ordered by key (one task writes all of a key's changes), in total, or in no order; usually as
messages of a formatter.

One task decodes and writes a small table without a shuffle, many such tables in one job
(`tidelog.outputs.base.scheduling.run_direct`); a table with transforms, or of more bytes, goes
through a DataFrame.

Delivery is at least once: progress is stored after all tasks have committed
(`tidelog.outputs.base.progress`), or read from the destination (`ExecutorOutput.table_offset`).
Tasks may run twice. It becomes exact because writers are idempotent by key and version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tidelog.errors import (
    ConcurrentCommitError,
    DecodeError,
    OutputError,
    OutputRefusedError,
    RowsLeftOutError,
    TableLeftOutError,
    TidelogError,
    ValueRefusedError,
)
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import ranges, schema_evolution, tasks
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.progress import DROPPED, RESTORED, OutputProgress, check_generation
from tidelog.outputs.base.scheduling import SHARED_BYTES, BatchPlan, JobScheduler, TablePart
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.targets import (
    CurrentTables,
    TargetTables,
    check_steps,
    require_generation,
    undecodable_rows_error,
)
from tidelog.outputs.base.tasks import BatchWork
from tidelog.ports import OutputBatch, StateStore, TargetTable, TaskWriter, WriteLease, WriteTask
from tidelog.spark.datasource.partitions import (
    check_start,
    partition_refs,
    schema_now,
    schemas_now,
    whole_segments,
)
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.datasource.source import prepare_workers
from tidelog.spark.session import EXACT_NAMES
from tidelog.spark.sessions.connect import by_jobs_alone, default_parallelism, session_beside
from tidelog.spark.sessions.errors import find_error, known_error, output_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    **EXACT_NAMES,
}


class ExecutorOutput:
    """`tidelog.ports.Output`. A kind of output implements `writer` and overrides only the hooks
    below it that it needs. All hooks run on the driver, in one thread.

    Args:
        spark: any session; jobs run in a new session beside it.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: what is delivered, and how.
    """

    repeats_same_batches: ClassVar[bool] = False
    """After a failed attempt, must its offsets be written again by themselves, before any others?
    For a destination that recognizes a repeated request only if it is the same."""
    frequent: ClassVar[bool] = False
    """May small batches come often? They leave no files."""
    removes_absent: ClassVar[bool] = False
    """With ordered delivery: is `remove_below` called after a dump of all rows of a table?"""

    def __init__(
        self, spark: SparkSession, log_path: str, state: StateStore, delivery: Delivery
    ) -> None:
        self.name = delivery.name
        self.delivery = delivery
        self.log = EventLog.open(log_path)
        self._log_path = log_path
        self._state = state
        self._lease: WriteLease | None = None
        self._spark = session_beside(spark, _SESSION_CONF)
        prepare_workers(self._spark)
        self._progress: OutputProgress | None = None
        self._ask: Callable[[Sequence[str]], None] | None = None
        self._targets = TargetTables(self._spark, self.log, delivery)
        self._current = CurrentTables(self.log, self._targets, delivery, state, self)
        self._jobs = JobScheduler(self._spark, self.log, delivery, self._cores)

    # ------------------------------------------------ what an output implements

    def writer(self) -> TaskWriter:
        """Return the writer for executors: not connected, picklable. Called for each batch, after
        `create`.
        """
        raise NotImplementedError

    def shuffled_writer(self, writer: TaskWriter) -> TaskWriter:
        """Return the writer, in place of ``writer``, for tasks that read a shuffle: Spark may run
        such a stage again, and its tasks can't detect that.
        """
        return writer

    def before_batch(self, *, again: bool) -> None:
        """Called before each batch. ``again``: an earlier attempt failed, or may have failed."""

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        """Surrounds the tasks of a batch: yields the writer for executors. The code after the yield
        runs after all tasks have committed. Not called for a batch with nothing for the output.
        """
        yield self.writer()

    def after_batch(self) -> None:
        """Called after each batch, once its progress is stored."""

    def check(self, generation: str) -> None:
        """Check that the destination can be reached and belongs to this output. Called once per
        start. Raises OutputError.
        """

    def create(self, table: TargetTable) -> None:
        """Create the destination's table if it does not exist. Called before the first rows in each
        run, and before the first rows with other columns or another key.
        """

    def has_table(self, table: TargetTable) -> bool:
        """Does the destination have the table? Called at a start with keyed delivery."""
        return True

    def address(self, table: TargetTable) -> str | None:
        """Return the part of the destination that no other table of the output may share, such as
        ``topic t``.
        """
        return None

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        """Add and widen columns; may be called again. OutputRefusedError: it is impossible."""

    def check_table(self, table: TargetTable) -> None:
        """Check that the destination's table can hold all rows, after `create` and `alter`. Raises
        TableLeftOutError if it can't.
        """

    def accepts_type(self, table: TargetTable, column: str, former: str) -> bool:
        """Return True if the destination's table takes the column's type unchanged, or does not
        exist.

        Called for columns whose type in the source changed from ``former`` (as
        `schema_evolution.stored_columns`): somebody may have altered the destination's table.
        """
        return False

    def remedy_for(self, table: TargetTable, columns: Sequence[str]) -> str:
        """Return what the user can do about columns of another type, for messages."""
        return schema_evolution.LEAVE_OUT

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Delete the table's rows of a lower version, now or in `writing`; with keyed delivery
        before the batch's rows. Returns False if the writers do it (`WriteTask.deleted_below`).
        """
        return False

    def subject(self, table: TargetTable) -> str:
        """Return the subject under which the schemas of the table's messages are registered."""
        return table.name

    def needs_truncates(self, table: TargetTable) -> bool:
        """Return True if the table's truncates must be delivered even where they are skipped."""
        return False

    def table_offset(self, table: TableName) -> int | None:
        """Return the offset below which the destination has all of the table; None: unknown."""
        return None

    def reached_offset(self) -> int:
        """Return an offset that the destination's records have reached, as read from the
        destination: the state store may have been restored to an earlier copy. 0: unknown.
        """
        return 0

    # ------------------------------------------------ tidelog.ports.Output

    def set_lease(self, lease: WriteLease) -> None:
        """See `tidelog.ports.LedOutput`."""
        self._lease = lease

    @property
    def epoch(self) -> int:
        """The epoch of the lease, for destinations that compare it; 0: there is no lease."""
        return 0 if self._lease is None else self._lease.epoch

    @property
    def keyed(self) -> bool:
        """Does the output keep copies, which a whole dump repairs, whatever rows are missing?"""
        return self.delivery.keyed

    def prepare(self, generation: str) -> None:
        """Check the destination and, for all tables known so far, the steps."""
        require_generation(self.log, generation, self.name)
        check_generation(self._state, generation, self.name)
        chosen = [s for table, s in schemas_now(self.log).items() if self._is_selected(table)]
        refused = []
        for schema in chosen:
            try:
                self._targets.target_of(schema)
            except TableLeftOutError as error:  # reported with its first rows
                refused.append(error)
        check_steps(refused, len(chosen))
        self.check(generation)
        self._progress = OutputProgress(self._state, generation, self.name)
        known = (self._progress.done or 0, self._progress.begun, self.reached_offset())
        self.log.check_offsets(*known, who=f"output {self.name}")

    def end_of_batch(self, start: int, end: int) -> int:
        """See `tidelog.ports.BoundedOutput`."""
        if not self.delivery.keyed:
            return end
        return whole_segments(self.log, start, end, SHARED_BYTES, self.delivery.tables)

    def write(self, batch: OutputBatch) -> None:
        """Write the batch, and first what a failed batch before it began."""
        progress = self._progress_of(batch.generation)
        if self.repeats_same_batches:
            start = batch.start if progress.done is None else progress.done
            if start < progress.begun < batch.end:
                self._deliver(batch_of(self.log, start, progress.begun), progress)
        self._deliver(batch, progress)
        self.after_batch()

    def committed(self, table: TableName) -> int | None:
        # A batch without rows of the output is noted in the state alone.
        known = (self.table_offset(table), self._progress_of(self.log.generation).done)
        return max((each for each in known if each is not None), default=None)

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return self._progress_of(self.log.generation).rejected

    def left_out_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self._current.left_out.messages()

    def keyless_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self._current.left_out.keyless()

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        self._current.take_again(ask, self._progress_of(self.log.generation))

    def replace_dropped(
        self, tables: Collection[str], ask: Callable[[Sequence[str]], None]
    ) -> None:
        """See `tidelog.ports.CopyingOutput`."""
        self._ask = ask
        requested = self.request_if_restored(tables)
        dropped: list[TargetTable] = []
        for schema in self._copied(tables):
            with suppress(TableLeftOutError):  # reported with its first rows
                target = self._targets.target_of(schema)
                dropped += [] if self.has_table(target) else [target]
        names = sorted(str(each.source) for each in dropped)
        if missing := [name for name in names if name not in requested]:
            logger.warning(DROPPED, self.name, ", ".join(missing))
            ask(missing)
        for target in dropped:
            with suppress(TableLeftOutError):
                self.create(target)

    def request_if_restored(self, tables: Collection[str] | None = None) -> Sequence[str]:
        """Request dumps of ``tables`` (None: of all) if the destination lost rows that were written
        to it. Returns the tables.
        """
        progress = self._progress_of(self.log.generation)
        if self._ask is None or not 0 < progress.written > self.reached_offset():
            return ()
        names = sorted(str(schema.table) for schema in self._copied(tables))
        logger.warning(RESTORED, self.name, ", ".join(names))
        self._ask(names)
        progress.forget_written()
        return names

    def _copied(self, tables: Collection[str] | None) -> list[TableSchema]:
        """Return the newest schemas of those of ``tables`` (None: of all) that have copies."""
        if not self.keyed:
            return []
        known = {str(t): s for t, s in schemas_now(self.log).items() if self._is_selected(t)}
        taken = self._current.left_out.taken(known if tables is None else tables)
        return [s for name, s in known.items() if name in taken and s.match_key]

    def close(self) -> None:
        self._jobs.close()
        self._state.close()

    # ------------------------------------------------ planning

    def _progress_of(self, generation: str) -> OutputProgress:
        if self._progress is None:
            self._progress = OutputProgress(self._state, generation, self.name)
        return self._progress

    def _is_selected(self, table: TableName) -> bool:
        return matches(self.delivery.tables, table)

    def _deliver(self, batch: OutputBatch, progress: OutputProgress) -> None:
        self._check_lease()
        self.before_batch(again=progress.begun > (progress.done or 0))
        # Never less than an earlier attempt began: a part of it may be there (see progress.py).
        end = max(batch.end, progress.begun)
        start = batch.start if progress.done is None else max(progress.done, batch.resume)
        if start >= end:
            return
        check_start(self.log, start, f"output {self.name}")
        whole = batch
        if (start, end) != (batch.start, batch.end):
            whole = batch_of(self.log, start, end)
        progress.begin(end)
        self._current.begin_dumps(whole.started, start)
        try:
            rejected = self._write_fitting(whole)
        except ConcurrentCommitError as error:
            self._check_lease()
            if self._lease is None:
                raise
            # Under our lease only a driver that was taken for dead can have committed, just before.
            raise OutputError(str(error)) from error
        except TidelogError:
            raise
        except Exception as error:
            ours = find_error(str(error))
            if ours is not None:
                raise ours from error
            what = f"output {self.name}: writing offsets {start} to {end}"
            raise output_error(what, error) from error
        progress.finish(end, rejected)
        self._current.left_out.remove_dumped(whole.completed)

    def _write_fitting(self, batch: OutputBatch) -> int:
        """Write a batch, without tables of which a row can't be written, and return the number of
        rejected records. After such an error the batch is written again: what of it is there is
        recognized. An output of changes stops instead, because rows that it leaves out are changes,
        which no dump delivers; but not for a value that can't be decoded, or not as the option
        ``types`` says, which no repair of the destination would make fit.
        """
        while True:
            try:
                return sum(self._write(piece) for piece in self._split(batch))
            except Exception as error:
                ours = known_error(error)
                by_value = isinstance(ours, DecodeError | ValueRefusedError)
                if isinstance(ours, DecodeError):
                    ours = undecodable_rows_error(ours)
                if not isinstance(ours, RowsLeftOutError):
                    raise
                if not (self.delivery.keyed or by_value):
                    raise OutputRefusedError(str(ours)) from error
                self._current.leave_out(ours, batch.start)

    def _split(self, batch: OutputBatch) -> list[OutputBatch]:
        """Split a batch so that every change is delivered under its own schema; a key's newest
        state is delivered under the newest schema, and records from before the table had a key are
        left out.
        """
        if not self.delivery.keyed:
            return ranges.split_by_schema(self.log, batch, self._is_selected)
        return ranges.split_by_key(self.log, batch)

    def _write(self, batch: OutputBatch) -> int:
        """Write a part of a batch and return the number of rejected records."""
        whole = self._current.left_out.complete_dumps(batch.completed, batch.start)
        batch = replace(batch, completed=whole)
        names = {str(each.table): each.table for each in batch.tables}
        removal_versions = self._removal_versions(batch, names)
        with_rows = set(names)
        names |= {name: TableName.parse(name) for name in removal_versions if name not in names}
        chosen = {n: t for n, t in sorted(names.items()) if self._is_selected(t)}
        parts: list[TablePart] = []
        removed: dict[TableName, int] = {}
        for name, table in chosen.items():
            target = self._target(table, batch, is_removed=name in removal_versions)
            if target is None:
                continue
            if name in removal_versions and self.remove_below(target, removal_versions[name]):
                removed[table] = removal_versions[name]
            refs = self._refs(table, batch) if name in with_rows else ()
            if refs or (self.delivery.keyed and name in removal_versions and table not in removed):
                parts.append(TablePart(target, refs))
        parts += self._messages(batch)
        if not parts and not removed:
            return 0
        rejected = 0
        tables = tuple(part.target for part in parts)
        most = max((len(part.refs) for part in parts), default=0)
        with self.writing(BatchPlan(batch, tables, max(self._cores(), most), removed)) as writer:
            if parts:
                ours = {
                    name: version
                    for name, version in removal_versions.items()
                    if name in chosen and self.delivery.keyed
                }
                where = (self.name, batch.generation, batch.start, batch.end)
                task = WriteTask(*where, 0, ours, self.epoch)
                self._check_lease()
                work = self._work(task, writer)
                rejected = self._jobs.run(work, self.shuffled_writer(writer), parts, batch)
                self._check_lease()
        return rejected

    def _cores(self) -> int:
        """Return the number of tasks that run at once now: executors come and go."""
        return self.delivery.parallelism or default_parallelism(self._spark)

    def _removal_versions(self, batch: OutputBatch, with_rows: Collection[str]) -> dict[str, int]:
        """Return, by table, the version below which rows must be removed."""
        if self.delivery.keyed:
            return ranges.deleted_below(self.log, batch)
        dumps = ranges.whole_dumps(batch) if self.removes_absent else {}
        known = self._progress_of(batch.generation).columns.keys() | with_rows
        return {name: done.first_offset for name, done in dumps.items() if name in known}

    def _messages(self, batch: OutputBatch) -> list[TablePart]:
        """Return the source's logical messages, if the output wants them and there are some."""
        if self.delivery.messages is None:
            return []
        refs = ranges.segments_with_messages(self.log, batch.start, batch.end)
        if not refs:
            return []
        target = self._current.find(ranges.MESSAGES_TABLE)
        if target is None:
            target = ranges.message_target(self.log)
            self.create(target)
            self._current.add(target)
        return [TablePart(target, (refs,))]

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _work(self, task: WriteTask, writer: TaskWriter) -> BatchWork:
        delivery = self.delivery
        return BatchWork(
            self._log_path,
            "changes" if delivery.keyed else "events",
            task,
            writer,
            delivery.formatter,
            delivery.dead_letters,
            tasks.armed_failpoints(),
            frozenset() if delivery.keyed else delivery.skipped,
            frozenset(str(t.source) for t in self._current.all() if self.needs_truncates(t)),
            None if self._lease is None else self._lease.tasks,
        )

    def _refs(self, table: TableName, batch: OutputBatch) -> tuple[tuple[SegmentRef, ...], ...]:
        start = max(batch.start, self.table_offset(table) or 0)
        if start >= batch.end:
            return ()
        refs = ranges.refs_of(self.log, table, start, batch.end)
        if not refs:
            return ()
        split = partition_refs(refs, partition_bytes=self.delivery.part_bytes, partitions=None)
        return tuple(tuple(run) for run in split)

    def _target(
        self, table: TableName, batch: OutputBatch, *, is_removed: bool
    ) -> TargetTable | None:
        """Return the table as it is delivered, after the destination has followed its schema."""
        schema = ranges.schema_in(self.log, table, batch.start, batch.end)
        if schema is None and self.delivery.keyed:  # rows were removed, none written
            schema = schema_now(self.log, table)
        elif schema is None and is_removed:
            schema = ranges.schema_before(self.log, table, batch.end)
        if schema is None:
            return None
        return self._current.current_table(schema, batch.start, self._progress_of(batch.generation))


class PluginOutput(ExecutorOutput):
    """An output whose writer is created by the function ``make``, on the driver, for each batch. It
    runs in Spark's Python workers alone: it may rely on a process of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        make: Callable[[], TaskWriter],
    ) -> None:
        super().__init__(by_jobs_alone(spark), log_path, state, delivery)
        self._make = make

    def writer(self) -> TaskWriter:
        return self._make()
