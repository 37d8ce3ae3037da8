"""Runs each table of a dump from first to last record: start, end, failure, cancel."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.capture.dumps.chunk_planner import ChunkQueue, ChunkTask, DumpTable
from tidelog.capture.dumps.dump_notifications import DumpNotices
from tidelog.capture.dumps.refetch_queue import KEYS_PER_DOCUMENT, RefetchQueue
from tidelog.capture.dumps.state import (
    FINISHED_TABLES,
    NO_KEY,
    TABLE_GONE,
    UNFINISHED_DUMPS,
    DumpInput,
    DumpState,
    DumpStatus,
    TableInput,
    TableProgress,
    TableRun,
    TableRunInput,
    TableRunStatus,
    TableStatus,
    completed_record,
    started_record,
    whole_table,
)
from tidelog.capture.dumps.store import AUTOMATIC, DumpStore, is_own
from tidelog.capture.dumps.thread_messages import DecisionQueue
from tidelog.capture.notifications import TableScanStatus
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.errors import (
    ChunkDeniedError,
    ChunkError,
    ConnectionLostError,
    GapError,
    Policy,
    SourceChangedError,
    SourceError,
    UnsupportedTableError,
)
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, KeyExtractor, TableShape
from tidelog.system.processes import unix_ms

SMALL_TABLE_ROWS: Final = 1024
"""Rows: below this, statistics say little, and a few round trips are most of the time."""
SMALL_TABLES_AHEAD: Final = 4
"""Small tables that are begun before a reader is free for them: that takes longer than to read one.
"""
RECONNECT_S = 0.5
REFETCH_END_S = 5.0
"""How long a table that was read to its end waits for a moment without keys to read again."""


LookupResult = TableShape | SourceError | None
"""The catalogue's answer for a table: its shape, an error, or None: it does not exist."""


@dataclass(frozen=True, slots=True)
class DumpParts:
    """What all parts of a coordinator use.

    Attributes:
        catalogue, keys: ports.
        decisions: the lock, and what is done under it and after it.
        store: the dumps and their progress.
        queue: the chunks to read.
        refetch_queue: the keys to read again.
        notices: notifications about dumps.
    """

    catalogue: Catalogue
    keys: KeyExtractor
    decisions: DecisionQueue
    store: DumpStore
    queue: ChunkQueue
    refetch_queue: RefetchQueue
    notices: DumpNotices


class DumpTables:
    """Starts and ends the tables of dumps. The caller holds the coordinator's lock."""

    def __init__(
        self,
        parts: DumpParts,
        take_snapshot: Callable[[], Snapshot],
        unsupported: UnsupportedTables,
    ) -> None:
        self._take_snapshot = take_snapshot
        self._catalogue = parts.catalogue
        self._unsupported = unsupported
        self._decisions = parts.decisions
        self._store = parts.store
        self._queue = parts.queue
        self._refetch_queue = parts.refetch_queue
        self._notices = parts.notices
        self._runs: dict[DumpTable, TableRun] = {}
        self.read_keyless: Callable[[TableRun], None] = lambda run: None
        """Reads a table without a key, later; set once."""

    def next_task(self, dump: DumpState, readers: int) -> ChunkTask | None:
        """The dump's next chunk, from the first tables that have one. No more tables than readers
        are in progress, and a few small ones, so that key histories are kept as briefly as
        possible.
        """
        self.begin(dump)
        under_way, ahead = 0, SMALL_TABLES_AHEAD
        for progress in dump.tables:
            if progress.status in FINISHED_TABLES:
                continue
            dump_table = (dump.dump_id, progress.table)
            run = self._runs.setdefault(dump_table, TableRun(dump, progress))
            if run.status in (TableRunStatus.COMPLETING, TableRunStatus.READING_KEYLESS):
                continue
            if under_way >= readers + ahead:
                return None
            under_way += 1
            if not _is_small(run):
                ahead = 0
            if run.status is TableRunStatus.WAITING:
                self._start(run)
            elif run.status is TableRunStatus.READING:
                rows = self._store.options.chunk_rows
                task = self._queue.next_chunk(dump_table, rows, planned=readers > 1)
                if task is not None:
                    return task
                wanted = self._queue.keys_to_fetch(dump_table)
                if wanted is not None:
                    self._effect(run, partial(self._fetch_keys, dump_table, *wanted))
                self._complete_if_read(run)
        return None

    def _fetch_keys(self, dump_table: DumpTable, key_set: str, first: int) -> None:
        keys = self._store.keys_of(key_set, first, KEYS_PER_DOCUMENT)
        self._decisions.post(lambda: self._queue.add_fetched_keys(dump_table, first, keys))

    def begin(self, dump: DumpState) -> None:
        """Report once that the dump starts, and which of its tables can't be dumped."""
        if dump.status is not DumpStatus.QUEUED:
            return
        dump.transition(DumpInput.BEGIN)
        self._notices.started(dump)
        for rejected in dump.rejected:
            self._notices.rejected(dump, rejected)
        if not dump.tables:
            self._finish(dump)

    # ------------------------------------------------------------ start

    def look_up(self, progress: TableProgress) -> LookupResult:
        """Query the catalogue for the table. Call it without the lock.

        Raises:
            SourceError: if the log must not be read on.
        """
        try:
            return self._catalogue.shape(TableName.parse(progress.table))
        except (GapError, SourceChangedError):
            raise
        except SourceError as error:
            return error

    def admit(self, dump: DumpState, progress: TableProgress, found: LookupResult) -> bool:
        """Begin the table as it was ``found``; False if it can't be dumped."""
        if progress.status in FINISHED_TABLES:  # cancelled while it was looked up
            return False
        if isinstance(found, UnsupportedTableError):
            self.refuse(dump, progress, found)
            return False
        if isinstance(found, SourceError):
            self.fail(dump, progress, str(found))  # this table's only, e.g. a type
            return False
        if found is None:
            progress.may_pass = False
            self.fail(dump, progress, TABLE_GONE, TableScanStatus.UNKNOWN_SCHEMA)
            return False
        if not found.schema.key and not reads_whole(found, progress):
            progress.may_pass = False
            self.fail(dump, progress, NO_KEY, TableScanStatus.NO_PRIMARY_KEY)
            return False
        progress.estimated_rows = found.estimated_rows
        if reads_whole(found, progress):
            progress.key_columns = None
        elif progress.key_set is None and progress.key_columns is None:
            progress.key_columns = found.schema.match_key
        progress.spell_keys(found.key_spelling)
        progress.started_ms = progress.started_ms or unix_ms()
        return True

    def _start(self, run: TableRun) -> None:
        """Look the table up, then append its first record: a replay from it gives the table."""
        run.transition(TableRunInput.NEXT)

        def look_up() -> None:
            result = self.look_up(run.progress)
            self._decisions.post(lambda: self._on_lookup(run, result, look_up))

        self._effect(run, look_up)

    def _on_lookup(self, run: TableRun, found: LookupResult, again: Callable[[], None]) -> None:
        if run.ended:
            return
        if run.dump.status is DumpStatus.PAUSED:
            run.transition(TableRunInput.PAUSED)
            return
        if is_unavailable(found):
            self._retry_unavailable(run, found, again)
            return
        if not self.admit(run.dump, run.progress, found):
            return
        if isinstance(found, TableShape) and reads_whole(found, run.progress):
            run.transition(TableRunInput.FOUND_KEYLESS)
            self.read_keyless(run)
            return
        if run.progress.first_offset is not None:  # begun before a restart
            run.transition(TableRunInput.FOUND_BEGUN)
            self._queue.start(run.dump, run.progress, self._store.options.chunk_rows)
            return
        run.transition(TableRunInput.FOUND)

        def appended(offset: int) -> None:
            self._decisions.post(lambda: self._find_unseen(run, offset))

        loop, table = self._decisions.loop, TableName.parse(run.progress.table)
        record = started_record(run.dump, run.progress)
        self._effect(run, lambda: loop.retain(table))
        self._effect(run, lambda: loop.append_control(record, appended))

    def _find_unseen(self, run: TableRun, offset: int) -> None:
        """Find the earliest emitted record that a current snapshot can't see: a chunk's snapshot
        may not see it either; then the chunk does not have it, and replay must begin with it.
        """
        run.transition(TableRunInput.APPENDED)

        def find() -> None:
            try:
                snapshot = self._take_snapshot()
            except (ChunkError, ConnectionLostError) as error:
                failure = error
                self._decisions.post(lambda: self._retry_unavailable(run, failure, find))
                return
            table = TableName.parse(run.progress.table)
            unseen = self._decisions.loop.first_unseen(snapshot, table)
            self._decisions.post(lambda: self._start_reading(run, offset, unseen))

        self._effect(run, find)

    def _start_reading(self, run: TableRun, offset: int, unseen: int | None) -> None:
        """Start the chunks; replay begins at the first record, or at an earlier unseen one."""
        run.transition(TableRunInput.UNSEEN_KNOWN)
        if run.ended:
            return
        run.asked_before = self._refetch_queue.number
        run.progress.begin(offset, offset if unseen is None else min(offset, unseen))
        self._queue.start(run.dump, run.progress, self._store.options.chunk_rows)
        self._store.store(run.dump)

    def _retry_unavailable(
        self, run: TableRun, error: LookupResult, again: Callable[[], None]
    ) -> None:
        """Query again later: the source did not answer."""
        run.transition(TableRunInput.AWAY)
        self._store.chunks_read.failed(error)
        self._effect(run, again, RECONNECT_S)

    def _effect(self, run: TableRun, effect: Callable[[], None], delay_s: float = 0.0) -> None:
        """Add an effect that is skipped if the table ends first: it may wait behind others."""

        def unless_ended() -> None:
            if not run.ended:
                effect()

        self._decisions.effect(unless_ended, delay_s)

    # ------------------------------------------------------------ end

    def _complete_if_read(self, run: TableRun) -> None:
        """Append the dump's last record once all is read, including the keys to read again."""
        dump, progress = run.dump, run.progress
        if not self._queue.is_exhausted(progress):
            return
        if not progress.complete:
            self.fail(dump, progress, progress.lost)
            return
        if self._refetch_waits(run):
            return
        reason = self._unread(run)
        if reason:
            self.fail(dump, progress, reason)
            return
        run.transition(TableRunInput.ALL_READ)

        def completed(offset: int) -> None:
            self._decisions.post(lambda: self.complete(dump, progress, offset))

        record = completed_record(dump, progress)
        self._effect(run, lambda: self._decisions.loop.append_control(record, completed))

    def _unread(self, run: TableRun) -> str:
        """A message about rows that could not be read although all others were; empty: none."""
        progress = run.progress
        if progress.failed:
            count = len(progress.failed)
            return (
                f"{count} key range{'s' * (count > 1)} could not be read; all other rows were: "
                "`tidelog status --ranges` shows which; fix them and dump the table again"
            )
        since = -1 if run.asked_before is None else run.asked_before
        count = self._refetch_queue.unread(progress.table, since=since)
        if count:
            return (
                f"{count} row{'s' * (count > 1)} that changed during the dump could not be read, "
                "and the log has only some of the columns; all other rows were read: fix "
                f"{'them' if count > 1 else 'it'} and dump the table again"
            )
        return ""

    def _refetch_waits(self, run: TableRun) -> bool:
        """Must keys be read again before the table is complete? All waiting keys, as long as they
        come to an end; if there are always new ones, only those requested until the table was read.
        """
        now = time.monotonic()
        if run.read_at is None:
            run.read_at = (now, self._refetch_queue.number)
        since, number = run.read_at
        upto = None if now - since < REFETCH_END_S else number
        return self._refetch_queue.has_pending(run.progress.table, upto)

    def complete(self, dump: DumpState, progress: TableProgress, offset: int) -> None:
        """Complete the table; its last record has this ``offset``."""
        run = self._runs.get((dump.dump_id, progress.table))
        ended = progress.status in FINISHED_TABLES
        progress.transition(TableInput.COMPLETE)
        if not ended:
            progress.finalized_until = offset + 1
            progress.finished_ms = unix_ms()
            if whole_table(progress):
                self._unsupported.on_table_dumped(TableName.parse(progress.table))
            if whole_table(progress) and run is not None and run.asked_before is not None:
                self._refetch_queue.on_table_dumped(progress.table, run.asked_before)
        self._forget(dump, progress)
        self._finish(dump, lambda: None if ended else self._notices.scanned(dump, progress))

    def cancel(
        self, dump_id: str | None, tables: Collection[str] | None, *, left_out: bool = False
    ) -> list[str]:
        """Stop a dump, or only some of its tables. What capture itself needs is dumped by another
        dump, unless this one is capture's own. ``left_out``: they are no longer captured, so that
        no other dump reads them.
        """
        reason = "source.tables no longer selects it" if left_out else "cancelled"
        changed, due = [], []
        for dump in self._store.selected(dump_id, UNFINISHED_DUMPS):
            stopped = []
            for progress in dump.tables:
                if progress.status not in FINISHED_TABLES and (
                    not tables or progress.table in tables
                ):
                    changed.append(dump.dump_id)
                    stopped.append(progress.table)
                    own = dump.dump_id.startswith(AUTOMATIC)
                    if progress.due and not own and not left_out:
                        due.append(progress)
                    self._end(dump, progress, TableInput.CANCEL, reason)
            has_others = any(t.status is not TableStatus.CANCELLED for t in dump.tables)
            report = partial(self._notices.stopped, dump, stopped if tables and has_others else [])
            # Before the end is stored: after a crash in between the table is dumped twice.
            for progress in due:
                self._store.request_due(progress.table, progress.due, unix_ms())
            due.clear()
            self._finish(dump, report, stopped=not tables)
        return list(dict.fromkeys(changed))

    def fail(
        self,
        dump: DumpState,
        progress: TableProgress,
        reason: str,
        status: TableScanStatus = TableScanStatus.SQL_EXCEPTION,
    ) -> None:
        """End a table that can't be dumped; the others continue."""
        if progress.status in FINISHED_TABLES:  # cancelled in the meantime
            return
        self._end(dump, progress, TableInput.FAIL, reason)
        self._finish(dump, lambda: self._notices.scanned(dump, progress, status))

    def refuse(self, dump: DumpState, progress: TableProgress, error: SourceError) -> None:
        """End a table that can't be dumped as it is. If capture needs the dump, it is owed before
        the end is stored.
        """
        if progress.status not in FINISHED_TABLES and (progress.due or is_own(dump)):
            table = TableName.parse(progress.table)
            if isinstance(error, ChunkDeniedError):
                self._unsupported.on_dump_failed(table, str(error))
            else:
                self._unsupported.require_dump(table)
            self._store.after(self._unsupported.flush)
        reason = error.reason if isinstance(error, UnsupportedTableError) else str(error)
        self.fail(dump, progress, reason)

    def release(self, table: TableName) -> None:
        """Drop the table's key history if nothing reads the table any more."""
        if self._queue.has_task(table):
            return
        if any(
            run.retains_keys and run.progress.table == str(table) for run in self._runs.values()
        ):
            return
        self._decisions.effect(lambda: self._decisions.loop.forget_table(table))

    def _end(
        self, dump: DumpState, progress: TableProgress, event: TableInput, reason: str
    ) -> None:
        progress.transition(event)
        progress.reason = reason
        progress.finished_ms = unix_ms()
        self._forget(dump, progress)

    def _finish(
        self, dump: DumpState, report: Callable[[], None] = lambda: None, *, stopped: bool = False
    ) -> None:
        """Store that a table has ended, and the dump with its last table; then call ``report``."""
        finished = self._store.finish_if_done(dump)
        if not finished:
            self._store.store(dump)
        report()
        if finished:
            self._notices.finished(dump, stopped=stopped)

    def _forget(self, dump: DumpState, progress: TableProgress) -> None:
        run = self._runs.pop((dump.dump_id, progress.table), None)
        if run is not None:
            run.transition(TableRunInput.END)
        self._queue.forget(dump, progress)
        self.release(TableName.parse(progress.table))


def _is_small(run: TableRun) -> bool:
    """Is it known to have few rows, or to have no statistics and few rows so far?"""
    if run.status in (TableRunStatus.WAITING, TableRunStatus.LOOKING_UP):
        return False
    return max(run.progress.estimated_rows, run.progress.rows_read) < SMALL_TABLE_ROWS


def reads_whole(found: TableShape, progress: TableProgress) -> bool:
    """Is the table read whole under one snapshot, as it has no key?"""
    return found.schema.keyless and progress.key_set is None


def is_unavailable(found: LookupResult) -> bool:
    """Did the catalogue not answer, so that a retry may help?"""
    return isinstance(found, SourceError) and found.policy is Policy.RETRY
