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
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import ranges, tasks
from tidelog.outputs.base.left_out import DROPPED, RESTORED, undecodable_rows_error
from tidelog.outputs.base.progress import OutputProgress, check_generation
from tidelog.outputs.base.scheduling import SHARED_BYTES, BatchPlan, JobScheduler, TablePart
from tidelog.outputs.base.targets import CurrentTables, TableOutput, TargetTables
from tidelog.outputs.base.tasks import BatchWork
from tidelog.outputs.base.writer import Delivery
from tidelog.ports import OutputBatch, StateStore, TargetTable, TaskWriter, WriteTask
from tidelog.spark.datasource.partitions import (
    check_start,
    partition_refs,
    schema_now,
    whole_segments,
)
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.session import EXACT_NAMES
from tidelog.spark.sessions.connect import by_jobs_alone, session_beside
from tidelog.spark.sessions.errors import find_error, known_error, output_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    **EXACT_NAMES,
}


class ExecutorOutput(TableOutput):
    """`tidelog.ports.Output`. A kind of output implements `writer` and overrides only the hooks
    below it, and of `TableOutput`, that it needs. All run on the driver, in one thread.

    Args:
        spark: any session; jobs run in a new session beside it.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: what is delivered, and how.
    """

    _state: StateStore  # it always has one

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
        super().__init__(
            session_beside(spark, _SESSION_CONF),
            log_path,
            name=delivery.name,
            tables=delivery.tables,
            state=state,
            settings=(
                delivery.steps,
                delivery.types,
                delivery.on_schema_change,
                type(delivery.dead_letters),
            ),
        )
        self.delivery = delivery
        self.keyed = delivery.keyed
        self._read_progress: OutputProgress | None = None
        self._targets = TargetTables(self, delivery)
        self._current = CurrentTables(self._targets, delivery, self)
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

    def table_offset(self, table: TableName) -> int | None:
        """Return the offset below which the destination has all of the table; None: unknown."""
        return None

    def reached_offset(self) -> int:
        """Return an offset that the destination's records have reached, as read from the
        destination: the state store may have been restored to an earlier copy. 0: unknown.
        """
        return 0

    # ------------------------------------------------ tidelog.ports.Output

    def prepare(self, generation: str) -> None:
        """Check the destination and, for all tables known so far, the steps."""
        super().prepare(generation)
        check_generation(self._state, generation, self.name)
        self._check_tables(self._targets.target_of)  # left out with their first rows
        self.check(generation)
        self._read_progress = None  # another process may have stored it since
        known = (self._progress.done or 0, self._progress.begun, self.reached_offset())
        self.log.check_offsets(*known, who=f"output {self.name}")

    def end_of_batch(self, start: int, end: int) -> int:
        """See `tidelog.ports.BoundedOutput`."""
        if not self.delivery.keyed:
            return end
        return whole_segments(self.log, start, end, SHARED_BYTES, self.delivery.tables)

    def write(self, batch: OutputBatch) -> None:
        """Write the batch, and first what a failed batch before it began."""
        progress = self._progress
        if self.repeats_same_batches:
            start = batch.start if progress.done is None else progress.done
            if start < progress.begun < batch.end:
                self._deliver(batch_of(self.log, start, progress.begun))
        self._deliver(batch)
        self.after_batch()

    def committed(self, table: TableName) -> int | None:
        # A batch without rows of the output is noted in the state alone.
        known = (self.table_offset(table), self._progress.done)
        return max((each for each in known if each is not None), default=None)

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return self._progress.rejected

    def replace_dropped(
        self, tables: Collection[str], ask: Callable[[Sequence[str]], None]
    ) -> None:
        """See `tidelog.ports.CopyingOutput`."""
        self.dumps.ask = ask
        requested = self.request_if_restored(tables)
        dropped: list[TargetTable] = []
        for schema in self._copied(tables):
            with suppress(TableLeftOutError):  # reported with its first rows
                target = self._targets.target_of(schema)
                dropped += [] if self.has_table(target) else [target]
        names = {str(each.source) for each in dropped}.difference(requested)
        if names:
            self.dumps.request(DROPPED, names)
        for target in dropped:
            with suppress(TableLeftOutError):
                self.create(target)

    def request_if_restored(self, tables: Collection[str] | None = None) -> Sequence[str]:
        """Request dumps of ``tables`` (None: of all) if the destination lost rows that were written
        to it. Returns the tables.
        """
        progress = self._progress
        if self.dumps.ask is None or not 0 < progress.written > self.reached_offset():
            return ()
        names = [str(schema.table) for schema in self._copied(tables)]
        self.dumps.request(RESTORED, names)
        progress.forget_written()
        return names

    def _copied(self, tables: Collection[str] | None) -> list[TableSchema]:
        """Return the newest schemas of those of ``tables`` (None: of all) that have copies."""
        if not self.keyed:
            return []
        known = {str(table): schema for table, schema in self._schemas().items()}
        taken = self.left_out.taken(known if tables is None else tables)
        return [s for name, s in known.items() if name in taken and s.match_key]

    def close(self) -> None:
        self._jobs.close()
        super().close()

    # ------------------------------------------------ planning

    @property
    def _progress(self) -> OutputProgress:
        if self._read_progress is None:
            self._read_progress = OutputProgress(self._state, self.log.generation, self.name)
        return self._read_progress

    def _deliver(self, batch: OutputBatch) -> None:
        progress = self._progress
        self.lease.check()
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
        self._current.begin_dumps(whole)
        try:
            rejected = self._write_fitting(whole)
        except ConcurrentCommitError as error:
            self.lease.check()
            if not self.lease.epoch:
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
        self.left_out.remove_dumped(whole.completed)

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
        batch = self.left_out.with_complete_dumps(batch)
        with_rows = {str(each.table) for each in batch.tables}
        removal_versions = self._removal_versions(batch, with_rows)
        names = ranges.tables_of(batch, list(removal_versions))
        chosen = {name: table for name, table in names.items() if self._is_selected(table)}
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
                self.lease.check()
                work = self._work(self._task(batch, ours), writer)
                rejected = self._jobs.run(work, self.shuffled_writer(writer), parts, batch)
                self.lease.check()
        return rejected

    def _cores(self) -> int:
        return self.delivery.parallelism or super()._cores()

    def _removal_versions(self, batch: OutputBatch, with_rows: Collection[str]) -> dict[str, int]:
        """Return, by table, the version below which rows must be removed."""
        if self.delivery.keyed:
            return ranges.deleted_below(self.log, batch)
        dumps = ranges.whole_dumps(batch) if self.removes_absent else {}
        known = self._progress.columns.keys() | with_rows
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

    def _task(self, batch: OutputBatch, deleted_below: Mapping[str, int]) -> WriteTask:
        where = (self.name, batch.generation, batch.start, batch.end)
        return WriteTask(*where, 0, deleted_below, self.lease.epoch, self.lease.tasks)

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
        return self._current.current_table(schema, batch.start, self._progress)

    def _prepare_table(self, schema: TableSchema) -> None:
        self._current.take_again(schema, self._progress)


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
