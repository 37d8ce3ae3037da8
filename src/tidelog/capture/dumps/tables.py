"""From a table's first record of a dump to its last: start, completion, and what ends it early."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from tidelog.capture.dumps.actions import Actions
from tidelog.capture.dumps.chunk_queue import ChunkQueue, DumpTable, Task
from tidelog.capture.dumps.notices import DumpNotices
from tidelog.capture.dumps.refetch import RefetchQueue
from tidelog.capture.dumps.state import FINISHED, DumpState, TableProgress, whole_table
from tidelog.capture.dumps.store import AUTOMATIC, DumpStore
from tidelog.capture.notifications import TableScanStatus
from tidelog.capture.refused_tables import RefusedTables
from tidelog.errors import (
    ChunkDeniedError,
    ChunkError,
    ConnectionLostError,
    GapError,
    Policy,
    SourceChangedError,
    SourceError,
    TableRefusedError,
)
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue

RECONNECT_S = 0.5
OWN = ("start-", "gap-")
"""So begin the names of further dumps that capture asks for."""
REFETCH_END_S = 5.0
"""So long a table that was read to its end waits for a moment without keys to be read again."""


class DumpTables:
    """Starts and ends the tables of dumps. The coordinator's lock is held by who calls."""

    def __init__(
        self,
        take_snapshot: Callable[[], Snapshot],
        catalogue: Catalogue,
        refused: RefusedTables,
        actions: Actions,
        store: DumpStore,
        queue: ChunkQueue,
        refetch_queue: RefetchQueue,
        notices: DumpNotices,
    ) -> None:
        self._take_snapshot = take_snapshot
        self._catalogue = catalogue
        self._refused = refused
        self._actions = actions
        self._store = store
        self._queue = queue
        self._refetch_queue = refetch_queue
        self._notices = notices
        self._started: set[DumpTable] = set()
        self._starting: set[DumpTable] = set()
        self._completing: set[DumpTable] = set()
        self._read_at: dict[DumpTable, tuple[float, int]] = {}
        """When a table was read to its end, and the newest request for keys by then."""
        self._asked_before: dict[DumpTable, int] = {}
        """The newest request for keys when a table began: its rows answer it."""
        self._not_before: dict[DumpTable, float] = {}
        """When a table is looked up again, after the catalogue could not be asked."""

    def next_of(self, dump: DumpState, readers: int) -> Task | None:
        """The dump's next chunk, of its first tables that have one; as many tables as there are
        readers are under way, so that their histories are held for as short as can be.
        """
        self.begin(dump)
        under_way = 0
        for progress in dump.tables:
            dump_table = (dump.dump_id, progress.table)
            if progress.status in FINISHED or dump_table in self._completing:
                continue
            if under_way >= readers:
                return None
            under_way += 1
            if dump_table in self._starting or time.monotonic() < self._not_before.get(
                dump_table, 0.0
            ):
                continue
            if dump_table not in self._started:
                self._start(dump, progress)
                continue
            rows = self._store.options.chunk_rows
            task = self._queue.next_chunk(dump_table, rows, planned=readers > 1)
            if task is not None:
                return task
            self._complete_if_read(dump, progress)
        return None

    def begin(self, dump: DumpState) -> None:
        """Tell that the dump starts, and what of it can't be dumped; once."""
        if dump.status != "queued":
            return
        dump.status = "running"
        self._notices.started(dump)
        for rejected in dump.rejected:
            self._notices.rejected(dump, rejected)
        if not dump.tables:
            self._finish(dump)

    def prepare(self, dump: DumpState, progress: TableProgress) -> bool:
        """Look the table up and note that it begins; False if it can't be dumped.

        Raises:
            SourceError: the catalogue can't be asked now, or the log must not go on.
        """
        try:
            shape = self._catalogue.shape(TableName.parse(progress.table))
        except TableRefusedError as error:
            self.refuse(dump, progress, error)
            return False
        except SourceError as error:
            if error.policy is Policy.RETRY or isinstance(error, (GapError, SourceChangedError)):
                raise
            self.fail(dump, progress, str(error))  # one table's, e.g. a type: others go on
            return False
        if shape is None:
            reason = "the table does not exist (any more)"
            self.fail(dump, progress, reason, TableScanStatus.UNKNOWN_SCHEMA)
            return False
        if not shape.schema.key:
            reason = "the table has no primary key: add one, or name a unique key in source.keys"
            self.fail(dump, progress, reason, TableScanStatus.NO_PRIMARY_KEY)
            return False
        progress.estimated_rows = shape.estimated_rows
        if progress.key_set is None and progress.key_columns is None:
            progress.key_columns = shape.schema.match_key
        progress.started_ms = progress.started_ms or int(time.time() * 1000)
        return True

    def _start(self, dump: DumpState, progress: TableProgress) -> None:
        """Append the dump's first record: from its offset on, replay gives the table."""
        dump_table = (dump.dump_id, progress.table)
        table = TableName.parse(progress.table)
        try:
            if not self.prepare(dump, progress):
                return
        except SourceError as error:
            if error.policy is not Policy.RETRY:
                raise
            self._store.counters.last_error = str(error)
            self._not_before[dump_table] = time.monotonic() + RECONNECT_S
            return
        self._not_before.pop(dump_table, None)
        if progress.first_offset is not None:  # started before a restart
            self._started.add(dump_table)
            self._queue.start(dump, progress, self._store.options.chunk_rows)
            return
        self._starting.add(dump_table)

        def started(offset: int) -> None:
            def act() -> None:
                # What was emitted before and is unseen by this snapshot may be unseen by a chunk's
                # as well; then the chunk lacks it, and replay must begin with it.
                try:
                    snapshot = self._take_snapshot()
                except (ChunkError, ConnectionLostError) as error:
                    self._store.counters.last_error = str(error)
                    time.sleep(RECONNECT_S)
                    self._actions.post(act)
                    return
                unseen = self._actions.engine.first_unseen(snapshot, table)
                self._starting.discard(dump_table)
                if progress.status in FINISHED:  # cancelled meanwhile
                    self.release(table)
                    return
                self._started.add(dump_table)
                self._asked_before[dump_table] = self._refetch_queue.number
                progress.first_offset = offset if unseen is None else min(offset, unseen)
                progress.status = "running"
                self._queue.start(dump, progress, self._store.options.chunk_rows)
                self._store.store(dump)

            self._actions.post(act)

        record = {"type": "dump-started", "dump_id": dump.dump_id, "table": progress.table}
        engine = self._actions.engine
        self._actions.call_later(lambda: engine.retain(table))
        self._actions.call_later(lambda: engine.append_control(record, started))

    def _complete_if_read(self, dump: DumpState, progress: TableProgress) -> None:
        """Append the dump's last record, once all is read, also what is to be read again."""
        dump_table = (dump.dump_id, progress.table)
        if not self._queue.exhausted(progress):
            return
        if not progress.complete:
            self.fail(dump, progress, _lost(progress))
            return
        if self._refetch_waits(dump_table):
            return
        reason = self._unread(dump_table, progress)
        if reason:
            self.fail(dump, progress, reason)
            return
        self._completing.add(dump_table)

        def completed(offset: int) -> None:
            def act() -> None:
                self._completing.discard(dump_table)
                self.done(dump, progress, offset)

            self._actions.post(act)

        record = completed_record(dump, progress)
        self._actions.call_later(lambda: self._actions.engine.append_control(record, completed))

    def _unread(self, dump_table: DumpTable, progress: TableProgress) -> str:
        """Which of its rows could not be read, though all else was; empty: none."""
        if progress.failed:
            count = len(progress.failed)
            return (
                f"{count} key range{'s' * (count > 1)} could not be read; all other rows were: "
                "`tidelog status --ranges` shows which, mend them and dump the table again"
            )
        count = self._refetch_queue.unread(
            dump_table[1], since=self._asked_before.get(dump_table, -1)
        )
        if count:
            return (
                f"{count} row{'s' * (count > 1)} that changed meanwhile could not be read, and "
                "the log has only some of the columns; all other rows were read: mend "
                f"{'them' if count > 1 else 'it'} and dump the table again"
            )
        return ""

    def _refetch_waits(self, dump_table: DumpTable) -> bool:
        """Must keys be read again before the table counts as complete? All that wait, as long as
        they come to an end; where there are always new ones, those that its reading left behind.
        """
        now = time.monotonic()
        since, number = self._read_at.setdefault(dump_table, (now, self._refetch_queue.number))
        upto = None if now - since < REFETCH_END_S else number
        return self._refetch_queue.any_of(dump_table[1], upto)

    def done(self, dump: DumpState, progress: TableProgress, offset: int) -> None:
        """The table's last record stands at ``offset``."""
        dump_table = (dump.dump_id, progress.table)
        if progress.status not in FINISHED:
            progress.status = "done"
            progress.finalized_until = offset + 1
            progress.finished_ms = int(time.time() * 1000)
            self._notices.scanned(dump, progress)
            if whole_table(progress) and dump_table in self._asked_before:
                self._refetch_queue.dumped(progress.table, self._asked_before[dump_table])
        self._forget(dump, progress)
        self._finish(dump)

    def cancel(self, dump_id: str | None, tables: list[str] | None) -> list[str]:
        """Stop a dump, or only some of its tables. What capture itself needs dumped is dumped by
        another, unless this one is capture's own.
        """
        changed, due = [], []
        for dump in self._store.selected(dump_id, {"queued", "running", "paused"}):
            stopped = []
            for progress in dump.tables:
                if progress.status not in FINISHED and (not tables or progress.table in tables):
                    changed.append(dump.dump_id)
                    stopped.append(progress.table)
                    if progress.due and not dump.dump_id.startswith(AUTOMATIC):
                        due.append(progress)
                    self._end(dump, progress, "cancelled", "cancelled")
            if tables and stopped and any(t.status != "cancelled" for t in dump.tables):
                self._notices.stopped(dump, stopped)
            # Before the end is stored: a crash in between has the table dumped twice.
            for progress in due:
                self._store.request_due(progress.table, progress.due, int(time.time() * 1000))
            due.clear()
            self._finish(dump, stopped=not tables)
        return list(dict.fromkeys(changed))

    def fail(
        self,
        dump: DumpState,
        progress: TableProgress,
        reason: str,
        status: TableScanStatus = TableScanStatus.SQL_EXCEPTION,
    ) -> None:
        """The table can't be dumped; the others go on."""
        if progress.status in FINISHED:  # cancelled while it was looked at
            return
        self._end(dump, progress, "failed", reason)
        self._notices.scanned(dump, progress, status)
        self._finish(dump)

    def refuse(self, dump: DumpState, progress: TableProgress, error: SourceError) -> None:
        """The table can't be dumped as it is; what capture needs of it is owed, before the end is
        stored.
        """
        if progress.status not in FINISHED and (progress.due or _is_own(dump)):
            table = TableName.parse(progress.table)
            if isinstance(error, ChunkDeniedError):
                self._refused.failed(table, str(error))
            else:
                self._refused.owe(table)
        reason = error.reason if isinstance(error, TableRefusedError) else str(error)
        self.fail(dump, progress, reason)

    def release(self, table: TableName) -> None:
        """Let the table's key history go if nothing reads the table any more."""
        if self._queue.any_of(table):
            return
        if any(name == str(table) for _dump, name in (*self._started, *self._starting)):
            return
        self._actions.call_later(lambda: self._actions.engine.forget_table(table))

    def _end(
        self,
        dump: DumpState,
        progress: TableProgress,
        to: Literal["failed", "cancelled"],
        reason: str,
    ) -> None:
        progress.status = to
        progress.reason = reason
        progress.finished_ms = int(time.time() * 1000)
        self._forget(dump, progress)

    def _finish(self, dump: DumpState, *, stopped: bool = False) -> None:
        if self._store.finish_if_done(dump):
            self._notices.finished(dump, stopped=stopped)
        self._store.store(dump)

    def _forget(self, dump: DumpState, progress: TableProgress) -> None:
        dump_table = (dump.dump_id, progress.table)
        self._started.discard(dump_table)
        self._read_at.pop(dump_table, None)
        self._asked_before.pop(dump_table, None)
        self._queue.forget(dump, progress)
        self.release(TableName.parse(progress.table))


def _is_own(dump: DumpState) -> bool:
    """Does capture itself need the dump? Nobody asks for it again."""
    return dump.reason == "initial" or dump.dump_id.startswith((AUTOMATIC, *OWN))


def _lost(progress: TableProgress) -> str:
    """Why nothing is left to read, though not all was."""
    if progress.key_set is not None:
        missing = progress.key_count - progress.keys_read
        return f"{missing} of its keys are not stored any more: give them again, to another dump"
    return (
        "it was cut into so many chunks that they could not be kept in order: dump it again, with "
        "other chunk_rows"
    )


def completed_record(dump: DumpState, progress: TableProgress) -> dict[str, object]:
    """The control record that marks the table complete."""
    return {
        "type": "dump-completed",
        "dump_id": dump.dump_id,
        "table": progress.table,
        "first_offset": progress.first_offset,
        "delete_absent": whole_table(progress),
    }
