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

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError, OutputError, OutputRefusedError, TidelogError
from tidelog.eventlog.message_schemas import MessageSchemaStore
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import evolving, jobs, ranges, tasks
from tidelog.outputs.base.evolving import ColumnChange
from tidelog.outputs.base.parts import SHARED_BYTES, TablePart, hash_partition_counts, spread
from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.rejections import StopAtRejection
from tidelog.outputs.base.tasks import Item, Work, Written
from tidelog.ports import (
    DeadLetters,
    Formatter,
    OutputBatch,
    SchemaFormatter,
    StateStore,
    TargetTable,
    TaskWriter,
    WriteTask,
)
from tidelog.spark.datasource.partitions import check_start, partitioned, schema_now, schemas_now
from tidelog.spark.datasource.source import register
from tidelog.spark.failures import find_error
from tidelog.spark.transforms import Step, steps_of, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One task folds or formats this much of a table alone, without a shuffle.
PART_BYTES = 32 << 20

_SESSION_CONF = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


@dataclass(frozen=True)
class Delivery:
    """How an output gets its rows; the options that all such outputs have."""

    name: str
    tables: tuple[str, ...] = ("*.*",)
    keyed: bool = True
    order: str = "key"  # of ordered delivery: key, total or none
    formatter: Formatter | None = None
    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    dead_letters: DeadLetters = field(default_factory=StopAtRejection)
    parallelism: int = 0  # 0: as Spark has cores
    part_bytes: int = PART_BYTES
    skipped: frozenset[str] = frozenset()  # operations of ordered delivery that are left out


class ExecutorOutput:
    """`tidelog.ports.Output`; an output implements `writer` and overrides what else it needs.

    Args:
        spark: any session; a session of our own beside it runs the jobs.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: what is delivered, and how.
    """

    def __init__(
        self, spark: SparkSession, log_path: str, state: StateStore, delivery: Delivery
    ) -> None:
        self.name = delivery.name
        self.delivery = delivery
        self.log = EventLog.open(log_path)
        self._log_path = log_path
        self._state = state
        self._spark = spark.newSession()
        for name, value in _SESSION_CONF.items():
            self._spark.conf.set(name, value)
        register(self._spark)
        self._progress: OutputProgress | None = None
        self._targets: dict[TableName, tuple[int, TargetTable]] = {}  # of which version
        self._schemas = MessageSchemaStore(self.log.storage)
        self._cores = delivery.parallelism or spark.sparkContext.defaultParallelism
        self._pool = ThreadPoolExecutor(max(1, min(4, self._cores)), thread_name_prefix=self.name)

    # ------------------------------------------------ what an output implements

    def writer(self) -> TaskWriter:
        """What writes on executors; not connected, picklable."""
        raise NotImplementedError

    def check(self, generation: str) -> None:
        """Can the destination be reached, and is it ours? Raises OutputError. On the driver, once
        per start.
        """

    def create(self, table: TargetTable) -> None:
        """Create the destination's table if it is not there. On the driver, before the first rows
        in each run, and those of other columns or another key.
        """

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        """Add and widen columns. On the driver; may come again. What can't be followed raises
        OutputRefusedError.
        """

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Delete the table's rows of a lower version (keyed delivery). On the driver, before the
        batch's rows. False: not done, the writers do it (`WriteTask.deleted_below`).
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

    # ------------------------------------------------ tidelog.ports.Output

    def prepare(self, generation: str) -> None:
        """Check the destination and, for all tables known so far, the steps."""
        if self.log.generation != generation:
            raise OutputRefusedError(
                f"output {self.name} reads generation {self.log.generation} of the event log, the "
                f"pipeline generation {generation}: restart the pipeline"
            )
        for key in self._state.keys("output/"):
            other = key.split("/")
            if other[2] == self.name and other[1] != generation:
                raise OutputRefusedError(
                    f"output {self.name} was filled from generation {other[1]} of the event log, "
                    f"this log is generation {generation}: it was recreated. Empty the "
                    "destination and give the output another name, then dump the tables again."
                )
        for table, schema in schemas_now(self.log).items():
            if matches(self.delivery.tables, table):
                self._table_of(schema)
        self.check(generation)
        self._progress = OutputProgress(self._state, generation, self.name)

    def write(self, batch: OutputBatch) -> None:
        """Bring the batch over, and what a failed one before it began."""
        progress = self._opened(batch.generation)
        # Never less than what was begun: a part of it may be there (see progress.py).
        end = max(batch.end, progress.begun)
        start = batch.start if progress.done is None else progress.done
        if start >= end:
            return
        check_start(self.log, start)
        whole = batch
        if (start, end) != (batch.start, batch.end):
            whole = ranges.batch_of(self.log, start, end)
        progress.begin(end)
        try:
            for part in self._parts(whole):
                self._write(part)
        except TidelogError:
            raise
        except Exception as error:
            ours = find_error(str(error))
            if ours is not None:
                raise ours from error
            raise OutputError(
                f"output {self.name}: writing offsets {start} to {end} failed with "
                f"{type(error).__name__}; Spark's log has more"
            ) from error
        progress.finish(end)

    def committed(self, table: TableName) -> int | None:
        held = self.held_until(table)
        if held is not None:
            return held
        return self._opened(self.log.generation).done

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._state.close()

    # ------------------------------------------------ planning

    def _opened(self, generation: str) -> OutputProgress:
        if self._progress is None:
            self._progress = OutputProgress(self._state, generation, self.name)
        return self._progress

    def _parts(self, batch: OutputBatch) -> list[OutputBatch]:
        """Changes are told as they were, each under its own schema; a key's newest state is told
        under the newest.
        """
        if self.delivery.keyed:
            return [batch]
        return ranges.of_one_schema(
            self.log, batch, lambda table: matches(self.delivery.tables, table)
        )

    def _write(self, batch: OutputBatch) -> None:
        gone = ranges.deleted_below(self.log, batch) if self.delivery.keyed else {}
        names = {str(each.table): each.table for each in batch.tables}
        with_rows = set(names)
        names |= {name: TableName.parse(name) for name in gone if name not in names}
        chosen = {n: t for n, t in sorted(names.items()) if matches(self.delivery.tables, t)}
        parts: list[TablePart] = []
        left: dict[str, int] = {}
        for name, table in chosen.items():
            target = self._target(table, batch)
            if target is None:
                continue
            if name in gone and not self.remove_below(target, gone[name]):
                left[name] = gone[name]
            refs = self._refs(table, batch) if name in with_rows else ()
            if refs or name in left:
                parts.append(TablePart(target, refs))
        if parts:
            ours = {name: version for name, version in gone.items() if name in chosen}
            task = WriteTask(self.name, batch.generation, batch.start, batch.end, 0, ours)
            self._run(self._work(task), parts, batch)

    def _work(self, task: WriteTask) -> Work:
        shape = "changes" if self.delivery.keyed else "events"
        delivery = self.delivery
        return Work(
            self._log_path,
            shape,
            task,
            self.writer(),
            delivery.formatter,
            delivery.dead_letters,
            tasks.armed(),
            frozenset() if delivery.keyed else delivery.skipped,
            frozenset(str(t.source) for _, t in self._targets.values() if self.takes_truncates(t)),
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

    def _target(self, table: TableName, batch: OutputBatch) -> TargetTable | None:
        """The table as it is delivered, after the destination has followed its schema."""
        schema = ranges.schema_in(self.log, table, batch.start, batch.end)
        if schema is None and self.delivery.keyed:  # rows of it are gone, no others are told
            schema = schema_now(self.log, table)
        if schema is None:
            return None
        number, known = self._targets.get(table, (0, None))
        if number == schema.schema_id:
            return known
        found = self._delivered(schema)
        progress = self._opened(batch.generation)
        columns = progress.columns.get(str(table))
        if columns is None:
            self.create(found)
            progress.remember(str(table), evolving.described(found.columns))
        else:
            policy = self.delivery.on_schema_change
            change = evolving.change(policy, str(table), columns, found.columns, found.key)
            found = replace(found, columns=change.delivered)
            if not steps_of(self.delivery.steps, table):
                delivered = ranges.delivered_schema(found.schema, change.delivered.names)
                found = replace(found, schema=delivered)
            self.create(found)  # its columns or its key are others now
            if change.alters:
                self.alter(found, change)
                progress.remember(str(table), change.remembered(columns))
        found = self._with_schema_ids(found)
        self._targets[table] = (schema.schema_id, found)
        return found

    def _delivered(self, schema: TableSchema) -> TargetTable:
        """The table as records of ``schema`` are delivered: under it or, where it is an old one
        that the steps don't fit any more, under the newest: a column that they would hide must not
        show by its old name.
        """
        try:
            return self._table_of(schema)
        except ConfigError:
            newest = schema_now(self.log, schema.table)
            if self.delivery.keyed or newest is None or newest.schema_id == schema.schema_id:
                raise
            return self._table_of(newest)

    def _with_schema_ids(self, table: TargetTable) -> TargetTable:
        formatter = self.delivery.formatter
        if not isinstance(formatter, SchemaFormatter):
            return table
        table = self._once_null(table)
        schemas, subject = formatter.schemas(table), self.subject(table)
        key = 0 if schemas.key is None else self._schemas.register(f"{subject}-key", schemas.key)
        value = self._schemas.register(f"{subject}-value", schemas.value)
        return replace(table, schema_ids=(key, value))

    def _once_null(self, table: TargetTable) -> TargetTable:
        """A column that was added or became NOT NULL may be null in records from before."""
        versions = self.log.schemas.versions(table.source)
        unchanged = dict(table.unchanged)
        for name, column in table.unchanged.items():
            found = [{each.name: each.nullable for each in v.columns} for v in versions]
            if any(of.get(column.name, True) for of in found):
                unchanged[name] = replace(column, nullable=True)
        return replace(table, unchanged=unchanged)

    def _table_of(self, schema: TableSchema) -> TargetTable:
        delivery = self.delivery
        found = target_table(
            self._spark,
            schema,
            delivery.steps,
            self.log.source,
            keyed=delivery.keyed,
        )
        if delivery.keyed and not found.key:
            raise OutputRefusedError(
                f"{found.source} has no primary key and no surrogate key: output {self.name} can't "
                "keep a copy. Exclude it from the output's tables, or name a surrogate key."
            )
        if isinstance(delivery.formatter, SchemaFormatter):
            delivery.formatter.schemas(found)  # can it tell all columns?
        return found

    # ------------------------------------------------ jobs

    def _run(self, work: Work, parts: Sequence[TablePart], batch: OutputBatch) -> None:
        delivery = self.delivery
        stepped = [p for p in parts if steps_of(delivery.steps, p.target.source)]
        if not delivery.keyed and delivery.order == "total":
            if stepped:
                raise OutputRefusedError(
                    f"output {self.name}: order total has no steps but route; use order key"
                )
            tables = [part.target for part in parts]
            names = tuple(str(table.source) for table in tables)
            refs = self.log.segments(batch.start, batch.end, tables=names)
            jobs.in_order(self._spark, work, tables, list(refs))
            return
        truncates = set()
        if not delivery.keyed and delivery.order == "key":
            truncates = set(ranges.truncated(self.log, batch.start, batch.end))
        alone: list[Item] = []
        whole: list[TablePart] = []
        todo: list[Callable[[], list[Written]]] = []
        for part in parts:
            steps = steps_of(delivery.steps, part.target.source)
            if not delivery.keyed and (
                not part.target.schema.match_key
                or str(part.target.source) in truncates
                or (delivery.order == "key" and _may_merge_keys(part.target))
            ):
                # Order among all of the table's rows: no shuffle by key keeps it.
                part = replace(part, refs=(part.together,))
            if steps and part.refs:
                todo.append(lambda part=part, steps=steps: self._frame(work, part, steps))  # type: ignore[misc]
            elif not delivery.keyed and delivery.order == "none":
                alone += [Item(part.target, refs) for refs in part.refs or ((),)]
            elif len(part.refs) < 2 or not delivery.keyed or part.size_bytes <= SHARED_BYTES:
                whole.append(part)
            else:
                todo.append(lambda part=part: self._frame(work, part, ()))  # type: ignore[misc]
        # Every task decodes all of a table that it shares, and formats and writes its keys alone.
        limits = [max(1, len(part.refs)) for part in whole]
        counts = hash_partition_counts([part.size_bytes for part in whole], limits, self._cores)
        for part, count in zip(whole, counts, strict=True):
            alone += [
                Item(part.target, part.together, (partition, count)) for partition in range(count)
            ]
        if alone:
            groups = spread(alone, self._cores)
            todo.insert(0, lambda: jobs.direct(self._spark, work, groups))
        futures = [self._pool.submit(each) for each in todo]
        failures = [error for each in futures if (error := each.exception()) is not None]
        if failures:
            raise failures[0]

    def _frame(self, work: Work, part: TablePart, steps: Sequence[Step]) -> list[Written]:
        return jobs.frame(
            self._spark,
            work,
            part.target,
            steps,
            part.refs,
            tasks_at_once=self._cores,
            ordered_by_key=not self.delivery.keyed and self.delivery.order == "key",
        )


def _may_merge_keys(table: TargetTable) -> bool:
    """May steps make one key of several, whose changes then fall to different tasks?"""
    lost = len(table.key) < len(table.schema.match_key)
    return lost or any(name not in table.unchanged for name in table.key)
