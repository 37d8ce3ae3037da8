"""The base of a lake's tables: what Delta's and Iceberg's have in common.

A copy that somebody restored to an older state resumes at the offset of its rows, though a newer
one was committed.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import quote

from pyspark.sql.types import ArrayType, MapType, StructField, StructType, VariantType

from tidelog.errors import ConflictError, NameRefusedError, OutputBusyError, TableLeftOutError
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import exclusion
from tidelog.model.schema import TableName
from tidelog.outputs.base.left_out import (
    check_columns_differ,
    check_directory,
    route_step,
    shared_address_error,
)
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.lake.contents import (
    ColumnPlan,
    CopyColumns,
    LakeLayout,
    columns_of,
    fields_of,
    plan_columns,
    source_columns_of,
)
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import can_be_key
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.parquet_files import is_full
from tidelog.outputs.lake.settling.rows import VersionBounds, is_closed, newest_version
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.outputs.lake.settling.tasks import CopyFiles, RewriteWork
from tidelog.ports import TargetTable
from tidelog.system.version import check_format

# Restored copies.


@dataclass(frozen=True)
class RestoredCopy:
    """A copy whose rows are older than its committed offset: those of ``offset``; None: unknown.
    ``why``: how that was found out, for messages.
    """

    offset: int | None
    why: str


def resume_offset(log: EventLog, location: str, table: TableName, found: RestoredCopy) -> int:
    """Return the offset from which the log has the rows that a restored copy does not have.
    Writing more than that does no harm: rows are folded to the newest state of each key before they
    are compared with the copy's.

    Raises TableLeftOutError if the log does not reach back that far.
    """
    head = log.head_offset
    whole = head == log.info.start_offset
    start = head if found.offset is None and whole else found.offset
    if start is None or start < head:
        raise TableLeftOutError(
            f"{location} was restored to an older state ({found.why}), and the event log does not "
            f"have all rows of {table} since then. Restore it to the version before that, or "
            f"move the table away and dump {table} again."
        )
    return start


# Files to compact.

# How often a change is retried when others commit at the same time.
COMMIT_TRIES = 20

Rewrite = Callable[[Sequence[RewriteWork]], Sequence[FileChanges]]

FILES_OF_A_TIER = 8
_SMALLEST_BYTES = 256 << 10  # all smaller files belong to one tier
_LARGE_BYTES = 128 << 20  # files of this size are not compacted
_MOST_BYTES = 1 << 30  # most bytes that are compacted at once
_DEAD_SHARE = 0.5  # a file with a greater share of deleted rows is rewritten by itself


def files_to_compact(
    files: Iterable[DataFile], apart: Callable[[DataFile], bool] = lambda _: False
) -> list[list[DataFile]]:
    """Return groups of files of one partition, each to be rewritten as one file (or a few large
    ones). ``apart``: files for which it is true stay apart from others.
    """
    tiers: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    groups: list[list[DataFile]] = []
    for file in files:
        live = _live_share(file)
        if live < 1 - _DEAD_SHARE:
            groups.append([file])
        elif file.size * live < _LARGE_BYTES and not is_full(file):
            partition = tuple(sorted(file.partition_values.items()))
            tiers[partition, apart(file), _tier(file.size * live)].append(file)
    for found in tiers.values():
        if len(found) >= FILES_OF_A_TIER:
            groups += _split_by_bytes(sorted(found, key=lambda file: file.modification_time_ms))
    return groups


def _tier(size: float) -> int:
    tier, limit = 0, _SMALLEST_BYTES
    while size > limit:
        tier, limit = tier + 1, limit * FILES_OF_A_TIER
    return tier


def _live_share(file: DataFile) -> float:
    """Return the share of the file's rows that are not deleted; 1 if unknown."""
    dead = file.deleted_rows
    rows = file.statistics.get("numRecords") if dead else None
    return 1 - dead / rows if rows else 1.0


def _split_by_bytes(files: Sequence[DataFile]) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    total_bytes = 0
    for file in files:
        if total_bytes + file.size > _MOST_BYTES and groups[-1]:
            groups.append([])
            total_bytes = 0
        groups[-1].append(file)
        total_bytes += file.size
    return [group for group in groups if len(group) > 1]


def _lowest(file: DataFile, layout: FileLayout) -> int:
    bounds = VersionBounds.of(file, layout)
    return 0 if bounds is None else bounds.lowest


# The table.

GENERATION_PROPERTY = "tidelog.generation"
TABLE_PROPERTY = "tidelog.table"
MARKED_PROPERTY = "tidelog.deleted"  # the column that marks deleted rows, if they stay
DROPPED_PROPERTY = "tidelog.dropped"  # columns that the source dropped, as a JSON list
HOLDS_PROPERTY = "tidelog.holds"  # the layout's ``holds``; a copy does not have it
FORMAT_PROPERTY = "tidelog.format"  # only of tables that a newer version wrote to
KEYLESS_PROPERTY = "tidelog.keyless"  # it holds changes because the source's table had no key

logger = logging.getLogger(__name__)

_PLAIN = " !$&'()*+,;=:@~"
_NOUN = {"copy": "a copy", "changes": "the changes", "history": "the history"}


def parts_of(table: TableName, name: str) -> list[str]:
    """Return namespace and name of the copy; a slash or percent sign inside is percent-encoded. If
    the destination has another ``name``, a route's, its first dot separates the two.
    """
    parts = [table.namespace, table.name]
    if name != str(table):
        parts = [part for part in name.partition(".")[::2] if part]
    return [_encoded(part) if _needs_encoding(part) else part for part in parts]


def _encoded(part: str) -> str:
    return quote(part, safe=_PLAIN).replace(".", "%2E" if part in (".", "..") else ".")


def _needs_encoding(part: str) -> bool:
    return any(c in part for c in "/%\\") or part in (".", "..")


class LakeTable(ABC):
    """A table of the lake: a copy, or what its layout says. Used by one thread at a time.

    Tasks read and write its files by `tidelog.outputs.lake.data_files.layout.TableFormat`; the
    driver knows the table's state and commits what tasks have written.

    Args:
        location: its location, for messages.
        layout: the layout of its rows.
        rewrite: runs works on executors.
        keyless_layout: the layout of one that is created while the source's table has no key; None:
            it is not created then.

    Attributes:
        key: names of the columns that identify rows; files are sorted by them. Empty: not known
            yet, or rows are in the order of their version.
        null_key: whether null in the key is a value like others.
        not_compacted: paths of files that `compaction` passes over: one that was read together with
            them is damaged.
    """

    product: ClassVar[str]  # the table format, for messages
    wider: ClassVar[Wider]  # types that it can widen in place
    rescales: ClassVar[bool] = True  # decimals, too, to a larger scale
    grows: ClassVar[bool] = False  # structs, by new members; not in a table of changes

    def __init__(
        self,
        location: str,
        layout: LakeLayout,
        rewrite: Rewrite,
        keyless_layout: LakeLayout | None = None,
    ) -> None:
        self.location = location
        self.layout = layout
        self.key: tuple[str, ...] = ()
        self.null_key = False
        self.not_compacted: set[str] = set()
        self._rewrite = rewrite
        self._layouts = {False: layout, True: keyless_layout or layout}  # is it for a keyless one?

    def holds_keyless(self) -> bool:
        """Does the table hold changes because the source's table had no key?"""
        return self.property(KEYLESS_PROPERTY) is not None

    def choose_layout(self, *, keyless: bool) -> None:
        """Use the layout for a source's table with or without a key."""
        self.layout = self._layouts[keyless]

    @abstractmethod
    def exists(self) -> bool:
        """Check whether there is a table. Reads its state; all other methods use that state."""

    @abstractmethod
    def committed(self, application: str) -> int | None:
        """Return the offset below which ``application`` has written everything."""

    @abstractmethod
    def property(self, name: str) -> str | None: ...

    @abstractmethod
    def set_property(self, name: str, value: str) -> None: ...

    @abstractmethod
    def columns(self) -> StructType:
        """Return the columns by the source's names."""

    def column_types(self) -> dict[str, str]:
        """Return names and SQL types (as of `sql_type`) of the columns, in order."""
        return {field.name: field.dataType.simpleString() for field in self.columns().fields}

    def definition(self) -> object:
        """Return a value that is equal until somebody alters the table."""
        return self.column_types()

    @abstractmethod
    def create(self, target: TargetTable, generation: str) -> None:
        """Create the table for the target's columns, unless it exists."""

    def row_types(self) -> dict[str, str]:
        """Return those of `column_types` that follow the source's, by the source's names."""
        return {
            each.name: self.sql_type(each)
            for each in source_columns_of(self.columns(), self.layout)
        }

    @abstractmethod
    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        """Alter the table as planned; everything else stays as it is."""

    @abstractmethod
    def find_restore(self, application: str, since: int) -> RestoredCopy | None:
        """Return how far the table was restored to an older state, though ``since`` is committed;
        None: it was not. Raises TableLeftOutError if it was and this can't be repaired here.
        """

    @abstractmethod
    def files(self, *, marked: str | None = None) -> CopyFiles:
        """Return the table for tasks, with all of its files. ``marked``: the column that marks
        deleted rows, by default that of the layout.
        """

    @abstractmethod
    def data_files(self) -> Mapping[str, DataFile]:
        """Return the table's files by their paths."""

    @abstractmethod
    def commit_settled(
        self,
        changes: Sequence[FileChanges],
        application: str,
        since: int | None,
        end: int,
    ) -> None:
        """Commit the rows of a batch, with ``end``: the offset below which everything is in the
        table then. For the rows of a table that was restored it is not above ``since``, and equal
        to it for the last of them.

        Raises ConflictError, and changes nothing, if somebody else committed since the state was
        last read, or if ``application`` committed since `committed` was called: another driver,
        whose commits were read while the table was altered.
        """

    @abstractmethod
    def commit_files(
        self,
        changes: Sequence[FileChanges],
        operation: str,
        *,
        data_change: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Commit changes of files that are no batch's, with ``properties``: ``operation``, as Delta
        names it. Without ``data_change`` the rows are the same. Raises ConflictError like
        `commit_settled`.
        """

    @abstractmethod
    def has_changed(self) -> bool:
        """Reads the state. Has somebody altered, restored or removed the table in the meantime?"""

    def sql_type(self, field: StructField) -> str:
        """Return the type of a column in the copy, as SQL."""
        return field.dataType.simpleString()

    def check_ours(self, table: TableName, generation: str) -> None:
        """Raise TableLeftOutError if the table was not created by Tidelog, or for another table
        than ``table``, or is not as the options say, or is of another log. Else the layout is that
        of the table. Raises NewerFormatError if a newer version wrote to it.
        """
        stored = self.property(GENERATION_PROPERTY)
        if stored is None:
            raise TableLeftOutError(
                f"{self.location} is {self._noun()} that Tidelog did not create (it has no "
                f"property {GENERATION_PROPERTY}). Move it away, or choose another path for the "
                f"output. {route_step(table)}"
            )
        if stored != generation:
            raise TableLeftOutError(
                f"{self.location} was filled from generation {stored} of the event log, this log "
                f"is generation {generation}: it was recreated. Move the table away and dump "
                f"{table} again; or, if the new log continues the old one's offsets, set the "
                f"table's property {GENERATION_PROPERTY} to {generation}."
            )
        number = self.property(FORMAT_PROPERTY)
        check_format(None if number is None else int(number), f"the table {self.location}")
        other = self.property(TABLE_PROPERTY)
        if other not in (None, str(table)):
            raise NameRefusedError(
                f"{self.location} is the copy of {other}, and {table} goes there as well: two "
                f"tables can't share one copy. {route_step(table)}"
            )
        self.choose_layout(keyless=self.holds_keyless())
        holds = self.property(HOLDS_PROPERTY) or "copy"
        if holds != self.layout.holds:
            raise TableLeftOutError(
                f"{self.location} contains {_NOUN.get(holds, holds)} of {table}, and the output's "
                f"holds says {self.layout.holds}. Write holds: {{{str(table)!r}: {holds}}}; or "
                "give the output another path and name; or move the table away and dump "
                f"{table} again."
            )

    def _noun(self) -> str:
        return f"{'an' if self.product[0] in 'AEIO' else 'a'} {self.product} table"

    def layout_columns(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout needs."""
        return self.layout.partitions

    def check_layout(self, target: TargetTable, have: Collection[str] = ()) -> None:
        """Raise TableLeftOutError if neither the target nor the table, whose columns are ``have``,
        has a column of the layout, or if it has an array there, or another type with members, or
        if rows can't be found by a column of the key.
        """
        types = {field.name: field.dataType for field in columns_of(target, self.layout)}
        for name in self.layout_columns():
            if isinstance(types.get(name), ArrayType | MapType | StructType | VariantType):
                raise TableLeftOutError(
                    f"{self.location} can't be laid out by {name}, whose type is "
                    f"{types[name].simpleString()}. Change partition_by or cluster_by of the output"
                )
            if name not in {*types, *have} or name in self.layout.own:
                whose = "it has" if self.layout.holds == "changes" else f"{target.source} has"
                raise TableLeftOutError(
                    f"{self.location} can't be laid out by {name}: {whose} no such column. Change "
                    "partition_by or cluster_by of the output"
                )
        for name in target.key if self.layout.holds != "changes" else ():
            kind = target.columns.field(name).type
            if not can_be_key(kind):
                raise TableLeftOutError(
                    f"{self.location}: column {name} of the key of {target.source} is of type "
                    f"{kind}, by which rows can't be found. Cast it to string by a step `cast`, or "
                    + exclusion(target.source, of="the tables of the output")
                )

    def evolve(self, target: TargetTable, policy: str) -> tuple[str, ...]:
        """Follow the target's columns by ``policy`` (see `tidelog.outputs.base.schema_evolution`),
        and return the names of those that rows deliver from now on.

        A column that the source dropped stays as it was, null in later rows; if the source adds it
        again, a copy's old values of it are removed. Raises OutputRefusedError for a change of type
        that can't be made in place.
        """
        self.check_names(target)
        fields = fields_of(target)
        wanted = {name: self.sql_type(field) for name, field in fields.items()}
        current, types = self.column_types(), self.row_types()
        dropped = json.loads(self.property(DROPPED_PROPERTY) or "[]")
        grows = self.grows and self.layout.holds != "changes"
        copy = CopyColumns(
            self.location, self.product, types, dropped, self.wider, self.rescales, grows
        )
        columns = plan_columns(copy, target, wanted, policy)
        deleted = self.layout.deleted
        if deleted and deleted.lower() not in {name.lower() for name in current}:
            columns = replace(columns, added={**columns.added, deleted: "boolean"})
        self.follow(columns, target)
        self.files()  # raises TableLeftOutError if there is a column that can't be written
        return columns.delivered

    def settle_deletes(self) -> None:
        """Remove rows marked as deleted where deletes are hard: otherwise nobody would check the
        mark, nor remove it from a row that was inserted again.
        """
        if self.deletes_are_settled():
            return
        marked = self.property(MARKED_PROPERTY)
        if marked and marked in self.column_types():
            self._rewrite_files({MARKED_PROPERTY: self.layout.deleted}, marked=marked)
        else:
            self.set_property(MARKED_PROPERTY, self.layout.deleted)

    def deletes_are_settled(self) -> bool:
        """Is `settle_deletes` done?"""
        return (self.property(MARKED_PROPERTY) or "") == self.layout.deleted

    def check_names(self, target: TargetTable) -> None:
        """Raise OutputRefusedError if names differ by case alone, or are ours."""
        check_columns_differ(target, self.layout.own, self.product, ignores_case=True)

    # ------------------------------------------------ rewriting files

    def _rewrite_files(
        self,
        properties: Mapping[str, str],
        *,
        null_columns: tuple[str, ...] = (),
        marked: str | None = None,
    ) -> None:
        """Rewrite all files, without the rows that are ``marked`` in that column. The same commit
        sets the ``properties`` that say so: others may bring the old rows back after it.
        """
        for _ in range(COMMIT_TRIES):
            whole = self.files(marked=marked)
            works = [
                RewriteWork(replace(whole, files=(file,)), {}, null_columns, bool(marked))
                for file in whole.files
                if not is_closed(file, whole.layout)
            ]
            operation = "DELETE" if marked else "UPDATE"
            try:
                self.commit_files(
                    self._rewrite(works), operation, data_change=True, properties=properties
                )
            except ConflictError:
                self._recheck()
            else:
                return
        raise self._busy_error()

    def compaction(self) -> list[RewriteWork]:
        """Return the works that compact small files; empty: not needed now."""
        layout = self.files().layout if self.layout.holds != "copy" else None
        groups = files_to_compact(
            (file for path, file in self.data_files().items() if path not in self.not_compacted),
            lambda file: layout is not None and is_closed(file, layout),
        )
        if not groups:
            return []
        if layout is not None and not layout.key:  # rows stay in the order of their versions
            groups = [sorted(each, key=lambda file: _lowest(file, layout)) for each in groups]
        whole = self.files()
        return [RewriteWork(replace(whole, files=tuple(group))) for group in groups]

    def commit_compaction(self, changes: Sequence[FileChanges]) -> None:
        """Commit the results of `compaction`. Does nothing if others have committed since."""
        try:
            self.commit_files(changes, "OPTIMIZE", data_change=False)
        except ConflictError:
            logger.info(
                "%s: small files were not compacted: somebody else committed", self.location
            )

    def _offset_of_rows(self, known: int | None, since: int) -> int | None:
        """Return the offset up to which a restored table has every record: ``known``, or beyond
        the newest version of its rows; None: it has none.
        """
        whole = self.files()
        reader = DataFileReader(whole.store, whole.layout)
        newest = [newest_version(file, reader, whole.layout) for file in whole.files]
        return min(max(known or 0, max(newest, default=-1) + 1), since) or None

    def _recheck(self) -> None:
        """Raise OutputBusyError if somebody altered the table: that may be the change that we were
        about to make. Or restored it: the rows of a batch would follow others than planned.
        """
        if self.has_changed():
            raise self._busy_error()

    def _busy_error(self) -> OutputBusyError:
        return OutputBusyError(
            f"{self.location}: others changed the table at the same time; it is tried again"
        )


def application_of(generation: str, output: str) -> str:
    """Return the application id of an output's commits in its tables."""
    return f"tidelog/{generation}/{output}"


def check_place(
    output: str, table: TableName, copy: LakeTable, copies: Mapping[TableName, LakeTable]
) -> None:
    """Raise NameRefusedError if the copy of another table has the same location as that of
    ``table``, or if no directory can have its name.
    """
    first = min(
        (each for each, other in copies.items() if other.location == copy.location), default=table
    )
    if first != table:
        raise shared_address_error(output, first, table, copy.location)
    check_directory(output, table, copy.location)
