"""The base of outputs into a lake: a copy of each table, exactly once.

The position is read from the table itself: a commit has the batch's end offset together with the
rows, and a batch's part below the committed offset is skipped. So a batch may be repeated, with
other bounds, also from a new checkpoint.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from tidelog.errors import (
    ConflictError,
    OutputBusyError,
    OutputError,
    RowsLeftOutError,
    TableLeftOutError,
    TidelogError,
    ValueRefusedError,
)
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.option_values import ColumnTypes
from tidelog.model.patterns import all_but, choice, dump_command
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.left_out import DROPPED, check_has_columns, key_line, missing_key_error
from tidelog.outputs.base.output import BaseOutput
from tidelog.outputs.base.ranges import (
    deleted_below,
    keyed_in_part,
    refs_of,
    schema_before,
    schema_in,
    split_by_schema,
    tables_of,
)
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.outputs.base.targets import with_types
from tidelog.outputs.lake.contents import TableContents
from tidelog.outputs.lake.data_files.disk_cache import CACHE_BYTES
from tidelog.outputs.lake.errors import error_class_of, left_out_error
from tidelog.outputs.lake.jobs import CopyWrite, LakeJobs, TableWork, files_of, set_key
from tidelog.outputs.lake.settling.reading import FileRows, bounds_of, file_rows, frame_of
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.outputs.lake.settling.tasks import RewriteWork, SettleResult
from tidelog.outputs.lake.table import (
    COMMIT_TRIES,
    LakeTable,
    application_of,
    check_place,
    resume_offset,
)
from tidelog.ports import DumpCompleted, OutputBatch, StateStore, TableRange, TargetTable
from tidelog.spark.datasource.partitions import partition_refs, schema_now, whole_segments
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.sessions.errors import (
    connect_error,
    find_error,
    jvm_error,
    lasting_reason,
    output_error,
)
from tidelog.spark.transforms import Step, destination_name, steps_of
from tidelog.system import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_Key = Sequence[str | None] | None
Range = tuple[_Key, _Key]
"""``after < key <= upto``; None: open."""

Copy = TypeVar("Copy", bound=LakeTable)
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Given = ParamSpec("Given")
Lake = TypeVar("Lake", bound="LakeOutput[Any]")

_TABLES_AT_ONCE: Final = 8
"""Tables whose logs are read and committed to at once: each takes some requests in sequence."""

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


def guarded(
    method: Callable[Concatenate[Lake, Given], Outcome],
) -> Callable[Concatenate[Lake, Given], Outcome]:
    """Run a method that reads or writes tables of the lake within `LakeOutput._guarded`."""

    @wraps(method)
    def run(self: Lake, /, *args: Given.args, **named: Given.kwargs) -> Outcome:
        with self._guarded():
            return method(self, *args, **named)

    return run


class LakeOutput(BaseOutput, ABC, Generic[Copy]):
    """`tidelog.ports.Output` over tables of a lake, which `_open` opens.

    Args:
        spark: a session that can write them.
        log_path: the event log that batches refer to.
        tables: names or patterns; empty: all.
        name: distinguishes this output from others of the same log.
        options: see `LakeOptions`.
        parallel_tables: number of tables with steps, or with very large ranges, that are read at
            once.
        state: keeps the tables that are left out; None: such a table stops the output.
    """

    product: str  # the table format, for messages

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
        patterns = all_but(tables) or ("*.*",)
        super().__init__(spark, log_path, name=name, tables=patterns, state=state, settings=options)
        self._jobs = LakeJobs(
            spark, self.log, log_path, name, options.steps, parallel_tables, self._cores
        )
        self._waiting = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix=f"{name}-store")
        self._written: list[Copy] = []  # since the last compaction
        self._options = options
        self._tables: dict[TableName, Copy] = {}
        self._targets: dict[TableName, TargetTable] = {}
        # The definition of each copy when it had the columns, and the delivered columns.
        self._delivered: dict[TableName, tuple[object, tuple[str, ...]]] = {}
        self._appended_before: set[TableName] | None = None
        self._followed: set[TableName] = set()  # copies that rows were written to
        self._missing: set[TableName] = set()  # as `prepare` found

    # ------------------------------------------------ what a kind of lake implements

    @abstractmethod
    def _open(self, table: TableName, name: str) -> Copy:
        """Return the copy of a table, whose destination's name is ``name``; it need not exist."""

    def _guarded(self) -> AbstractContextManager[None]:
        """Entered by every public method that reads or writes tables, also by one within another.
        For a kind whose tables need another process.
        """
        return nullcontext()

    def _clean_up(self, written: Sequence[Copy]) -> None:
        """Remove what readers of the tables do not need any more. The copies are correct without
        it: an error is logged. ``written``: tables of the batch.
        """

    # ------------------------------------------------ tidelog.ports.Output

    @guarded
    def prepare(self, generation: str) -> None:
        """Check the existing tables and, for all tables known so far, the steps."""
        super().prepare(generation)
        self._missing = set()
        left_out = self._check_tables(self._check_existing)
        end = self.log.latest_offset()
        for table, why in left_out.items():
            self._leave_out(table, why, end)

    def _check_existing(self, schema: TableSchema) -> None:
        table = schema.table
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
            copy.check_ours(table, self.log.generation)
            self._repair_if_restored(copy, table)

    def end_of_batch(self, start: int, end: int) -> int:
        """See `tidelog.ports.BoundedOutput`."""
        if "history" not in self._options.holds.values():
            return end
        known = [each for each in self.log.schemas.tables() if self._is_selected(each)]
        tables = [each for each in known if self._options.holds_of(each) == "history"]
        return whole_segments(self.log, start, end, _HISTORY_BYTES, tables) if tables else end

    @guarded
    def write(self, batch: OutputBatch) -> None:
        """Write every table of the batch."""
        self.left_out.begin_dumps(batch)
        parted = keyed_in_part(self.log, batch)
        for piece in split_by_schema(
            self.log, batch, lambda table: table in parted or self._holds_changes(table)
        ):
            works = self._table_works(piece)
            for work in works:
                self._table(work.table)  # before threads check which tables have the same location
            self._write_copies(works)
        self.left_out.remove_dumped(batch.completed)
        self._maintain()

    @guarded
    def committed(self, table: TableName) -> int | None:
        copy = self._table(table)
        return copy.committed(self._application) if copy.exists() else None

    @guarded
    def keyless_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        if self._appended_before is None:
            self._appended_before = set(self._find_appended())
        appended = {
            str(table): self._appended_message(table, copy)
            for table, copy in sorted(self._tables.items())
            if copy.layout.keyless and (table in self._delivered or table in self._appended_before)
        }
        return {**self.left_out.keyless(), **appended}

    def _find_appended(self) -> Iterator[TableName]:
        """Yield the tables whose changes an earlier run appended for want of a key."""
        for table, schemas in self.log.schemas.by_table().items():
            if self._is_selected(table) and not all(each.match_key for each in schemas):
                with suppress(TidelogError):  # writing to it reports what is wrong
                    copy = self._table(table)
                    if copy.exists() and copy.layout.keyless:
                        yield table

    @guarded
    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        self.dumps.ask = ask
        super().take_again(ask)

    def _prepare_table(self, schema: TableSchema) -> None:
        table = schema.table
        self.left_out.check_rows(table)
        copy = self._table(table)
        if exists := copy.exists():
            copy.check_ours(table, self.log.generation)
            self._repair_if_restored(copy, table)
        self._check_key(copy, schema, exists)
        self._follow(copy, schema, exists)

    @guarded
    def replace_dropped(
        self, tables: Collection[str], ask: Callable[[Sequence[str]], None]
    ) -> None:
        """See `tidelog.ports.CopyingOutput`."""
        self.dumps.ask = ask
        wanted = self.left_out.taken(tables)
        dropped = [
            schema
            for table, schema in self._schemas().items()
            if table in self._missing and str(table) in wanted and not self._table(table).exists()
        ]
        if not dropped:
            return
        self.dumps.request(DROPPED, [str(each.table) for each in dropped])
        for schema in dropped:
            copy = self._table(schema.table)
            self._followed.discard(schema.table)
            with suppress(TableLeftOutError):  # reported with its first rows
                self._check_key(copy, schema, exists=False)
                self._follow(copy, schema, exists=False)

    def close(self) -> None:
        self._jobs.close()
        self._waiting.shutdown(wait=True, cancel_futures=True)
        super().close()

    @guarded
    def table_of(self, schema: TableSchema) -> TargetTable:
        """Return the table as rows of ``schema`` are delivered into the copy that there is."""
        copy = self._table(schema.table)
        return self._target(schema, copy, copy.exists())

    @guarded
    def columns(self, table: TableName) -> Collection[str] | None:
        """Return the names of the copy's columns; None: there is no copy. Raises TableLeftOutError
        if the table holds changes, as the source's had no key.
        """
        copy = self._table(table)
        if not copy.exists():
            return None
        if copy.holds_keyless():
            raise TableLeftOutError(self._appended_message(table, copy))
        return copy.columns().names

    @guarded
    def read(self, target: TargetTable, part: Range = (None, None)) -> DataFrame | None:
        """Return the copy's current rows, at least those of a range of the key, read by the session
        that the output was created with; None: there is no copy.
        """
        copy = self._table(target.source)
        if not copy.exists():
            return None
        set_key(copy, target)
        return frame_of(self._spark, copy.files(), copy.columns(), bounds_of(*part))

    @guarded
    def row_sources(self, target: TargetTable, part: Range) -> list[FileRows] | None:
        """Return the same rows for tasks: batches of the target's columns; None: there is no copy,
        or a column has another type in it.
        """
        copy = self._table(target.source)
        if not copy.exists():
            return None
        set_key(copy, target)
        files = copy.files()
        types = {each.name: each.type for each in files.layout.columns}
        if any(types.get(each.name) != each.type for each in target.columns):
            return None
        return file_rows(files, target.columns.names, bounds_of(*part), self._cores())

    # ------------------------------------------------ planning

    @property
    def _application(self) -> str:
        return application_of(self.log.generation, self.name)

    def _table_works(self, batch: OutputBatch) -> list[TableWork]:
        batch = self.left_out.with_complete_dumps(batch)
        removed_below = deleted_below(self.log, batch)
        ranges = {str(each.table): each for each in batch.tables}
        keyless = [each.table for each in batch.completed if each.rows_ordinal is not None]
        works = [
            TableWork(
                table,
                batch.start,
                batch.end,
                name in ranges,
                removed_below.get(name, 0),
                _whole_dumps(batch, name),
            )
            for name, table in tables_of(batch, [*removed_below, *keyless]).items()
            if self._is_selected(table)
        ]
        # The largest first: it decides how long the batch takes.
        return sorted(works, key=lambda work: -_size(ranges.get(str(work.table))))

    def _plan_write(self, work: TableWork) -> CopyWrite | None:
        """Return the part of the work that is left to write; None: nothing, or the table is left
        out.
        """
        try:
            copy = self._table(work.table)
            exists = copy.exists()
            if exists:
                copy.check_ours(work.table, self.log.generation)
            since = self._repair_if_restored(copy, work.table) if exists else None
            self.left_out.check_rows(work.table)
            start = max(work.start, since or 0)
            if start >= work.end:
                return None
            found = self._copy_write(copy, replace(work, start=start), since, exists)
            self.left_out.resume(
                str(work.table), work.start, keyed=not self._is_keyless(work.table)
            )
            return found
        except TableLeftOutError as error:
            self._leave_out(work.table, error, work.start)
            return None

    def _leave_out(self, table: TableName, error: TableLeftOutError, since: int) -> None:
        """Leave out the table's rows from this offset on; the other tables are written."""
        remedy = ""
        if isinstance(error, ValueRefusedError):
            where = self._table(table).location
            remedy = f" in the output's options, then move {where} away; or change the row"
        self.left_out.leave_out(table, error, since, remedy)

    def _copy_write(
        self, copy: LakeTable, work: TableWork, since: int | None, exists: bool
    ) -> CopyWrite | None:
        self.lease.check()
        parts: list[list[SegmentRef]] = []
        if work.has_rows and (refs := refs_of(self.log, work.table, work.start, work.end)):
            size = _HISTORY_BYTES if copy.layout.holds == "history" else _PART_BYTES
            parts = partition_refs(refs, partition_bytes=size, partitions=None)
        schema = schema_in(self.log, work.table, work.start, work.end)
        if schema is None and not exists and work.dumps:  # of an empty table
            schema = schema_before(self.log, work.table, work.end)
        if schema is None:
            is_due = work.deleted_below or copy.layout.holds == "changes"
            return CopyWrite(copy, work, since) if exists and is_due else None
        self._check_key(copy, schema, exists)
        self._follow(copy, schema, exists)
        _, columns = self._delivered[work.table]
        return CopyWrite(copy, work, since, parts, self._targets[work.table], columns)

    def _check_key(self, copy: LakeTable, schema: TableSchema, exists: bool) -> None:
        """Choose the layout of a table that does not exist yet. Raises KeyMissingError if rows of
        ``schema`` have no key, and are not appended.
        """
        table = schema.table
        if not exists:
            copy.choose_layout(keyless=self._is_keyless(table))
        if not schema.match_key and copy.layout.holds != "changes":
            why = self._why_not_appended(copy, table, exists)
            raise missing_key_error(schema, self.name, self._options.keyless, why)

    def _is_keyless(self, table: TableName) -> bool:
        """Does the table have no key now? Its older records may have one, or need none."""
        schema = schema_now(self.log, table)
        return schema is not None and not schema.match_key

    def _why_not_appended(self, copy: LakeTable, table: TableName, exists: bool) -> str:
        if exists:
            return f"keeps a copy at {copy.location}, which stays as it was"
        steps = steps_of(self._options.steps, table)
        if self._options.keyless == "append" and steps:
            return f"can't append its changes: the step {steps[0].action} would alter them"
        return "keeps a copy, which needs one"

    def _appended_message(self, table: TableName, copy: Copy) -> str:
        schema = schema_now(self.log, table)
        if schema is not None and not schema.match_key:
            return (
                f"{table} has no key: output {self.name} appends its changes, and the rows of its "
                f"dumps. {key_line(schema)}"
            )
        return (
            f"{table} has a key now, and output {self.name} still appends its changes to "
            f"{copy.location}. For a copy, move it away and run `{dump_command(table)}`"
        )

    def _repair_if_restored(self, copy: LakeTable, table: TableName) -> int | None:
        """Return the committed offset, after the missing rows are written if somebody restored the
        copy.
        """
        copy.settle_deletes()  # before a row that is marked is inserted again
        since = copy.committed(self._application)
        found = None if since is None else copy.find_restore(self._application, since)
        if since is None or found is None:
            return since
        start = resume_offset(self.log, copy.location, table, found)
        message = "%s was restored to an older state (%s): offsets %d to %d are written again"
        logger.warning(message, copy.location, found.why, start, since)
        self._delivered.pop(table, None)  # its columns are older ones, too
        for each in split_by_schema(
            self.log,
            batch_of(self.log, start, since),
            lambda other: other == table and self._holds_changes(table),
        ):
            self.left_out.check_rows(table)  # of the piece before
            piece = self.left_out.with_complete_dumps(each)
            below = deleted_below(self.log, piece).get(str(table), 0)
            dumps = _whole_dumps(piece, str(table))
            work = TableWork(table, piece.start, piece.end, True, below, dumps)
            write = self._copy_write(copy, work, since, True)
            if write is not None:
                self._write_all([write])
        if start == since and (schema := schema_before(self.log, table, since)) is not None:
            self._follow(copy, schema, exists=True)  # values of a dropped column were back
        return since

    def _follow(self, copy: LakeTable, schema: TableSchema, exists: bool) -> None:
        """Prepare the copy for rows of ``schema``."""
        check_has_columns(schema)
        known = self._targets.get(schema.table)
        target = self._target(schema, copy, exists)
        if not exists:
            self._check_layout(copy, target, exists=False)
            check_place(self.name, schema.table, copy, self._tables)
            if schema.table in self._followed:
                self.dumps.request(DROPPED, [str(schema.table)])
            copy.create(target, self.log.generation)
            copy.check_ours(schema.table, self.log.generation)  # catalogs may ignore case
            copy.settle_deletes()
        self._followed.add(schema.table)
        before, _ = self._delivered.get(schema.table, (None, ()))
        if target is not known or before != copy.definition():
            self._evolve(copy, schema.table, target)

    def _evolve(self, copy: LakeTable, table: TableName, target: TargetTable) -> tuple[str, ...]:
        """Return the names of the delivered columns, once the copy has them."""
        # Until it is done: a batch that is retried after an error follows again.
        self._delivered.pop(table, None)
        self._check_layout(copy, target, exists=True)
        columns = copy.evolve(target, self._options.on_schema_change)
        self._delivered[table] = copy.definition(), columns
        return columns

    def _check_layout(self, copy: LakeTable, target: TargetTable, *, exists: bool) -> None:
        """Raise TableLeftOutError if rows of ``target`` can't be written as the options say."""
        table = target.source
        if copy.layout.holds == "changes" and (steps := steps_of(self._options.steps, table)):
            raise TableLeftOutError(
                f"output {self.name} keeps the changes of {table} as the log has them, and its "
                f"step {steps[0].action} would alter rows: remove {table} from the step's "
                "tables, or keep a copy of it"
            )
        copy.check_layout(target, copy.column_types() if exists else ())

    def _holds_changes(self, table: TableName) -> bool:
        """Return True if the table has each change, or each state, under its own schema."""
        return self._is_selected(table) and self._table(table).layout.holds != "copy"

    def _target(self, schema: TableSchema, copy: LakeTable, exists: bool) -> TargetTable:
        found = self._targets.get(schema.table)
        if found is not None and found.schema.schema_id == schema.schema_id and exists:
            followed, _ = self._delivered.get(schema.table, (None, ()))
            if followed == copy.definition():  # its columns are those of the last batch
                return found
        steps = self._options.steps
        have = copy.row_types() if exists else {}
        typed = with_types(schema, self._options.types, steps, have)
        if found is None or found.schema != typed:
            found = self.transformed(typed, steps, keyed=True)
            self._targets[schema.table] = found
            # Whoever asks, the copy follows before rows of it are written.
            self._delivered.pop(schema.table, None)
        return found

    def _table(self, table: TableName) -> Copy:
        found = self._tables.get(table)
        if found is None:
            found = self._open(table, self._destination(table))
            if self._options.appends_keyless(table):
                found.choose_layout(keyless=self._is_keyless(table))
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
            ours = find_error(str(error))  # an undecodable record is not retried
            if ours is not None:
                raise ours from error
            if (known := jvm_error(error)) is not None:
                raise known from error
            reason = error_class_of(error)
            places = ", ".join(self._table(work.table).location for work in works)
            tables = ", ".join(str(work.table) for work in works)
            start, end = min(each.start for each in works), max(each.end for each in works)
            what = f"{self.product} table {places}: writing offsets {start} to {end} of {tables}"
            if lasting_reason(error) or connect_error(error):
                raise output_error(what, error) from error
            raise OutputError(f"{what} failed: {reason}") from error

    # ------------------------------------------------ writing

    def _write_copies(self, works: Sequence[TableWork]) -> None:
        if not works:
            return
        with self._named_errors(*works):
            planned = self._map_tables(self._plan_write, works)
            self._write_all([each for each in planned if each is not None])

    def _write_all(self, writes: Sequence[CopyWrite]) -> None:
        """Write and commit the rows; they are settled again if another has committed since."""
        if not writes:
            return
        for _ in range(COMMIT_TRIES):
            self.lease.check()
            results = self._jobs.settle(writes)
            failpoints.hit("lake.table.write")
            self.lease.check()
            outcomes = self._map_tables(self._try_commit, [*zip(writes, results, strict=True)])
            conflicts: list[CopyWrite] = []
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

    def _is_changed(self, copy: LakeTable, error: TableLeftOutError) -> bool:
        """Has somebody else committed to the table since it was read, so that ``error`` may be of
        a file that it has no more?
        """
        if not isinstance(error, RowsLeftOutError):
            return False
        with suppress(TableLeftOutError):
            before = copy.files().files
            return copy.exists() and copy.files().files != before
        return False

    def _refresh_write(self, write: CopyWrite) -> CopyWrite | None:
        """Return the same rows, prepared for the table as it is now; None: it is left out."""
        logger.info("%s: somebody else committed: the batch is settled again", write.copy.location)
        try:
            return self._write_of_newest(write)
        except TableLeftOutError as error:
            self._leave_out(write.work.table, error, write.work.start)
            return None

    def _write_of_newest(self, write: CopyWrite) -> CopyWrite:
        copy, table = write.copy, write.work.table
        if not copy.exists():
            raise OutputBusyError(f"{copy.location} was removed while a batch was written")
        copy.check_ours(table, self.log.generation)
        if copy.committed(self._application) != write.since:
            raise OutputBusyError(
                f"{copy.location}: another pipeline of this name committed to the table"
            )
        since = write.since or 0
        # Rows that are written again may be there now: after a RESTORE of what was before another.
        is_restored = copy.find_restore(self._application, since) is not None
        if write.work.end <= since or is_restored or not copy.deletes_are_settled():
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

    def _try_commit(self, settled: tuple[CopyWrite, list[SettleResult]]) -> TidelogError | None:
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

    def _commit(self, write: CopyWrite, results: Sequence[SettleResult]) -> None:
        copy = write.copy
        changes = [each.files for each in results if each.files is not None]
        settled = [each.settled for each in results if each.settled is not None]
        shared = [each.settled for each in results if each.files is None and each.settled]
        changes += self._jobs.replace_dead_files(copy, shared)
        changes += [FileChanges(each.added, (), (), each.change_files) for each in settled]
        copy.commit_settled(changes, self._application, write.since, write.work.end)
        self._written.append(self._tables[write.work.table])

    # ------------------------------------------------ maintenance

    def _maintain(self) -> None:
        """Compact small files, remove old ones. Copies are right without it: an error is logged."""
        copies = list(dict.fromkeys(self._written))
        self._written.clear()
        self._compact(copies)
        self._clean_up(copies)

    def _compact(self, copies: Sequence[LakeTable]) -> None:
        """Compact the files of all tables in one Spark job. If it fails, compact each table by
        itself, so that one table does not stop the others.
        """
        try:
            works = [copy.compaction() for copy in copies]
            results = iter(self._jobs.try_rewrite([work for each in works for work in each]))
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
            reason = error if isinstance(error, TidelogError) else error_class_of(error)
            logger.warning("%s: small files were not compacted: %s", copies[0].location, reason)

    def _commit_compaction(
        self, copy: LakeTable, rewritten: Sequence[tuple[RewriteWork, SettleResult]]
    ) -> None:
        """Commit what was rewritten. Files that can't be read are not read again for this."""
        changes = []
        for work, result in rewritten:
            if result.error is None:
                changes.append(files_of(result))
                continue
            if left_out_error(result.error) is not None:
                copy.not_compacted.update(file.path for file in work.copy.files)
            logger.warning("%s: small files were not compacted: %s", copy.location, result.error)
        copy.commit_compaction(changes)


def _whole_dumps(batch: OutputBatch, table: str) -> tuple[DumpCompleted, ...]:
    """Return the complete dumps of the whole table."""
    return tuple(each for each in batch.completed if each.whole and each.table == table)


def _size(found: TableRange | None) -> int:
    return found.payload_bytes if found else 0
