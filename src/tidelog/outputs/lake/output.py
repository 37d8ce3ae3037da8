"""What the outputs into a lake have in common: a copy of each table, kept by MERGE, exactly once.

Per batch and table: executors decode the range and fold it to the newest state per key; one MERGE
brings it over. What is done is read from the table itself: a MERGE commits the batch's end offset
together with the rows, and a batch's part below the committed offset is skipped. So a batch may
come again, cut differently, also from a new checkpoint. Names in SQL are quoted by
`tidelog.spark.transforms.quoted`.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidelog.codecs.partial_rows import columns_that_may_lack
from tidelog.errors import NameRefusedError, OutputBusyError, OutputError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.progress import RefusedNames
from tidelog.outputs.base.ranges import (
    batch_of,
    deleted_below,
    delivered_schema,
    refs_of,
    schema_in,
    whole_dumps,
)
from tidelog.outputs.base.targets import keyless, require_generation
from tidelog.outputs.lake import rows as lake_rows
from tidelog.outputs.lake.reasons import CONFLICT, reason_of
from tidelog.outputs.lake.restored import start_of
from tidelog.outputs.lake.table import LakeTable, check_place
from tidelog.ports import OutputBatch, StateStore, TableRange, TargetTable, WriteLease
from tidelog.spark import failures, transforms
from tidelog.spark.changes import folding
from tidelog.spark.datasource.partitions import partitioned, schemas_now
from tidelog.spark.datasource.source import register
from tidelog.spark.sessions.exact_names import exact_session, in_session
from tidelog.spark.transforms import Step, destination_name, steps_of, target_table
from tidelog.system import failpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# One task folds this much alone, without a shuffle; more is folded in parts and then by Spark.
_PART_BYTES = 512 << 20

# Settings of sessions that run our MERGEs.
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True)
class LakeOptions:
    """What can be chosen of the copies.

    Attributes:
        steps: transforms of rows, and routes of tables.
        on_schema_change: evolve, lenient, ignore or fail.
        soft_deletes: deleted rows stay, with true in the column ``_deleted``.
        partition_by: columns by table or pattern; the first that matches.
        optimize_every_s: after so long small files of tables that were written are rewritten.
        vacuum_after_s: then files of versions older than this are removed.
    """

    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    soft_deletes: bool = False
    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    optimize_every_s: float | None = None
    vacuum_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """The work for one table in one batch."""

    table: TableName
    start: int
    end: int
    has_rows: bool
    deleted_below: int  # rows of a lower version are gone from the source (truncate, full dump)


class LakeOutput(ABC):
    """`tidelog.ports.Output` over tables of a lake; `_open` says which.

    Args:
        spark: a session that can write them.
        log_path: the event log that batches refer to.
        tables: names or patterns; empty: all.
        name: tells this output from others of the same log.
        options: see there.
        parallel_tables: how many tables are merged at once.
        state: keeps which tables are left out for their names; None: such a table stops it.
    """

    product: str  # what tables are kept in, for messages
    keyed = True  # copies, which a whole dump makes right, whatever they lack

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
        self.name = name
        self._spark = spark
        self._reading = exact_session(spark)
        register(self._reading)
        self._log = EventLog.open(log_path)
        self._log_path = log_path
        self._patterns = tuple(tables) or ("*.*",)
        self._options = options
        self._tables: dict[TableName, LakeTable] = {}
        self._checked: set[TableName] = set()
        self._targets: dict[TableName, TargetTable] = {}
        self._delivered: dict[TableName, tuple[str, ...]] = {}
        self._written: set[TableName] = set()  # since they were optimized
        self._optimized_at = time.monotonic()
        self._pool = ThreadPoolExecutor(max(1, parallel_tables), thread_name_prefix=name)
        self._lease: WriteLease | None = None
        self._state = state

    @cached_property
    def _refused(self) -> RefusedNames:
        return RefusedNames(self._state, self._log.generation, self.name)

    def led_by(self, lease: WriteLease) -> None:
        """See `tidelog.ports.LedOutput`. What a driver does late fails at the commit anyway."""
        self._lease = lease

    def prepare(self, generation: str) -> None:
        """Check the tables that are there already, and for all known so far, the steps."""
        require_generation(self._log, generation, self.name)
        for table, schema in schemas_now(self._log).items():
            if not matches(self._patterns, table):
                continue
            copy = self._table(table)
            if schema.match_key:
                copy.check_layout(self._target(schema))
            if copy.exists():
                try:
                    copy.check_ours(table, generation)
                except NameRefusedError:
                    continue  # told with its first rows
                self._mend_if_restored(copy, table, generation)
                copy.settle_deletes()
                self._checked.add(table)

    def write(self, batch: OutputBatch) -> None:
        """Merge every table of the batch; tables in parallel."""
        tasks = self._tasks(batch)
        for task in tasks:
            self._table(task.table)  # before threads ask which go to one place
        self._in_parallel([(self._run, task, batch.generation) for task in tasks])
        dumps = whole_dumps(batch)
        self._refused.dumped({name: each.first_offset for name, each in dumps.items()})
        every_s = self._options.optimize_every_s
        if every_s is not None and time.monotonic() - self._optimized_at >= every_s:
            self._in_parallel([(self._optimize, table) for table in sorted(self._written)])
            self._optimized_at = time.monotonic()

    def _in_parallel(self, calls: Sequence[tuple[Any, ...]]) -> None:
        futures: list[Any] = [self._pool.submit(*call) for call in calls]
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def committed(self, table: TableName) -> int | None:
        copy = self._table(table)
        return copy.committed(self._application) if copy.exists() else None

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return 0

    def refused_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self._refused.messages()

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        known = {str(t): s for t, s in schemas_now(self._log).items() if matches(self._patterns, t)}

        def check(table: str) -> None:
            schema, generation = known[table], self._log.generation
            copy = self._table(schema.table)
            if exists := copy.exists():
                copy.check_ours(schema.table, generation)
            self._follow(copy, schema, generation, exists)

        self._refused.take_again(known, check, ask, self._log.latest_offset())

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._state is not None:
            self._state.close()

    @property
    def _application(self) -> str:
        return f"tidelog/{self._log.generation}/{self.name}"

    def _tasks(self, batch: OutputBatch) -> list[_Task]:
        gone = deleted_below(self._log, batch)
        ranges = {str(each.table): each for each in batch.tables}
        names = {name: each.table for name, each in ranges.items()}
        names |= {name: TableName.parse(name) for name in gone if name not in names}
        tasks = [
            _Task(table, batch.start, batch.end, name in ranges, gone.get(name, 0))
            for name, table in sorted(names.items())
            if matches(self._patterns, table)
        ]
        # The largest first: it decides how long the batch takes.
        return sorted(tasks, key=lambda task: -_size(ranges.get(str(task.table))))

    def _run(self, task: _Task, generation: str) -> None:
        try:
            self._bring_over(task, generation)
            self._refused.resume(str(task.table), task.start)
        except NameRefusedError as error:
            self._refused.refuse(str(task.table), error, task.start)
        except TidelogError:
            raise
        except Exception as error:
            ours = failures.find_error(
                str(error)
            )  # of an executor: retrying helps no undecodable record
            if ours is not None:
                raise ours from error
            if (known := failures.jvm_failure(error)) is not None:
                raise known from error
            reason = reason_of(error)
            what = (
                f"{self.product} table {self._table(task.table).place}: writing offsets "
                f"{task.start} to {task.end} of {task.table}"
            )
            if failures.lasting_reason(error):
                raise failures.output_failed(what, error) from error
            kind = OutputBusyError if CONFLICT.search(reason) else OutputError
            raise kind(f"{what} failed: {reason}") from error

    def _bring_over(self, task: _Task, generation: str) -> None:
        copy = self._table(task.table)
        exists = copy.exists()
        if exists and task.table not in self._checked:
            copy.check_ours(task.table, generation)
        since = self._mend_if_restored(copy, task.table, generation) if exists else None
        start = max(task.start, since or 0)
        if start >= task.end:
            return
        self._write_range(copy, replace(task, start=start), since, generation, exists)

    def _write_range(
        self, copy: LakeTable, task: _Task, since: int | None, generation: str, exists: bool
    ) -> None:
        if self._lease is not None:
            self._lease.check()
        parts = self._parts(task) if task.has_rows else []
        schema = schema_in(self._log, task.table, task.start, task.end)
        if schema is None or not schema.match_key:
            if schema is not None:
                raise keyless(task.table, self.name)
            if not exists:
                return
        else:
            self._follow(copy, schema, generation, exists)
        self._checked.add(task.table)
        with copy.committing(self._application, since, task.end):
            failpoints.hit("lake.table.write")
            if parts and schema is not None:
                self._write_rows(copy, task, self._target(schema), parts)
            elif task.deleted_below and exists:
                lake_rows.remove_below(copy, task.deleted_below)
        self._written.add(task.table)

    def _mend_if_restored(self, copy: LakeTable, table: TableName, generation: str) -> int | None:
        """The committed offset, after the copy got what it lacks if somebody restored it."""
        since = copy.committed(self._application)
        found = None if since is None else copy.restored(self._application, since)
        if since is None or found is None:
            return since
        start = start_of(self._log, copy.place, table, found)
        said = "%s was restored to an older state (%s): offsets %d to %d come again"
        logger.warning(said, copy.place, found.why, start, since)
        self._delivered.pop(table, None)  # its columns are older ones, too
        gone = deleted_below(self._log, batch_of(self._log, start, since)).get(str(table), 0)
        self._write_range(copy, _Task(table, start, since, True, gone), since, generation, True)
        return since

    def _follow(self, copy: LakeTable, schema: TableSchema, generation: str, exists: bool) -> None:
        """Have the copy take rows of ``schema``."""
        known = self._targets.get(schema.table)
        target = self._target(schema)
        if not exists:
            check_place(self.name, schema.table, copy, self._tables)
            copy.create(target, generation)
            copy.check_ours(schema.table, generation)  # catalogs may ignore case
            copy.settle_deletes()
            self._delivered[schema.table] = tuple(target.columns.names)
        elif target is not known or schema.table not in self._delivered:
            # Until it is done: a batch that comes again after a failure follows anew.
            self._delivered.pop(schema.table, None)
            policy = self._options.on_schema_change
            self._delivered[schema.table] = copy.evolve(target, policy)

    def _target(self, schema: TableSchema) -> TargetTable:
        found = self._targets.get(schema.table)
        if found is None or found.schema.schema_id != schema.schema_id:
            steps = self._options.steps
            found = target_table(self._spark, schema, steps, self._log.source, keyed=True)
            self._targets[schema.table] = found
        return found

    def _optimize(self, table: TableName) -> None:
        """Not needed for the copy to be right: a failure stops nothing, and is tried again."""
        copy = self._table(table)
        try:
            copy.optimize(self._options.vacuum_after_s)
            self._written.discard(table)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            logger.warning("%s could not be optimized: %s", copy.place, reason_of(error))

    def _parts(self, task: _Task) -> list[list[SegmentRef]]:
        """Nothing, or the range as what single tasks fold."""
        refs = refs_of(self._log, task.table, task.start, task.end)
        if not refs:
            return []
        return partitioned(refs, partition_bytes=_PART_BYTES, partitions=None)

    def _write_rows(
        self, copy: LakeTable, task: _Task, target: TargetTable, parts: list[list[SegmentRef]]
    ) -> None:
        steps = steps_of(self._options.steps, task.table)
        columns = self._delivered[task.table]
        schema = target.schema if steps else delivered_schema(target.schema, columns)
        refs = [ref for part in parts for ref in part]
        read = (self._reading, self._log_path, self._log.generation, schema, refs)
        with folding.newest(*read, parts=len(parts)) as source:
            changes = folding.with_deletes_below(source, task.deleted_below)
            # Names of missing columns instead of their numbers.
            changes = transforms.apply(changes, steps, schema, keyed=True)
            changes = in_session(changes, copy.spark)
            may_lack = columns if steps else columns_that_may_lack(schema)
            if copy.is_empty():
                lake_rows.append(copy, changes, columns)
            else:
                lacking = frozenset(may_lack) - set(target.key)
                lake_rows.merge(
                    copy,
                    changes,
                    columns,
                    target.key,
                    lacking,
                    task.deleted_below,
                    null_key=bool(target.schema.nan_key),
                )

    def _table(self, table: TableName) -> LakeTable:
        found = self._tables.get(table)
        if found is None:
            found = self._open(table, destination_name(self._options.steps, table))
            self._tables[table] = found
        return found

    @abstractmethod
    def _open(self, table: TableName, name: str) -> LakeTable:
        """The copy of a table, whose destination's name is ``name``; it need not exist."""

    def _session(self, conf: Mapping[str, str]) -> SparkSession:
        """A session beside the one given, for our statements."""
        session = self._spark.newSession()
        for name, value in {**SESSION_CONF, **conf}.items():
            session.conf.set(name, value)
        register(session)
        return session


def _size(found: TableRange | None) -> int:
    return found.payload_bytes if found else 0
