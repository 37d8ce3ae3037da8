"""A table of a lake whose rows are settled with its files: what the writer asks of a table format.

Tasks read and write files by `tidelog.outputs.lake.data_files.layout.TableFormat`; the driver
knows the table's files and commits what tasks have written, by `SettledTable`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidelog.errors import ConflictError, OutputBusyError, TableLeftOutError
from tidelog.model.patterns import exclusion
from tidelog.outputs.lake.contents import LakeLayout, source_columns_of
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import can_be_key
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.data_files.parquet_files import is_full
from tidelog.outputs.lake.settling.rows import VersionBounds, is_closed, newest_version
from tidelog.outputs.lake.settling.settle import ChangeFile, FileChanges
from tidelog.outputs.lake.settling.tasks import CopyFiles, RewriteWork
from tidelog.outputs.lake.table import LakeTable
from tidelog.ports import TargetTable

logger = logging.getLogger(__name__)

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


class SettledTable(LakeTable):
    """A table whose state the driver knows.

    Args:
        location, layout, keyless_layout: see `LakeTable`.
        rewrite: runs works on executors.

    Attributes:
        key: names of the columns that identify rows; files are sorted by them. Empty: not known
            yet, or rows are in the order of their version.
        null_key: whether null in the key is a value like others.
        not_compacted: paths of files that `compaction` passes over: one that was read together with
            them is damaged.
    """

    def __init__(
        self,
        location: str,
        layout: LakeLayout,
        rewrite: Rewrite,
        keyless_layout: LakeLayout | None = None,
    ) -> None:
        super().__init__(location, layout, keyless_layout)
        self.key: tuple[str, ...] = ()
        self.null_key = False
        self.not_compacted: set[str] = set()
        self._rewrite = rewrite

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
        change_files: Sequence[ChangeFile],
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
        self, changes: Sequence[FileChanges], operation: str, *, data_change: bool
    ) -> None:
        """Commit changes of files that are no batch's: ``operation``, as Delta names it. Without
        ``data_change`` the rows are the same. Raises ConflictError like `commit_settled`.
        """

    @abstractmethod
    def has_changed(self) -> bool:
        """Reads the state. Has somebody altered the table, or removed it, since it was read?"""

    def row_types(self) -> dict[str, str]:
        return {
            each.name: self.sql_type(each)
            for each in source_columns_of(self.columns(), self.layout)
        }

    def check_layout(self, target: TargetTable, have: Collection[str] = ()) -> None:
        super().check_layout(target, have)
        for name in target.key if self.layout.holds != "changes" else ():
            kind = target.columns.field(name).type
            if not can_be_key(kind):
                raise TableLeftOutError(
                    f"{self.location}: column {name} of the key of {target.source} is of type "
                    f"{kind}, by which rows can't be found. Cast it to string by a step `cast`, or "
                    + exclusion(target.source, of="the tables of the output")
                )

    def evolve(self, target: TargetTable, policy: str) -> tuple[str, ...]:
        delivered = super().evolve(target, policy)
        self.files()  # raises TableLeftOutError if there is a column that can't be written
        return delivered

    def remove_marked(self, column: str) -> None:
        self._rewrite_files(marked=column)

    def _rewrite_files(
        self, *, null_columns: tuple[str, ...] = (), marked: str | None = None
    ) -> None:
        """Rewrite all files, without the rows that are ``marked`` in that column."""
        for _ in range(COMMIT_TRIES):
            whole = self.files(marked=marked)
            works = [
                RewriteWork(replace(whole, files=(file,)), {}, null_columns, bool(marked))
                for file in whole.files
                if not is_closed(file, whole.layout)
            ]
            operation = "DELETE" if marked else "UPDATE"
            try:
                self.commit_files(self._rewrite(works), operation, data_change=True)
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
        about to make.
        """
        if self.has_changed():
            raise self._busy_error()

    def _busy_error(self) -> OutputBusyError:
        return OutputBusyError(
            f"{self.location}: others changed the table at the same time; it is tried again"
        )
