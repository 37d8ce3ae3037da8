"""Removes files that no recent version needs, in a thread beside the batches.

It follows Delta's VACUUM, but writes nothing into the table's history: VACUUM START and END are
optional.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.compute as pc

from tidelog.errors import (
    OutputError,
    OutputRefusedError,
    StateError,
    TidelogError,
    message_without_values,
)
from tidelog.model.option_values import is_object_store
from tidelog.outputs.base.file_store import is_beside
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import location_in
from tidelog.outputs.lake.data_files.file_reader import folder_text
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.delta_log.actions import TableMetadata
from tidelog.outputs.lake.delta_log.commits import tombstones
from tidelog.outputs.lake.delta_log.table_state import (
    LOG_FOLDER,
    REMOVED_FILES,
    CheckpointFiles,
    TableState,
    removed_files_ms,
)
from tidelog.ports import Document, StateStore
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

_CHANGE_DATA: Final = "_change_data"
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_PHYSICAL: Final = "delta.columnMapping.physicalName"


@dataclass(frozen=True)
class NeededFiles:
    """The files that must be kept: ``names`` below the table; and ``vectors``, by their locations
    in the log.
    """

    names: set[str]
    vectors: set[str]

    def __contains__(self, name: str) -> bool:
        return name in self.names or location_in(name) in self.vectors


@dataclass(frozen=True)
class TableFiles:
    """The files of a table's log at one moment, for another thread than that of the state.

    Attributes:
        alive: files of the current version.
        removed: ``remove`` objects after the checkpoint.
        checkpoint: None: all is in ``removed``.
    """

    alive: Sequence[DataFile]
    removed: Sequence[Mapping[str, Any]]
    checkpoint: CheckpointFiles | None

    @classmethod
    def of(cls, state: TableState) -> TableFiles:
        return cls(list(state.files.values()), list(state.removed), state.checkpoint)

    def needed(self, store: FileStore, since_ms: int) -> NeededFiles:
        """Return the files that a version needs that was current at ``since_ms`` (since 1970, UTC)
        or later. ``store``: the table's.

        Raises OutputRefusedError if the log is damaged, or has an unknown kind of deletion vector.
        """
        removed = tombstones(store, self.checkpoint, self.removed, since_ms - 1)
        paths = {each.path for each in self.alive}
        paths.update(pc.struct_field(removed, "path").to_pylist())
        vectors = [each.deletion_vector for each in self.alive]
        places = {(each.storage, each.location) for each in vectors if each is not None}
        of_removed = pc.struct_field(removed, "deletionVector")
        columns = [
            pc.struct_field(of_removed, name).to_pylist()
            for name in ("storageType", "pathOrInlineDv")
        ]
        places.update(zip(*columns, strict=True))
        names = set(_names(paths))
        vectors_at = set()
        for storage, location in places:
            if storage == "u":
                vectors_at.add(location)
            elif storage == "p":
                names.update(_names([location]))
            elif storage not in ("i", None):
                raise OutputRefusedError(
                    f"{store.path}: the log has deletion vectors stored as {storage!r}, which this "
                    "version of Tidelog does not know. Update Tidelog."
                )
        return NeededFiles(names, vectors_at)


def partition_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the first parts of the names of a partition's folders, for all column names."""
    names = list(metadata.partition_columns)
    for each in metadata.schema["fields"]:
        if each["name"] in metadata.partition_columns:
            names.append((each.get("metadata") or {}).get(_PHYSICAL, each["name"]))
    return tuple(f"{folder_text(name)}=" for name in names)


def is_hidden(name: str, partitions: tuple[str, ...]) -> bool:
    """Return True if a file is not part of the table's data: it, or a folder above it, begins with
    ``_`` or ``.`` and is neither the change feed's folder nor a partition's.

    Args:
        name: a file's or folder's name below the table.
        partitions: see `partition_folders`.
    """
    parts = name.split("/")
    return any(
        part.startswith(("_", ".")) and not part.startswith(partitions)
        for part in (parts[1:] if parts[0] == _CHANGE_DATA else parts)
    )


def _names(paths: Iterable[str]) -> Iterator[str]:
    """Yield the names below the table that ``paths`` of the log may have. For an absolute path
    that is every end of it, because a table may be reached by other URLs.
    """
    for path in paths:
        name = unquote(path)
        yield name
        if _ABSOLUTE.match(name):
            at = name.find("/")
            while at >= 0:
                yield name[at + 1 :]
                at = name.find("/", at + 1)


logger = logging.getLogger(__name__)

FIRST_S = 3600.0  # after the output wrote to the table for the first time
EVERY_S = 24 * 3600.0
MOST_FILES = 10_000  # per turn
_AT_ONCE = 1000  # files to delete before the next check whether to stop
_WAIT_S = 0.1  # between two looks whether to stop
_DAY_MS = 24 * 3_600_000

# Property of a table: the time since when its log and checkpoints have all removed files; in
# milliseconds since 1970.
KNOWN_SINCE_PROPERTY = "tidelog.removedFilesKnownSince"


class VacuumTimes:
    """When each table is to be vacuumed, in seconds since 1970: one document of the state store, so
    that runs of minutes do it too. An error of the store is logged; two that write it at once do no
    harm: then a table is vacuumed again.

    Args:
        state: None: only this process knows the times.
        key: the document's key; its value has the times by the tables' paths.
    """

    def __init__(self, state: StateStore | None, key: str) -> None:
        self._state = state
        self._key = key
        self._changed = False

    @cached_property
    def _times(self) -> dict[str, float]:
        found: Document | None = None
        if self._state is not None:
            with _logged_errors():
                found = self._state.get(self._key)
        return {} if found is None else dict(found.value)

    def is_due(self, path: str) -> bool:
        """Is the table due? One without a time gets its first one."""
        now = time.time()
        if path not in self._times:
            self.set(path, now + FIRST_S)
        # A clock that was put back must not put it off.
        return not now < self._times[path] <= now + max(FIRST_S, EVERY_S)

    def set(self, path: str, due: float) -> None:
        self._times[path] = due
        self._changed = True

    def store(self) -> None:
        """Store the times that have changed."""
        if not self._changed:
            return
        self._changed = False
        if self._state is not None:
            with _logged_errors():
                self._state.put(self._key, self._times, None)


class Vacuum:
    """Vacuums an output's tables, each once a day, one after another.

    A table's files are removed in turns, at most one after a batch: the batch's thread collects
    what the table needs now, another thread lists and deletes.

    Args:
        after_s: files are kept that a version needs that was current this long ago or later; longer
            where the table's ``delta.deletedFileRetentionDuration`` is longer.
        name: the thread's name.
        times: when tables are due. A table gets its next time at the end of its files: what a
            process that ends did not finish, the next one begins again.
    """

    def __init__(self, after_s: float, name: str, times: VacuumTimes) -> None:
        self._after_ms = math.ceil(after_s * 1000)
        self._times = times
        self._begun: set[str] = set()  # paths of tables that wait or are vacuumed
        self._waiting: deque[DeltaTable] = deque()
        self._sweep: Sweep | None = None
        self._stopped = threading.Event()
        self._turn: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def take_turn(self, written: Iterable[DeltaTable]) -> None:
        """Continue, or start with a table that is due; returns at once. An error is logged.
        ``written``: tables of the batch.
        """
        for copy in written:
            if self._times.is_due(copy.path) and copy.path not in self._begun:
                self._begun.add(copy.path)
                self._waiting.append(copy)
        if self._turn is None or self._turn.done():
            self._take_next_turn()
        self._times.store()

    def finish(self, stop: threading.Event) -> None:
        """Vacuum all tables that wait, or until ``stop``."""
        while not (stop.is_set() or self._stopped.is_set()):
            if self._turn is not None and not self._turn.done():
                wait([self._turn], _WAIT_S)
                continue
            self._take_next_turn()
            if self._sweep is None:
                break
        self._times.store()

    def close(self) -> None:
        """Stop the thread; waits for a running request of the store, which can't be stopped."""
        self._stopped.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _take_next_turn(self) -> None:
        if self._sweep is not None and self._sweep.is_done:
            self._end(self._sweep.copy)
            self._sweep = None
        if self._sweep is None:
            self._sweep = self._next()
        if self._sweep is None:
            return
        sweep = self._sweep
        try:
            sweep.copy.exists()  # refresh the state
            files = TableFiles.of(sweep.copy.state)
            self._turn = self._thread.submit(sweep.take_turn, files)
        except TidelogError as error:
            sweep.fail(error)

    def _next(self) -> Sweep | None:
        while self._waiting:
            copy = self._waiting.popleft()
            try:
                copy.exists()
                since_ms = _since_ms(copy, self._after_ms)
            except TidelogError as error:
                _warn(copy, error)
                self._end(copy)
                continue
            if since_ms is not None:
                return Sweep(copy, since_ms, self._stopped)
            self._end(copy)
        return None

    def _end(self, copy: DeltaTable) -> None:
        self._begun.discard(copy.path)
        self._times.set(copy.path, time.time() + EVERY_S)


class Sweep:
    """One pass through the files of a table.

    Args:
        copy: the table.
        since_ms: versions that were current then or later stay readable; since 1970, UTC.
        stopped: when set, the turn ends early.
    """

    def __init__(self, copy: DeltaTable, since_ms: int, stopped: threading.Event) -> None:
        self.copy = copy
        self.is_done = False
        self._since_ms = since_ms
        self._stopped = stopped
        self._partitions = partitions = partition_folders(copy.metadata)
        listed = "" if is_object_store(copy.store.path) else LOG_FOLDER  # see `is_beside`
        self._files = copy.store.all_files(
            lambda folder: folder != listed and is_hidden(folder, partitions)
        )
        self._removed = self._bytes = 0

    def take_turn(self, files: TableFiles) -> None:
        """Remove files up to `MOST_FILES`, or all. ``files``: the table as it is now: somebody may
        have restored it since the last turn.
        """
        try:
            needed = files.needed(self.copy.store, self._since_ms)
            doomed: list[str] = []
            for file in self._files:
                if self._stopped.is_set():
                    return
                if file.modified_ms < self._since_ms and (
                    is_beside(file.name)
                    or (file.name not in needed and not is_hidden(file.name, self._partitions))
                ):
                    doomed.append(file.name)
                    self._bytes += file.size
                    if len(doomed) == MOST_FILES:
                        break
            else:
                self.is_done = True
            self._delete(doomed)
            if self.is_done:
                message = "%s: removed %d files (%d bytes) that no recent version needs"
                logger.info(message, self.copy.location, self._removed, self._bytes)
        except Exception as error:  # noqa: BLE001 - nobody reads the thread's result
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.is_done = True
        _warn(self.copy, error)

    def _delete(self, names: list[str]) -> None:
        store = self.copy.store
        for start in range(0, len(names), _AT_ONCE):
            if self._stopped.is_set():
                return
            some = names[start : start + _AT_ONCE]
            store.delete(some)
            failpoints.hit("delta.vacuum.deleted")
            if store.tag(some[-1]) is not None:
                raise OutputError(
                    f"{store.path}/{some[-1]} can't be deleted: allow it, or leave out vacuum_after"
                )
            self._removed += len(some)


def _since_ms(copy: DeltaTable, after_ms: int) -> int | None:
    """Return the time since when versions stay readable; None: nothing may be removed.

    Checkpoints drop removed files after ``delta.deletedFileRetentionDuration``. Where that is
    shorter, it is set to the longer time, so that other writers' checkpoints keep them, too. Files
    that were dropped before may be needed until that time has passed.
    """
    now_ms = unix_ms()
    kept_ms = removed_files_ms(copy.metadata.configuration)
    if kept_ms is None:
        logger.warning("%s: no files are removed: %s can't be parsed", copy.location, REMOVED_FILES)
        return None
    if kept_ms < after_ms:
        longer = f"interval {math.ceil(after_ms / _DAY_MS)} days"
        copy.set_properties({KNOWN_SINCE_PROPERTY: str(now_ms - kept_ms), REMOVED_FILES: longer})
    since_ms = now_ms - max(kept_ms, after_ms)
    known_since_ms = int(copy.property(KNOWN_SINCE_PROPERTY) or 0)
    if since_ms < known_since_ms:
        logger.info(
            "%s: no files are removed yet: the log has its removed files for %d days only",
            copy.location,
            (now_ms - known_since_ms) // _DAY_MS,
        )
        return None
    return since_ms


@contextmanager
def _logged_errors() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        logger.warning("when tables are to be vacuumed is not known or not stored: %s", error)


def _warn(copy: DeltaTable, error: Exception) -> None:
    logger.warning(
        "%s: old files were not removed: %s", copy.location, message_without_values(error)
    )
