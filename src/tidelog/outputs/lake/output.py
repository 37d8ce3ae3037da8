"""The base of outputs into a lake: a copy of each table, exactly once.

The position is read from the table itself: a commit has the batch's end offset together with the
rows, and a batch's part below the committed offset is skipped. So a batch may be repeated, with
other bounds, also from a new checkpoint.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from tidelog.errors import (
    ConfigError,
    DecodeError,
    OutputError,
    OutputRefusedError,
    RowsLeftOutError,
    TableLeftOutError,
    TidelogError,
)
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.option_values import ColumnTypes
from tidelog.model.patterns import all_but, choice, dump_command, matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.progress import DROPPED, LeftOutTableStore
from tidelog.outputs.base.ranges import (
    deleted_below,
    keyed_in_part,
    refs_of,
    schema_before,
    schema_in,
    split_by_schema,
)
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.outputs.base.targets import (
    advised,
    check_has_columns,
    check_steps,
    key_line,
    missing_key_error,
    require_generation,
    undecodable_rows_error,
    with_types,
)
from tidelog.outputs.lake.contents import TableContents
from tidelog.outputs.lake.data_files.disk_cache import CACHE_BYTES
from tidelog.outputs.lake.data_files.file_reader import LOST_FILE
from tidelog.outputs.lake.table import LakeTable, application_of, check_place, resume_offset
from tidelog.ports import (
    DumpCompleted,
    OutputBatch,
    StateStore,
    TableRange,
    TargetTable,
    WriteLease,
)
from tidelog.spark.datasource.partitions import (
    partition_refs,
    schema_now,
    schemas_now,
    whole_segments,
)
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.datasource.source import prepare_workers
from tidelog.spark.session import exact_session
from tidelog.spark.sessions import errors
from tidelog.spark.transforms import Step, destination_name, steps_of, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GONE = re.compile("FileNotFoundException|FILE_NOT_EXIST")


def reason_of(error: Exception) -> str:
    """Return an error's type and Spark's error class, or Java's classes; not its text, which may
    contain values.
    """
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    if isinstance(error, errors.Py4JJavaError):
        condition, cause = "", error.java_exception
        while cause is not None:
            condition += f"{': ' if condition else ''}{cause.getClass().getSimpleName()}"
            cause = cause.getCause()
    reason = errors.system_error(error)
    what = f"{type(error).__name__}{f' ({condition})' if condition else ''}"
    if not reason and condition and _GONE.search(condition):
        reason = LOST_FILE  # files that can't be opened are handled before
    return f"{reason}: {what}" if reason else what


logger = logging.getLogger(__name__)

Copy = TypeVar("Copy", bound=LakeTable)

# One task folds this much alone, without a shuffle; more is folded in parts and then by Spark.
_PART_BYTES = 512 << 20
# The same where each change counts, and all of them are in memory at once.
_HISTORY_BYTES = 64 << 20


@dataclass(frozen=True)
class LakeOptions:
    """Options of the copies.

    Attributes:
        steps: transforms of rows, and routes of tables.
        keyless: what to do with tables without a key: append their changes, skip or fail.
        on_schema_change: evolve, lenient, ignore or fail.
        holds: by table or pattern, what the table in the lake contains; the first that matches.
        soft_deletes: whether rows deleted from a copy stay, with true in the column ``_deleted``.
        partition_by: columns by table or pattern; the first that matches.
        types: types of new columns that are text without it; None: all of these are text.
        vacuum_after_s: age in seconds of versions whose files are removed now and then.
        cache_bytes: see `SettleOptions`.
    """

    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    keyless: KeylessPolicy = "skip"
    holds: Mapping[str, TableContents] = field(default_factory=dict)
    soft_deletes: bool = False
    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    types: ColumnTypes | None = None
    vacuum_after_s: float | None = None
    cache_bytes: int = CACHE_BYTES

    def holds_of(self, table: TableName) -> TableContents:
        """Return what the table in the lake contains of a table of the source."""
        return choice(self.holds, table, "copy")

    def appends_keyless(self, table: TableName) -> bool:
        """Are the table's changes appended if it has no key? Steps would alter them."""
        appends = self.keyless == "append" and self.holds_of(table) != "changes"
        return appends and not steps_of(self.steps, table)


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
class CopyWrite(Generic[Copy]):
    """The rows to write to an existing copy that has the columns.

    Attributes:
        copy: the table.
        work: the work of the batch.
        since: the committed offset; None: there is none. Not below the work's end for the rows of a
            table that was restored.
        parts: segments with rows of the table, one part for each task that folds them; empty: no
            rows.
        target: the table as rows are delivered; None: there are no rows.
        columns: names of the columns that rows have.
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
    """`tidelog.ports.Output` over tables of a lake, which `_open` opens.

    Args:
        spark: a session that can write them.
        log_path: the event log that batches refer to.
        tables: names or patterns; empty: all.
        name: distinguishes this output from others of the same log.
        options: see `LakeOptions`.
        state: keeps the tables that are left out; None: such a table stops the output.
    """

    product: str  # the table format, for messages
    keyed = True  # copies, which a whole dump repairs, whatever rows are missing

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
        self._read_session = exact_session(spark)
        prepare_workers(spark)
        self._log = EventLog.open(log_path)
        self._log_path = log_path
        self._patterns = all_but(tables) or ("*.*",)
        self._options = options
        self._tables: dict[TableName, Copy] = {}
        self._targets: dict[TableName, TargetTable] = {}
        # The definition of each copy when it had the columns, and the delivered columns.
        self._delivered: dict[TableName, tuple[object, tuple[str, ...]]] = {}
        self._appended_before: set[TableName] | None = None
        self._followed: set[TableName] = set()  # copies that rows were written to
        self._missing: set[TableName] = set()  # as `prepare` found
        self._ask: Callable[[Sequence[str]], None] | None = None
        self._lease: WriteLease | None = None
        self._state = state

    # ------------------------------------------------ what a kind of lake implements

    @abstractmethod
    def _open(self, table: TableName, name: str) -> Copy:
        """Return the copy of a table, whose destination's name is ``name``; it need not exist."""

    @abstractmethod
    def _write_copies(self, works: Sequence[TableWork]) -> None:
        """Plan and write all tables of a batch (`_plan_write`, `_write_all`)."""

    @abstractmethod
    def _write_all(self, writes: Sequence[CopyWrite[Copy]]) -> None:
        """Write rows: those of each copy in one commit, together with the end of its work."""

    def _check_layout(self, copy: Copy, target: TargetTable, *, exists: bool) -> None:
        """Raise TableLeftOutError if rows of ``target`` can't be written as the options say."""
        copy.check_layout(target, copy.column_types() if exists else ())

    def _holds_changes(self, table: TableName) -> bool:
        """Return True if the table has each change, or each state, under its own schema."""
        return False

    def _maintain(self) -> None:
        """Maintain copies after each batch so that they stay fast."""

    # ------------------------------------------------ tidelog.ports.Output

    @cached_property
    def _left_out(self) -> LeftOutTableStore:
        return LeftOutTableStore(self._state, self._log.generation, self.name, self._options)

    @cached_property
    def _unfit(self) -> dict[TableName, RowsLeftOutError]:
        """See `_leave_out`."""
        return self._left_out.dumped_in_vain()

    def set_lease(self, lease: WriteLease) -> None:
        """See `tidelog.ports.LedOutput`. A late write of a driver fails at the commit anyway."""
        self._lease = lease

    def prepare(self, generation: str) -> None:
        """Check the existing tables and, for all tables known so far, the steps."""
        require_generation(self._log, generation, self.name)
        chosen = {t: s for t, s in schemas_now(self._log).items() if matches(self._patterns, t)}
        left_out: dict[TableName, TableLeftOutError] = {}
        self._missing = set()
        for table, schema in chosen.items():
            try:
                copy = self._table(table)
                exists = copy.exists()
                if exists:
                    copy.choose_layout(keyless=copy.holds_keyless())
                else:
                    self._missing.add(table)
                if schema.match_key:
                    target = self._target(schema, copy, exists)
                    self._check_layout(copy, target, exists=exists)
                if exists:
                    copy.check_ours(table, generation)
                    self._repair_if_restored(copy, table, generation)
                    copy.settle_deletes()
            except TableLeftOutError as error:
                left_out[table] = error
        check_steps([*left_out.values()], len(chosen))
        end = self._log.latest_offset()
        for table, why in left_out.items():
            self._leave_out(table, why, end)

    def end_of_batch(self, start: int, end: int) -> int:
        """See `tidelog.ports.BoundedOutput`."""
        if "history" not in self._options.holds.values():
            return end
        known = [each for each in self._log.schemas.tables() if matches(self._patterns, each)]
        tables = [each for each in known if self._options.holds_of(each) == "history"]
        return whole_segments(self._log, start, end, _HISTORY_BYTES, tables) if tables else end

    def write(self, batch: OutputBatch) -> None:
        """Write every table of the batch."""
        for table in [each for each in self._unfit if str(each) in batch.started]:
            del self._unfit[table]
            self._left_out.resume(str(table), batch.start, is_dumped=True)
        parted = keyed_in_part(self._log, batch)
        for piece in split_by_schema(
            self._log, batch, lambda table: table in parted or self._holds_changes(table)
        ):
            works = self._table_works(piece)
            for work in works:
                self._table(work.table)  # before threads check which tables have the same location
            self._write_copies(works)
        self._left_out.remove_dumped(batch.completed)
        self._maintain()

    def committed(self, table: TableName) -> int | None:
        copy = self._table(table)
        return copy.committed(self._application) if copy.exists() else None

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return 0

    def left_out_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self._left_out.messages()

    def keyless_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        if self._appended_before is None:
            self._appended_before = set(self._find_appended())
        appended = {
            str(table): self._appended_message(table, copy)
            for table, copy in sorted(self._tables.items())
            if copy.layout.keyless and (table in self._delivered or table in self._appended_before)
        }
        return {**self._left_out.keyless(), **appended}

    def _find_appended(self) -> Iterator[TableName]:
        """Yield the tables whose changes an earlier run appended for want of a key."""
        for table, schemas in self._log.schemas.by_table().items():
            if matches(self._patterns, table) and not all(each.match_key for each in schemas):
                with suppress(TidelogError):  # writing to it reports what is wrong
                    copy = self._table(table)
                    if copy.exists() and copy.layout.keyless:
                        yield table

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        known = {str(t): s for t, s in schemas_now(self._log).items() if matches(self._patterns, t)}

        def check(table: str) -> None:
            schema, generation = known[table], self._log.generation
            self._check_values(schema.table)
            copy = self._table(schema.table)
            if exists := copy.exists():
                copy.check_ours(schema.table, generation)
                self._repair_if_restored(copy, schema.table, generation)
            self._check_key(copy, schema, exists)
            self._follow(copy, schema, generation, exists)

        self._ask = ask
        keyless = [table for table, schema in known.items() if not schema.match_key]
        self._left_out.take_again(known, check, ask, self._log.latest_offset(), keyless)

    def replace_dropped(
        self, tables: Collection[str], ask: Callable[[Sequence[str]], None]
    ) -> None:
        """See `tidelog.ports.CopyingOutput`."""
        wanted = self._left_out.taken(tables)
        dropped = [
            schema
            for table, schema in schemas_now(self._log).items()
            if table in self._missing and str(table) in wanted and not self._table(table).exists()
        ]
        if not dropped:
            return
        self._request_dumps([str(each.table) for each in dropped], ask)
        for schema in dropped:
            copy = self._table(schema.table)
            self._followed.discard(schema.table)
            with suppress(TableLeftOutError):  # reported with its first rows
                self._check_key(copy, schema, exists=False)
                self._follow(copy, schema, self._log.generation, exists=False)

    def _request_dumps(
        self, dropped: Sequence[str], ask: Callable[[Sequence[str]], None] | None
    ) -> None:
        logger.warning(DROPPED, self.name, ", ".join(sorted(dropped)))
        if ask is not None:
            ask(sorted(dropped))

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    def table_of(self, schema: TableSchema) -> TargetTable:
        """Return the table as rows of ``schema`` are delivered into the copy that there is."""
        copy = self._table(schema.table)
        return self._target(schema, copy, copy.exists())

    # ------------------------------------------------ planning

    @property
    def _application(self) -> str:
        return application_of(self._log.generation, self.name)

    def _table_works(self, batch: OutputBatch) -> list[TableWork]:
        batch = self._with_complete_dumps(batch)
        removed_below = deleted_below(self._log, batch)
        ranges = {str(each.table): each for each in batch.tables}
        names = {name: each.table for name, each in ranges.items()}
        keyless = [each.table for each in batch.completed if each.rows_ordinal is not None]
        more = [name for name in (*removed_below, *keyless) if name not in names]
        names |= {name: TableName.parse(name) for name in more}
        works = [
            TableWork(
                table,
                batch.start,
                batch.end,
                name in ranges,
                removed_below.get(name, 0),
                _whole_dumps(batch, name),
            )
            for name, table in sorted(names.items())
            if matches(self._patterns, table)
        ]
        # The largest first: it decides how long the batch takes.
        return sorted(works, key=lambda work: -_size(ranges.get(str(work.table))))

    def _with_complete_dumps(self, batch: OutputBatch) -> OutputBatch:
        whole = self._left_out.complete_dumps(batch.completed, batch.start)
        return replace(batch, completed=whole)

    def _plan_write(self, work: TableWork) -> CopyWrite[Copy] | None:
        """Return the part of the work that is left to write; None: nothing, or the table is left
        out.
        """
        generation = self._log.generation
        try:
            copy = self._table(work.table)
            exists = copy.exists()
            if exists:
                copy.check_ours(work.table, generation)
            since = self._repair_if_restored(copy, work.table, generation) if exists else None
            self._check_values(work.table)
            start = max(work.start, since or 0)
            if start >= work.end:
                return None
            found = self._copy_write(copy, replace(work, start=start), since, exists)
            self._left_out.resume(
                str(work.table), work.start, keyed=not self._is_keyless(work.table)
            )
            return found
        except TableLeftOutError as error:
            self._leave_out(work.table, error, work.start)
            return None

    def _leave_out(self, table: TableName, error: TableLeftOutError, since: int) -> None:
        """Leave out the table's rows from this offset on; the other tables are written. If its rows
        could not be written, this is so until a dump of it begins or the output starts again: no
        check sees before what is wrong.
        """
        if isinstance(error, RowsLeftOutError) and table not in self._unfit:
            where = self._table(table).location
            other = f" in the output's options, then move {where} away; or change the row"
            error = self._unfit[table] = advised(error, table, other)
        self._left_out.add(str(table), error, since)

    def _copy_write(
        self, copy: Copy, work: TableWork, since: int | None, exists: bool
    ) -> CopyWrite[Copy] | None:
        self._check_lease()
        parts: list[list[SegmentRef]] = []
        if work.has_rows and (refs := refs_of(self._log, work.table, work.start, work.end)):
            size = _HISTORY_BYTES if copy.layout.holds == "history" else _PART_BYTES
            parts = partition_refs(refs, partition_bytes=size, partitions=None)
        schema = schema_in(self._log, work.table, work.start, work.end)
        if schema is None and not exists and work.dumps:  # of an empty table
            schema = schema_before(self._log, work.table, work.end)
        if schema is None:
            is_due = work.deleted_below or copy.layout.holds == "changes"
            return CopyWrite(copy, work, since) if exists and is_due else None
        self._check_key(copy, schema, exists)
        self._follow(copy, schema, self._log.generation, exists)
        _, columns = self._delivered[work.table]
        return CopyWrite(copy, work, since, parts, self._targets[work.table], columns)

    def _check_key(self, copy: Copy, schema: TableSchema, exists: bool) -> None:
        """Choose the layout of a table that does not exist yet. Raises KeyMissingError if rows of
        ``schema`` have no key, and are not appended.
        """
        table = schema.table
        if not exists:
            copy.choose_layout(keyless=self._is_keyless(table))
        if not schema.match_key and copy.layout.holds != "changes":
            why = self._why_not_appended(copy, table, exists)
            raise missing_key_error(table, self.name, self._options.keyless, why)

    def _is_keyless(self, table: TableName) -> bool:
        """Does the table have no key now? Its older records may have one, or need none."""
        schema = schema_now(self._log, table)
        return schema is not None and not schema.match_key

    def _why_not_appended(self, copy: Copy, table: TableName, exists: bool) -> str:
        if exists:
            return f"keeps a copy at {copy.location}, which stays as it was"
        steps = steps_of(self._options.steps, table)
        if self._options.keyless == "append" and steps:
            return f"can't append its changes: the step {steps[0].action} would alter them"
        return "keeps a copy, which needs one"

    def _appended_message(self, table: TableName, copy: Copy) -> str:
        if self._is_keyless(table):
            return (
                f"{table} has no key: output {self.name} appends its changes, and the rows of its "
                f"dumps. {key_line(table)}"
            )
        return (
            f"{table} has a key now, and output {self.name} still appends its changes to "
            f"{copy.location}. For a copy, move it away and run `{dump_command(table)}`"
        )

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _repair_if_restored(self, copy: Copy, table: TableName, generation: str) -> int | None:
        """Return the committed offset, after the missing rows are written if somebody restored the
        copy.
        """
        since = copy.committed(self._application)
        found = None if since is None else copy.find_restore(self._application, since)
        if since is None or found is None:
            return since
        start = resume_offset(self._log, copy.location, table, found)
        message = "%s was restored to an older state (%s): offsets %d to %d are written again"
        logger.warning(message, copy.location, found.why, start, since)
        self._delivered.pop(table, None)  # its columns are older ones, too
        for each in split_by_schema(
            self._log,
            batch_of(self._log, start, since),
            lambda other: other == table and self._holds_changes(table),
        ):
            self._check_values(table)  # of the piece before
            piece = self._with_complete_dumps(each)
            below = deleted_below(self._log, piece).get(str(table), 0)
            dumps = _whole_dumps(piece, str(table))
            work = TableWork(table, piece.start, piece.end, True, below, dumps)
            write = self._copy_write(copy, work, since, True)
            if write is not None:
                self._write_all([write])
        return since

    def _follow(self, copy: Copy, schema: TableSchema, generation: str, exists: bool) -> None:
        """Prepare the copy for rows of ``schema``."""
        check_has_columns(schema)
        known = self._targets.get(schema.table)
        target = self._target(schema, copy, exists)
        if not exists:
            self._check_layout(copy, target, exists=False)
            check_place(self.name, schema.table, copy, self._tables)
            if schema.table in self._followed:
                self._request_dumps([str(schema.table)], self._ask)
            copy.create(target, generation)
            copy.check_ours(schema.table, generation)  # catalogs may ignore case
            copy.settle_deletes()
        self._followed.add(schema.table)
        before, _ = self._delivered.get(schema.table, (None, ()))
        if target is not known or before != copy.definition():
            self._evolve(copy, schema.table, target)

    def _evolve(self, copy: Copy, table: TableName, target: TargetTable) -> tuple[str, ...]:
        """Return the names of the delivered columns, once the copy has them."""
        # Until it is done: a batch that is retried after an error follows again.
        self._delivered.pop(table, None)
        self._check_layout(copy, target, exists=True)
        columns = copy.evolve(target, self._options.on_schema_change)
        self._delivered[table] = copy.definition(), columns
        return columns

    def _target(self, schema: TableSchema, copy: Copy, exists: bool) -> TargetTable:
        found = self._targets.get(schema.table)
        if found is not None and found.schema.schema_id == schema.schema_id and exists:
            followed, _ = self._delivered.get(schema.table, (None, ()))
            if followed == copy.definition():  # its columns are those of the last batch
                return found
        steps = self._options.steps
        have = copy.row_types() if exists else {}
        typed = with_types(schema, self._options.types, steps, have)
        if found is None or found.schema != typed:
            try:
                found = target_table(self._spark, typed, steps, self._log.source, keyed=True)
            except ConfigError as error:
                raise TableLeftOutError(f"output {self.name}: {error}") from error
            self._targets[schema.table] = found
            # Whoever asks, the copy follows before rows of it are written.
            self._delivered.pop(schema.table, None)
        return found

    def _check_values(self, table: TableName) -> None:
        """Raise RowsLeftOutError if `_leave_out` left the table out."""
        if table in self._unfit:
            raise self._unfit[table]

    def _table(self, table: TableName) -> Copy:
        found = self._tables.get(table)
        if found is None:
            found = self._open(table, self._destination(table))
            self._tables[table] = found
        return found

    def _destination(self, table: TableName) -> str:
        return destination_name(self._options.steps, table)

    @contextmanager
    def _named_errors(self, *works: TableWork) -> Iterator[None]:
        """Turn any error into a TidelogError that says what was being written."""
        try:
            yield
        except TidelogError:
            raise
        except Exception as error:
            ours = errors.find_error(str(error))  # an undecodable record is not retried
            if ours is not None:
                raise ours from error
            if (known := errors.jvm_error(error)) is not None:
                raise known from error
            reason = reason_of(error)
            places = ", ".join(self._table(work.table).location for work in works)
            tables = ", ".join(str(work.table) for work in works)
            start, end = min(each.start for each in works), max(each.end for each in works)
            what = f"{self.product} table {places}: writing offsets {start} to {end} of {tables}"
            if errors.lasting_reason(error) or errors.connect_error(error):
                raise errors.output_error(what, error) from error
            raise OutputError(f"{what} failed: {reason}") from error


def left_out_error(error: TidelogError | None) -> TableLeftOutError | None:
    """Return the error as one of a single table; None if there is none, or if it may concern other
    tables too.
    """
    if isinstance(error, TableLeftOutError):
        return error
    if isinstance(error, DecodeError):
        return undecodable_rows_error(error)
    if isinstance(error, OutputRefusedError):
        return RowsLeftOutError(str(error))
    return None


def _whole_dumps(batch: OutputBatch, table: str) -> tuple[DumpCompleted, ...]:
    """Return the complete dumps of the whole table."""
    return tuple(each for each in batch.completed if each.whole and each.table == table)


def _size(found: TableRange | None) -> int:
    return found.payload_bytes if found else 0
