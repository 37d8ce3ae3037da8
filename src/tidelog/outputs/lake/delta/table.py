"""One Delta table of the lake: its location, its creation, and how it follows its source's columns.

RESTORE brings back rows and properties, but keeps the transaction versions, by which we know a
table's offset. So each of our commits has a note (``userMetadata``, which DESCRIBE HISTORY shows):
the offset of the rows with it, and the version up to which no RESTORE is left to be handled.
Reading backward from the newest commit, the first note or RESTORE gives the rows' offset.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from tidelog.errors import ConflictError, TableLeftOutError, TidelogError
from tidelog.model.schema import TableName
from tidelog.outputs.base import tasks
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.contents import ColumnPlan, column_edits, fields_of, source_columns_of
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import (
    delta_layout,
    needs_mapping,
    plain_names,
    renamed,
    source_name,
    with_source_names,
)
from tidelog.outputs.lake.delta.options import DeltaLayout, new_definition
from tidelog.outputs.lake.delta_log import actions as log_actions
from tidelog.outputs.lake.delta_log import commits, table_state
from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.commits import CommitWriter
from tidelog.outputs.lake.delta_log.definition import TableDefinition
from tidelog.outputs.lake.delta_log.features import check_supported
from tidelog.outputs.lake.delta_log.table_state import TableState
from tidelog.outputs.lake.settling.settle import FileChanges, SettleOptions
from tidelog.outputs.lake.settling.tasks import CopyFiles
from tidelog.outputs.lake.table import (
    COMMIT_TRIES,
    DROPPED_PROPERTY,
    LakeTable,
    RestoredCopy,
    Rewrite,
    parts_of,
)
from tidelog.ports import TargetTable
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

# Restored tables.

# A RESTORE by timestamp has no time zone: if we assume a time that is too early, more rows are
# written again, never too few.
_ZONES = timedelta(hours=15)


@dataclass(frozen=True)
class DeltaCommit:
    """A commit in Delta's log; ``note``: Tidelog's note, if it has one."""

    version: int
    timestamp_ms: int
    operation: str
    parameters: dict[str, Any]
    note: dict[str, Any] | None

    @classmethod
    def parse(cls, version: int, info: dict[str, Any]) -> DeltaCommit:
        """Return the commit of the action ``commitInfo``."""
        note: Any = None
        with suppress(ValueError):  # another writer's text
            note = json.loads(info.get("userMetadata") or "null")
        return cls(
            version,
            int(info.get("timestamp") or 0),
            str(info.get("operation") or ""),
            info.get("operationParameters") or {},
            note if isinstance(note, dict) and "tidelog" in note else None,
        )


@dataclass(frozen=True)
class RestoreState:
    """The offset of the rows, None if no commit gives it. ``restored``: the version of the RESTORE
    that decided it; None if none did.
    """

    offset: int | None
    restored: int | None = None


def commit_note(application: str, end: int, checked: int) -> str:
    """Return the note for a commit after which the rows are those of offset ``end``. Nothing was
    restored between version ``checked`` and the commit's start.
    """
    return json.dumps({"tidelog": application, "end": end, "checked": checked})


def restore_state(
    read: Callable[[int], DeltaCommit | None], version: int, application: str
) -> RestoreState:
    """Return the offset of the rows at ``version``; ``read`` returns a version's commit, or None
    if it was removed from the log.
    """
    restored: int | None = None
    at = version
    # Without a limit: each OPTIMIZE and VACUUM of others adds three commits.
    while at >= 0:
        commit = read(at)
        if commit is None:
            break
        if commit.operation == "RESTORE":
            restored = at if restored is None else restored
            at = _restored_version(read, commit)
            continue
        if commit.note is not None and commit.note["tidelog"] == application:
            between = _restored_in(read, int(commit.note["checked"]), at)
            if between is None:
                return RestoreState(int(commit.note["end"]), restored)
            restored = between if restored is None else restored
            at = between
            continue
        at -= 1
    return RestoreState(None, restored)


def _restored_in(
    read: Callable[[int], DeltaCommit | None], checked: int, version: int
) -> int | None:
    """Return the newest RESTORE between the two versions, both excluded."""
    for at in range(version - 1, checked, -1):
        commit = read(at)
        if commit is not None and commit.operation == "RESTORE":
            return at
    return None


def _restored_version(read: Callable[[int], DeltaCommit | None], restore: DeltaCommit) -> int:
    """Return the version that was restored, or one before it."""
    named = restore.parameters.get("version")
    if named is not None:
        return int(named)
    try:
        # As Spark parses it: a date, or a date and a time; any text after them is ignored.
        text = str(restore.parameters.get("timestamp")).strip().replace(" ", "T")[:19]
        until = datetime.fromisoformat(text).replace(tzinfo=UTC) - _ZONES
    except ValueError:
        return -1
    for at in range(restore.version - 1, -1, -1):
        commit = read(at)
        if commit is None:
            return -1
        if commit.timestamp_ms <= until.timestamp() * 1000:
            return at
    return -1


# The table.

# Types of Spark that Delta's tables can't have; steps may ask for them.
_NO_TYPE = re.compile(r"(?:^|[<:,])(time\(\d+\)|interval [a-z ]+)(?=[>,]|$)")


def _columns_of(metadata: TableMetadata) -> StructType:
    return StructType.fromJson(with_source_names(metadata.schema))


def path_of(root: str, table: TableName, name: str) -> str:
    """Return ``root/namespace/name``, see `parts_of`."""
    return "/".join([root.rstrip("/"), *parts_of(table, name)])


class DeltaTable(LakeTable):
    """A table at its path.

    Args:
        path: directory, or URL of a prefix of an object store.
        layout: the layout of its files, with the names of our columns.
        rewrite: runs works on executors.
        keyless_layout: see `LakeTable`.
    """

    product = "Delta"
    # Changes that Delta's type widening can make in place (delta.io, "Type widening").
    grows = True
    wider: ClassVar[Wider] = {
        "smallint": ("int", "bigint", "double"),
        "int": ("bigint", "double"),
        "float": ("double",),
        "date": ("timestamp_ntz",),
    }

    layout: DeltaLayout

    def __init__(
        self,
        path: str,
        layout: DeltaLayout,
        rewrite: Rewrite,
        keyless_layout: DeltaLayout | None = None,
    ) -> None:
        super().__init__(path, layout, rewrite, keyless_layout)
        self.path = path
        self.store = open_file_store(path)
        self.state = TableState(self.store)
        self._commits = CommitWriter(self.store)
        self._supported: object = None  # protocol and metadata of the last check
        self._checked = -1  # no RESTORE up to this version is left to be handled
        self._restored = -1  # the same, once missing rows are written again
        self._expected: tuple[int, int] | None = None  # our commit: version, transaction version

    # ------------------------------------------------ what there is

    def exists(self) -> bool:
        self.state.refresh()
        if self.state.version < 0:
            return False
        found = (self.protocol, self.metadata)
        if self._supported != found:
            check_supported(*found, self.location)
            self._supported = found
        return True

    @property
    def protocol(self) -> TableProtocol:
        assert self.state.protocol is not None  # after `exists` or `create`
        return self.state.protocol

    @property
    def metadata(self) -> TableMetadata:
        assert self.state.metadata is not None  # after `exists` or `create`
        return self.state.metadata

    def committed(self, application: str) -> int | None:
        """Return the last transaction version that ``application`` committed."""
        return self.state.transactions.get(application)

    def property(self, name: str) -> str | None:
        return self.metadata.configuration.get(name)

    def definition(self) -> object:
        return self.metadata

    def check_ours(self, table: TableName, generation: str) -> None:
        super().check_ours(table, generation)
        names = {each["name"]: source_name(each) for each in self.metadata.schema["fields"]}
        kept = tuple(names[each] for each in self.metadata.partition_columns)
        wanted = self.layout.partitions
        if kept != wanted:
            raise TableLeftOutError(
                f"{self.location} is partitioned by {', '.join(kept) or 'nothing'}, and the "
                f"configuration says {', '.join(wanted) or 'nothing'}. A Delta table keeps its "
                "partitions: set partition_by accordingly, or move the table away and dump "
                f"{table} again."
            )

    def layout_columns(self) -> tuple[str, ...]:
        return (*self.layout.partitions, *self.layout.clusters)

    def columns(self) -> StructType:
        """Return the columns by the source's names."""
        return _columns_of(self.metadata)

    def files(self, *, marked: str | None = None) -> CopyFiles:
        """Return the table for tasks, with all of its files. ``marked``: the column that marks
        deleted rows, by default that of the layout.
        """
        layout = self.layout
        deleted = layout.deleted if marked is None else marked
        found = delta_layout(
            self.metadata,
            key=self.key,
            version=layout.version,
            deleted=deleted if deleted in self.column_types() else "",
            null_key=self.null_key,
            history=layout.holds == "history",
        )
        options = SettleOptions(
            deletion_vectors=found.deletion_vectors, cache_bytes=layout.cache_bytes
        )
        files = tuple(self.state.files.values())
        return CopyFiles(self.location, self.store, found, files, options, tasks.armed_failpoints())

    def data_files(self) -> Mapping[str, DataFile]:
        return self.state.files

    # ------------------------------------------------ what it is like

    def create(self, target: TargetTable, generation: str) -> None:
        self.check_names(target)
        definition = new_definition(target, generation, self.layout)
        try:
            self._commits.commit(
                self.state,
                definition.changes(None),
                operation="CREATE TABLE",
                parameters={},
                note=None,
            )
        except ConflictError:  # somebody created one: `check_ours` finds out who
            self.exists()

    def check_names(self, target: TargetTable) -> None:
        super().check_names(target)
        for field in fields_of(target).values():
            if found := _NO_TYPE.search(field.dataType.simpleString()):
                raise TableLeftOutError(
                    f"{self.location}: Delta has no type for column {field.name}, {found[1]}: cast "
                    f"it by a step: {{cast: {{{field.name}: string}}}}"
                )

    def set_property(self, name: str, value: str) -> None:
        self.set_properties({name: value})

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table in one commit."""
        self._define("SET TBLPROPERTIES", lambda table: table.with_properties(properties))

    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        self._null_readded_columns(columns)

        def change(table: TableDefinition) -> TableDefinition:
            found = column_edits(columns, target, _columns_of(table.metadata), self.layout)
            names = self._names(table, target)
            if needs_mapping(renamed(each.field, names).name for each in found if not each.widens):
                table = table.with_column_mapping()
            for each in found:
                field, within = renamed(each.field, names), names.get(each.within, each.within)
                if each.widens:
                    table = table.with_type(field.name, field.dataType, within=within)
                else:
                    table = table.with_columns([field], within=within)
            if self.layout.clusters and not self.layout.partitions:
                table = table.with_clusters([names.get(n, n) for n in self.layout.clusters])
            return table

        self._define("CHANGE COLUMNS", change)

    def _names(self, table: TableDefinition, target: TargetTable) -> dict[str, str]:
        """Return the names in the table of its columns and of the target's, by the source's."""
        have = StructType.fromJson(dict(table.metadata.schema))
        fields = source_columns_of(have, self.layout) if self.layout.holds == "changes" else have
        known = {name: name for name in self.layout.reserved}
        known |= {source_name(each.jsonValue()): each.name for each in fields}
        if not self.layout.plain_names or table.has_mapping:
            return known
        return plain_names(target.columns.names, known)

    def _null_readded_columns(self, columns: ColumnPlan) -> None:
        if columns.dropped == json.loads(self.property(DROPPED_PROPERTY) or "[]"):
            return
        dropped = json.dumps(columns.dropped)
        if columns.readded and self.layout.holds != "changes":  # they stay as they were
            self._rewrite_files({DROPPED_PROPERTY: dropped}, null_columns=tuple(columns.readded))
        else:
            self.set_property(DROPPED_PROPERTY, dropped)

    def _definition(self) -> TableDefinition:
        return TableDefinition(self.protocol, self.metadata, dict(self.state.domains))

    def _define(self, operation: str, change: Callable[[TableDefinition], TableDefinition]) -> None:
        for _ in range(COMMIT_TRIES):
            before = self._definition()
            actions = change(before).changes(before)
            if not actions:
                return
            try:
                self._commits.commit(
                    self.state, actions, operation=operation, parameters={}, note=None
                )
            except ConflictError:
                self._recheck()
            else:
                return
        raise self._busy_error()

    def commit_files(
        self,
        changes: Sequence[FileChanges],
        operation: str,
        *,
        data_change: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        before = self._definition()
        after = before if properties is None else before.with_properties(properties)
        actions = [*after.changes(before), *self.actions(changes, data_change=data_change)]
        if actions:
            failpoints.hit("lake.rewrite.commit")
            self._commits.commit(self.state, actions, operation=operation, parameters={}, note=None)
            self.write_checkpoint()

    # ------------------------------------------------ what is written

    def has_changed(self) -> bool:
        before, version = self.metadata, self.state.version
        if not self.exists() or self.metadata != before:
            return True
        return _restored_in(self._commit_of, version, self.state.version + 1) is not None

    def commit_settled(
        self,
        changes: Sequence[FileChanges],
        application: str,
        since: int | None,
        end: int,
    ) -> None:
        self.commit(self.actions(changes, data_change=True), application, since, end)

    def actions(self, changes: Sequence[FileChanges], *, data_change: bool) -> list[dict[str, Any]]:
        """Return a commit's actions for changed files."""
        at_ms = unix_ms()
        found: list[dict[str, Any]] = []
        for each in changes:
            for file in each.removed:
                found.append(log_actions.remove(file, at_ms=at_ms, data_change=data_change))
            for before, after in each.marked:
                found.append(log_actions.remove(before, at_ms=at_ms, data_change=data_change))
                found.append(log_actions.add(after, data_change=data_change))
            found += [log_actions.add(file, data_change=data_change) for file in each.added]
            found += [
                log_actions.cdc(file.path, partition_values=file.partition_values, size=file.size)
                for file in each.change_files
            ]
        return found

    def commit(
        self,
        actions: Sequence[Mapping[str, Any]],
        application: str,
        since: int | None,
        end: int,
    ) -> None:
        """Commit ``actions`` as `commit_settled` does."""
        if self.committed(application) != since:
            raise ConflictError(f"{self.location}: another driver wrote rows at the same time")
        again = since is not None and end <= since  # nothing is beyond the last transaction
        checked = self._restored if end == since else self._checked
        before = self.state.version
        own = [] if again else [log_actions.transaction(application, end)]
        self._commits.commit(
            self.state,
            [*actions, *own],
            operation="WRITE" if self.layout.holds == "changes" else "MERGE",
            parameters={"mode": "Append"} if self.layout.holds == "changes" else {},
            note=commit_note(application, end, checked),
        )
        self._expected = (before + 1, end) if before == checked and not again else None
        self._checked = checked
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint if one is due. The table is correct without it: an error is logged,
        unless another writer replaced a commit of ours.
        """
        try:
            if commits.is_checkpoint_due(self.state):
                commits.write_checkpoint(self.store, self.state)
                table_state.clean_up_log(self.store, self.state)
        except TableLeftOutError:
            raise
        except TidelogError as error:
            logger.warning("%s: no checkpoint of the log was written: %s", self.location, error)

    def find_restore(self, application: str, since: int) -> RestoredCopy | None:
        version = self.state.version
        if version == self._checked:
            return None
        # There is one more commit, and it is ours.
        if self._expected == (version, since):
            self._checked = version
            return None
        found = restore_state(self._commit_of, version, application)
        if found.offset == since or found.restored is None:
            self._checked = version
            return None
        self._restored = version
        offset = found.offset
        if self.layout.holds != "copy":  # each change is written only once
            offset = self._offset_of_rows(offset, since)
        return RestoredCopy(offset, f"version {found.restored} is a RESTORE")

    def _commit_of(self, version: int) -> DeltaCommit | None:
        info = self.state.commit_info(version)
        return None if info is None else DeltaCommit.parse(version, info)
