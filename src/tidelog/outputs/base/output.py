"""The base of outputs that write from executors: the driver plans, and sees no row.

*Keyed* delivery: of each table of a batch, the newest state of every key (op u or d, version,
columns, missing), for destinations that keep rows by key. *Ordered* delivery: every change, in
order by key (a key's changes are all written by one task), in total, or as it comes; usually as
messages of a formatter.

A table that one task can read is decoded and written by that task without a shuffle, many such
tables in one job (`jobs.direct`); one with transforms, or of more bytes, goes through a DataFrame.

Delivery is at least once: progress is noted after all tasks have committed
(`tidelog.outputs.base.progress`), or read from the destination (`ExecutorOutput.held_until`). Tasks
may run twice. What makes it exact is that writers are idempotent by key and version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from tidelog.errors import OutputError, OvertakenError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.outputs.base import evolving, logical_messages, ranges
from tidelog.outputs.base.current_tables import CurrentTables
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.evolving import ColumnChange
from tidelog.outputs.base.executors import tasks
from tidelog.outputs.base.executors.tasks import Work
from tidelog.outputs.base.parts import BatchPlan, TablePart
from tidelog.outputs.base.progress import OutputProgress, check_generation
from tidelog.outputs.base.scheduling import JobScheduler
from tidelog.outputs.base.targets import TargetTables, require_generation
from tidelog.ports import (
    OutputBatch,
    StateStore,
    TargetTable,
    TaskWriter,
    WriteLease,
    WriteTask,
)
from tidelog.spark.changes.batches import batch_of
from tidelog.spark.datasource.partitions import check_start, partitioned, schema_now, schemas_now
from tidelog.spark.datasource.source import register
from tidelog.spark.failures import find_error, output_failed
from tidelog.spark.sessions.exact_names import EXACT_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    **EXACT_NAMES,
}


class ExecutorOutput:
    """`tidelog.ports.Output`; a kind of output implements `writer` and overrides the hooks below it
    that it needs, nothing else. All hooks run on the driver, in one thread.

    Args:
        spark: any session; a session of our own beside it runs the jobs.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: what is delivered, and how.
    """

    repeats_as_begun: ClassVar[bool] = False
    """After a failed try: must its offsets be written again by themselves, before any that follow?
    For a destination that knows a request again only if it is the same."""
    removes_absent: ClassVar[bool] = False
    """Of ordered delivery: is `remove_below` called after a dump of all rows of a table?"""

    def __init__(
        self, spark: SparkSession, log_path: str, state: StateStore, delivery: Delivery
    ) -> None:
        self.name = delivery.name
        self.delivery = delivery
        self.log = EventLog.open(log_path)
        self._log_path = log_path
        self._state = state
        self._lease: WriteLease | None = None
        self._spark = spark.newSession()
        for name, value in _SESSION_CONF.items():
            self._spark.conf.set(name, value)
        register(self._spark)
        self._progress: OutputProgress | None = None
        self._targets = TargetTables(self._spark, self.log, delivery)
        self._current = CurrentTables(self.log, self._targets, delivery, state, self)
        self._jobs = JobScheduler(self._spark, self.log, delivery, self._cores)

    # ------------------------------------------------ what an output implements

    def writer(self) -> TaskWriter:
        """What writes on executors; not connected, picklable. For each batch, after `create`."""
        raise NotImplementedError

    def shuffled_writer(self, writer: TaskWriter) -> TaskWriter:
        """What writes in tasks that read a shuffle, in place of ``writer``: Spark may run such a
        stage again, which its tasks can't tell.
        """
        return writer

    def begin(self, *, again: bool) -> None:
        """Before each batch. ``again``: a try of it failed, or may have."""

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        """Around the tasks of a batch: yields what writes on executors. What follows the yield runs
        after all tasks have committed. Not entered for a batch without anything for the output.
        """
        yield self.writer()

    def finished(self) -> None:
        """After each batch, once its progress is noted."""

    def check(self, generation: str) -> None:
        """Can the destination be reached, and is it ours? Raises OutputError. Once per start."""

    def create(self, table: TargetTable) -> None:
        """Create the destination's table if it is not there. Before the first rows in each run, and
        before those of other columns or another key.
        """

    def address(self, table: TargetTable) -> str | None:
        """What of the destination no other table of the output may share, such as ``topic t``."""
        return None

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        """Add and widen columns; may come again. Raises OutputRefusedError if it can't be done."""

    def takes(self, table: TargetTable, column: str, former: str) -> bool:
        """Does the destination's table take the column's type as it is, or is it not there? Asked
        of columns whose type changed in the source from ``former`` (as `evolving.described`):
        somebody may have altered it.
        """
        return False

    def way_out(self, table: TargetTable, columns: Sequence[str]) -> str:
        """What can be done about columns of another type, for messages."""
        return evolving.LEAVE_OUT

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Delete the table's rows of a lower version, now or in `writing`; before the batch's rows
        with keyed delivery. False: not done, the writers do it (`WriteTask.deleted_below`).
        """
        return False

    def subject(self, table: TargetTable) -> str:
        """What the schemas of its messages are kept under."""
        return table.name

    def takes_truncates(self, table: TargetTable) -> bool:
        """Must it hear of the table's truncates, also where these are skipped?"""
        return False

    def held_until(self, table: TableName) -> int | None:
        """The offset below which the destination holds everything of the table, if it can tell."""
        return None

    def reached(self) -> int:
        """An offset up to which records were brought to the destination, as it says itself: the
        state may have been put back to an earlier copy. 0: it can't tell.
        """
        return 0

    # ------------------------------------------------ tidelog.ports.Output

    def led_by(self, lease: WriteLease) -> None:
        """See `tidelog.ports.LedOutput`."""
        self._lease = lease

    @property
    def epoch(self) -> int:
        """The epoch of the lease, for destinations that compare it; 0: there is none."""
        return 0 if self._lease is None else self._lease.epoch

    @property
    def keyed(self) -> bool:
        """Does it keep copies, which a whole dump makes right, whatever they lack?"""
        return self.delivery.keyed

    def prepare(self, generation: str) -> None:
        """Check the destination and, for all tables known so far, the steps."""
        require_generation(self.log, generation, self.name)
        check_generation(self._state, generation, self.name)
        for table, schema in schemas_now(self.log).items():
            if self._takes_table(table):
                self._targets.of(schema)
        self.check(generation)
        self._progress = OutputProgress(self._state, generation, self.name)
        known = (self._progress.done or 0, self._progress.begun, self.reached())
        self.log.check_offsets(*known, who=f"output {self.name}")

    def write(self, batch: OutputBatch) -> None:
        """Bring the batch over, and what a failed one before it began."""
        progress = self._opened(batch.generation)
        if self.repeats_as_begun:
            start = batch.start if progress.done is None else progress.done
            if start < progress.begun < batch.end:
                self._bring(batch_of(self.log, start, progress.begun), progress)
        self._bring(batch, progress)
        self.finished()

    def committed(self, table: TableName) -> int | None:
        # A batch without rows of the output is noted in the state alone.
        known = (self.held_until(table), self._opened(self.log.generation).done)
        return max((each for each in known if each is not None), default=None)

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return self._opened(self.log.generation).rejected

    def refused_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self._current.refused.messages()

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        self._current.take_again(ask, self._opened(self.log.generation))

    def close(self) -> None:
        self._jobs.close()
        self._state.close()

    # ------------------------------------------------ planning

    def _opened(self, generation: str) -> OutputProgress:
        if self._progress is None:
            self._progress = OutputProgress(self._state, generation, self.name)
        return self._progress

    def _takes_table(self, table: TableName) -> bool:
        return matches(self.delivery.tables, table)

    def _bring(self, batch: OutputBatch, progress: OutputProgress) -> None:
        self._check_lease()
        self.begin(again=progress.begun > (progress.done or 0))
        # Never less than what was begun: a part of it may be there (see progress.py).
        end = max(batch.end, progress.begun)
        start = batch.start if progress.done is None else max(progress.done, batch.resume)
        if start >= end:
            return
        check_start(self.log, start, f"output {self.name}")
        whole = batch
        if (start, end) != (batch.start, batch.end):
            whole = batch_of(self.log, start, end)
        progress.begin(end)
        try:
            rejected = sum(self._write(piece) for piece in self._pieces(whole))
        except OvertakenError as error:
            self._check_lease()
            if self._lease is None:
                raise
            # Under our lease only a driver that was taken for dead can have done it, just before.
            raise OutputError(str(error)) from error
        except TidelogError:
            raise
        except Exception as error:
            ours = find_error(str(error))
            if ours is not None:
                raise ours from error
            what = f"output {self.name}: writing offsets {start} to {end}"
            raise output_failed(what, error) from error
        progress.finish(end, rejected)
        dumps = ranges.whole_dumps(whole)
        self._current.refused.dumped({name: each.first_offset for name, each in dumps.items()})

    def _pieces(self, batch: OutputBatch) -> list[OutputBatch]:
        """Changes are told as they were, each under its own schema; a key's newest state is told
        under the newest.
        """
        if self.delivery.keyed:
            return [batch]
        return ranges.of_one_schema(self.log, batch, self._takes_table)

    def _write(self, batch: OutputBatch) -> int:
        """How many records were rejected?"""
        names = {str(each.table): each.table for each in batch.tables}
        gone = self._gone(batch, names)
        with_rows = set(names)
        names |= {name: TableName.parse(name) for name in gone if name not in names}
        chosen = {n: t for n, t in sorted(names.items()) if self._takes_table(t)}
        parts: list[TablePart] = []
        removed: dict[TableName, int] = {}
        for name, table in chosen.items():
            target = self._target(table, batch, gone=name in gone)
            if target is None:
                continue
            if name in gone and self.remove_below(target, gone[name]):
                removed[table] = gone[name]
            refs = self._refs(table, batch) if name in with_rows else ()
            if refs or (self.delivery.keyed and name in gone and table not in removed):
                parts.append(TablePart(target, refs))
        parts += self._messages(batch)
        if not parts and not removed:
            return 0
        rejected = 0
        tables = tuple(part.target for part in parts)
        most = max((len(part.refs) for part in parts), default=0)
        with self.writing(BatchPlan(batch, tables, max(self._cores(), most), removed)) as writer:
            if parts:
                ours = {n: v for n, v in gone.items() if n in chosen and self.delivery.keyed}
                where = (self.name, batch.generation, batch.start, batch.end)
                task = WriteTask(*where, 0, ours, self.epoch)
                self._check_lease()
                work = self._work(task, writer)
                rejected = self._jobs.run(work, self.shuffled_writer(writer), parts, batch)
                self._check_lease()
        return rejected

    def _cores(self) -> int:
        """How many tasks run at once now: executors come and go."""
        return self.delivery.parallelism or self._spark.sparkContext.defaultParallelism

    def _gone(self, batch: OutputBatch, with_rows: Collection[str]) -> dict[str, int]:
        """By table, the version below which rows are to be removed."""
        if self.delivery.keyed:
            return ranges.deleted_below(self.log, batch)
        dumps = ranges.whole_dumps(batch) if self.removes_absent else {}
        known = self._opened(batch.generation).columns.keys() | with_rows
        return {name: done.first_offset for name, done in dumps.items() if name in known}

    def _messages(self, batch: OutputBatch) -> list[TablePart]:
        """The source's logical messages, where the output wants them and there are some."""
        if self.delivery.messages is None:
            return []
        refs = logical_messages.refs_of(self.log, batch.start, batch.end)
        if not refs:
            return []
        target = self._current.find(logical_messages.MESSAGES)
        if target is None:
            target = logical_messages.target(self.log)
            self.create(target)
            self._current.add(target)
        return [TablePart(target, (refs,))]

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _work(self, task: WriteTask, writer: TaskWriter) -> Work:
        delivery = self.delivery
        return Work(
            self._log_path,
            "changes" if delivery.keyed else "events",
            task,
            writer,
            delivery.formatter,
            delivery.dead_letters,
            tasks.armed(),
            frozenset() if delivery.keyed else delivery.skipped,
            frozenset(str(t.source) for t in self._current.all() if self.takes_truncates(t)),
            None if self._lease is None else self._lease.tasks,
        )

    def _refs(self, table: TableName, batch: OutputBatch) -> tuple[tuple[SegmentRef, ...], ...]:
        start = max(batch.start, self.held_until(table) or 0)
        if start >= batch.end:
            return ()
        refs = ranges.refs_of(self.log, table, start, batch.end)
        if not refs:
            return ()
        split = partitioned(refs, partition_bytes=self.delivery.part_bytes, partitions=None)
        return tuple(tuple(run) for run in split)

    def _target(self, table: TableName, batch: OutputBatch, *, gone: bool) -> TargetTable | None:
        """The table as it is delivered, after the destination has followed its schema."""
        schema = ranges.schema_in(self.log, table, batch.start, batch.end)
        if schema is None and self.delivery.keyed:  # rows of it are gone, no others are told
            schema = schema_now(self.log, table)
        elif schema is None and gone:
            schema = ranges.schema_before(self.log, table, batch.end)
        if schema is None:
            return None
        return self._current.of(schema, batch.start, self._opened(batch.generation))
