"""What the outputs into a lake have in common: a copy of each table, exactly once.

What is done is read from the table itself: a commit holds the batch's end offset together with the
rows, and a batch's part below the committed offset is skipped. So a batch may come again, cut
differently, also from a new checkpoint.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from py4j.protocol import Py4JJavaError

from tidelog.errors import NameRefusedError, OutputError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.patterns import choice, matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.progress import RefusedNames
from tidelog.outputs.base.ranges import (
    deleted_below,
    of_one_schema,
    refs_of,
    schema_in,
    whole_dumps,
)
from tidelog.outputs.base.targets import keyless, require_generation
from tidelog.outputs.lake.contents import DumpBlocks
from tidelog.outputs.lake.data_files.file_reader import LOST_FILE
from tidelog.outputs.lake.restore_check import start_of
from tidelog.outputs.lake.table import LakeTable, application_of, check_place
from tidelog.ports import (
    DumpCompleted,
    OutputBatch,
    StateStore,
    TableRange,
    TargetTable,
    WriteLease,
)
from tidelog.spark import errors
from tidelog.spark.changes.batches import batch_of
from tidelog.spark.datasource.partitions import partitioned, schemas_now
from tidelog.spark.datasource.source import register
from tidelog.spark.sessions.session import exact_session
from tidelog.spark.transforms import Step, destination_name, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GONE = re.compile("FileNotFoundException|FILE_NOT_EXIST")


def reason_of(error: Exception) -> str:
    """Its kind and Spark's error class, or Java's classes; its text may hold values."""
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    if isinstance(error, Py4JJavaError):
        condition, cause = "", error.java_exception
        while cause is not None:
            condition += f"{': ' if condition else ''}{cause.getClass().getSimpleName()}"
            cause = cause.getCause()
    reason = errors.system_error(error)
    what = f"{type(error).__name__}{f' ({condition})' if condition else ''}"
    if not reason and condition and _GONE.search(condition):
        reason = LOST_FILE  # Java says the same of files that can't be opened: told before
    return f"{reason}: {what}" if reason else what


logger = logging.getLogger(__name__)

Copy = TypeVar("Copy", bound=LakeTable)

# One task folds this much alone, without a shuffle; more is folded in parts and then by Spark.
_PART_BYTES = 512 << 20


@dataclass(frozen=True)
class LakeOptions:
    """What can be chosen of the copies.

    Attributes:
        steps: transforms of rows, and routes of tables.
        on_schema_change: evolve, lenient, ignore or fail.
        holds: by table or pattern, what the table in the lake holds; the first that matches.
        soft_deletes: rows deleted from a copy stay, with true in the column ``_deleted``.
        partition_by: columns by table or pattern; the first that matches.
        vacuum_after_s: files of versions older than this are removed now and then.
    """

    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    holds: Mapping[str, DumpBlocks] = field(default_factory=dict)
    soft_deletes: bool = False
    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vacuum_after_s: float | None = None

    def holds_of(self, table: TableName) -> DumpBlocks:
        """What the table in the lake holds of a table of the source."""
        return choice(self.holds, table, "copy")


@dataclass(frozen=True, slots=True)
class TableWork:
    """The work for one table in one batch. ``dumps``: of the whole table, that are complete."""

    table: TableName
    start: int
    end: int
    has_rows: bool
    deleted_below: int  # rows of a lower version are gone from the source (truncate, full dump)
    dumps: tuple[DumpCompleted, ...] = ()


@dataclass(frozen=True)
class CopyWrite(Generic[Copy]):
    """What is to be written to a copy that is there and has the columns.

    Attributes:
        copy: the table.
        work: what is to be done.
        since: the offset that is committed; None: nothing is. Equal to the work's end for the rows
            of a copy that was restored.
        parts: segments with rows of the table, as single tasks fold them; none: there are no rows.
        target: what rows are delivered as; None: there are none.
        columns: names of the columns that rows hold.
    """

    copy: Copy
    work: TableWork
    since: int | None
    parts: Sequence[Sequence[SegmentRef]] = ()
    target: TargetTable | None = None
    columns: tuple[str, ...] = ()

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        return tuple(ref for part in self.parts for ref in part)


class LakeOutput(ABC, Generic[Copy]):
    """`tidelog.ports.Output` over tables of a lake; `_open` says which.

    Args:
        spark: a session that can write them.
        log_path: the event log that batches refer to.
        tables: names or patterns; empty: all.
        name: tells this output from others of the same log.
        options: see there.
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
        self._tables: dict[TableName, Copy] = {}
        self._targets: dict[TableName, TargetTable] = {}
        # What a copy was once it had the columns, and those that are delivered.
        self._delivered: dict[TableName, tuple[object, tuple[str, ...]]] = {}
        self._lease: WriteLease | None = None
        self._state = state

    # ------------------------------------------------ what a kind of lake implements

    @abstractmethod
    def _open(self, table: TableName, name: str) -> Copy:
        """The copy of a table, whose destination's name is ``name``; it need not exist."""

    @abstractmethod
    def _write_copies(self, works: Sequence[TableWork]) -> None:
        """`_planned` and `_write_all` for all tables of a batch."""

    @abstractmethod
    def _write_all(self, writes: Sequence[CopyWrite[Copy]]) -> None:
        """Bring rows over: of each copy in one commit, together with the end of its work."""

    def _tells_changes(self, table: TableName) -> bool:
        """Is each change told as it was, under its own schema?"""
        return False

    def _maintain(self) -> None:
        """After each batch: what copies need to stay quick."""

    # ------------------------------------------------ tidelog.ports.Output

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

    def write(self, batch: OutputBatch) -> None:
        """Bring every table of the batch over."""
        for piece in of_one_schema(self._log, batch, self._tells_changes):
            works = self._works(piece)
            for work in works:
                self._table(work.table)  # before threads ask which go to one place
            self._write_copies(works)
        dumps = whole_dumps(batch)
        self._refused.dumped({name: each.first_offset for name, each in dumps.items()})
        self._maintain()

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
        if self._state is not None:
            self._state.close()

    # ------------------------------------------------ planning

    @property
    def _application(self) -> str:
        return application_of(self._log.generation, self.name)

    def _works(self, batch: OutputBatch) -> list[TableWork]:
        gone = deleted_below(self._log, batch)
        ranges = {str(each.table): each for each in batch.tables}
        names = {name: each.table for name, each in ranges.items()}
        names |= {name: TableName.parse(name) for name in gone if name not in names}
        works = [
            TableWork(
                table,
                batch.start,
                batch.end,
                name in ranges,
                gone.get(name, 0),
                _dumps_of(batch, name),
            )
            for name, table in sorted(names.items())
            if matches(self._patterns, table)
        ]
        # The largest first: it decides how long the batch takes.
        return sorted(works, key=lambda work: -_size(ranges.get(str(work.table))))

    def _planned(self, work: TableWork) -> CopyWrite[Copy] | None:
        """What of the work is left to be written; None: nothing, or the table is left out."""
        generation = self._log.generation
        try:
            copy = self._table(work.table)
            exists = copy.exists()
            if exists:
                copy.check_ours(work.table, generation)
            since = self._mend_if_restored(copy, work.table, generation) if exists else None
            start = max(work.start, since or 0)
            found = None
            if start < work.end:
                found = self._write_of(copy, replace(work, start=start), since, exists)
            self._refused.resume(str(work.table), work.start)
            return found
        except NameRefusedError as error:
            self._refused.refuse(str(work.table), error, work.start)
            return None

    def _write_of(
        self, copy: Copy, work: TableWork, since: int | None, exists: bool
    ) -> CopyWrite[Copy] | None:
        self._check_lease()
        parts: list[list[SegmentRef]] = []
        if work.has_rows and (refs := refs_of(self._log, work.table, work.start, work.end)):
            parts = partitioned(refs, partition_bytes=_PART_BYTES, partitions=None)
        schema = schema_in(self._log, work.table, work.start, work.end)
        if schema is None:
            return CopyWrite(copy, work, since) if exists else None
        if not schema.match_key:
            raise keyless(work.table, self.name)
        self._follow(copy, schema, self._log.generation, exists)
        _, columns = self._delivered[work.table]
        return CopyWrite(copy, work, since, parts, self._target(schema), columns)

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _mend_if_restored(self, copy: Copy, table: TableName, generation: str) -> int | None:
        """The committed offset, after the copy got what it lacks if somebody restored it."""
        since = copy.committed(self._application)
        found = None if since is None else copy.restored(self._application, since)
        if since is None or found is None:
            return since
        start = start_of(self._log, copy.place, table, found)
        said = "%s was restored to an older state (%s): offsets %d to %d come again"
        logger.warning(said, copy.place, found.why, start, since)
        self._delivered.pop(table, None)  # its columns are older ones, too
        batch = batch_of(self._log, start, since)
        gone = deleted_below(self._log, batch).get(str(table), 0)
        work = TableWork(table, start, since, True, gone, _dumps_of(batch, str(table)))
        write = self._write_of(copy, work, since, True)
        if write is not None:
            self._write_all([write])
        return since

    def _follow(self, copy: Copy, schema: TableSchema, generation: str, exists: bool) -> None:
        """Have the copy take rows of ``schema``."""
        known = self._targets.get(schema.table)
        target = self._target(schema)
        if not exists:
            check_place(self.name, schema.table, copy, self._tables)
            copy.create(target, generation)
            copy.check_ours(schema.table, generation)  # catalogs may ignore case
            copy.settle_deletes()
        before, _ = self._delivered.get(schema.table, (None, ()))
        if target is not known or before != copy.definition():
            self._evolved(copy, schema.table, target)

    def _evolved(self, copy: Copy, table: TableName, target: TargetTable) -> tuple[str, ...]:
        """Names of the columns that are delivered, once the copy has them."""
        # Until it is done: a batch that comes again after a failure follows anew.
        self._delivered.pop(table, None)
        columns = copy.evolve(target, self._options.on_schema_change)
        self._delivered[table] = copy.definition(), columns
        return columns

    def _target(self, schema: TableSchema) -> TargetTable:
        found = self._targets.get(schema.table)
        if found is None or found.schema.schema_id != schema.schema_id:
            steps = self._options.steps
            found = target_table(self._spark, schema, steps, self._log.source, keyed=True)
            self._targets[schema.table] = found
        return found

    def _table(self, table: TableName) -> Copy:
        found = self._tables.get(table)
        if found is None:
            found = self._open(table, destination_name(self._options.steps, table))
            self._tables[table] = found
        return found

    @contextmanager
    def _explaining(self, *works: TableWork) -> Iterator[None]:
        """What is raised inside becomes a TidelogError that says what was being written."""
        try:
            yield
        except TidelogError:
            raise
        except Exception as error:
            ours = errors.find_error(str(error))  # retrying helps no undecodable record
            if ours is not None:
                raise ours from error
            if (known := errors.jvm_failure(error)) is not None:
                raise known from error
            reason = reason_of(error)
            places = ", ".join(self._table(work.table).place for work in works)
            tables = ", ".join(str(work.table) for work in works)
            start, end = min(each.start for each in works), max(each.end for each in works)
            what = f"{self.product} table {places}: writing offsets {start} to {end} of {tables}"
            if errors.lasting_reason(error):
                raise errors.output_failed(what, error) from error
            raise OutputError(f"{what} failed: {reason}") from error


def _dumps_of(batch: OutputBatch, table: str) -> tuple[DumpCompleted, ...]:
    """The complete dumps of the whole table."""
    return tuple(each for each in batch.completed if each.delete_absent and each.table == table)


def _size(found: TableRange | None) -> int:
    return found.payload_bytes if found else 0
