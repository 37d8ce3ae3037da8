"""From a table's first record of a dump to its last: start, completion, and what ends it early."""

from __future__ import annotations

import time

from tidelog.capture.dump_actions import Actions
from tidelog.capture.dump_book import DumpBook
from tidelog.capture.dump_state import FINISHED, DumpState, TableProgress
from tidelog.capture.dump_tasks import Task, Tasks
from tidelog.capture.rereads import Rereads
from tidelog.errors import ChunkError, ConnectionLostError
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, ChunkReader

RECONNECT_S = 0.5


class DumpTables:
    """Starts and ends the tables of dumps. The coordinator's lock is held by who calls."""

    def __init__(
        self,
        reader: ChunkReader,
        catalogue: Catalogue,
        actions: Actions,
        book: DumpBook,
        tasks: Tasks,
        rereads: Rereads,
    ) -> None:
        self._reader = reader
        self._catalogue = catalogue
        self._actions = actions
        self._book = book
        self._tasks = tasks
        self._rereads = rereads
        self._started: set[tuple[str, str]] = set()
        self._starting: set[tuple[str, str]] = set()
        self._completing: set[tuple[str, str]] = set()

    def next_of(self, dump: DumpState) -> Task | None:
        """The dump's next chunk; starts or completes a table where that comes first."""
        for progress in dump.tables:
            if progress.status in FINISHED:
                continue
            spot = (dump.dump_id, progress.table)
            if spot in self._starting or spot in self._completing:
                return None
            if spot not in self._started:
                self._start(dump, progress)
                return None
            task = self._tasks.next_chunk(dump, progress, self._book.options.chunk_rows)
            if task is not None:
                return task
            # one table at a time, so that its history is held for as short as can be
            self._complete_if_read(dump, progress)
            return None
        return None

    def _start(self, dump: DumpState, progress: TableProgress) -> None:
        """Append the dump's first record: from its offset on, replay gives the table."""
        spot = (dump.dump_id, progress.table)
        table = TableName.parse(progress.table)
        shape = self._catalogue.shape(table)
        if shape is None or not shape.schema.key:
            progress.status = "failed"
            progress.reason = (
                "the table does not exist (any more)"
                if shape is None
                else "the table has no primary key: add one, or a unique key, to dump it"
            )
            self._book.finish_if_done(dump)
            self._book.store(dump)
            return
        progress.estimated_rows = shape.estimated_rows
        if progress.first_offset is not None:  # started before a restart
            self._started.add(spot)
            self._tasks.start(dump, progress)
            self._tasks.refill(dump, progress, self._book.options.chunk_rows)
            return
        dump.status = "running"
        self._starting.add(spot)

        def started(offset: int) -> None:
            def act() -> None:
                # What was emitted before and is unseen by this snapshot may be unseen by a chunk's
                # as well; then the chunk lacks it, and replay must begin with it.
                try:
                    snapshot = self._reader.current_snapshot()
                except (ChunkError, ConnectionLostError) as error:
                    self._book.counters.last_error = str(error)
                    time.sleep(RECONNECT_S)
                    self._actions.post(act)
                    return
                unseen = self._actions.engine.first_unseen(snapshot, table)
                self._starting.discard(spot)
                self._started.add(spot)
                progress.first_offset = offset if unseen is None else min(offset, unseen)
                progress.status = "running"
                self._tasks.start(dump, progress)
                self._book.store(dump)

            self._actions.post(act)

        record = {"type": "dump-started", "dump_id": dump.dump_id, "table": progress.table}
        self._actions.call_later(lambda: self._actions.engine.append_control(record, started))

    def _complete_if_read(self, dump: DumpState, progress: TableProgress) -> None:
        """Append the dump's last record, once all is read, also what is to be read again."""
        spot = (dump.dump_id, progress.table)
        if self._tasks.of_progress(progress):
            return
        reread_first = self._rereads.any_of(progress.table)
        if not progress.complete or reread_first:
            return
        self._completing.add(spot)

        def completed(_offset: int) -> None:
            def act() -> None:
                self._completing.discard(spot)
                if progress.status not in FINISHED:
                    progress.status = "done"
                self._forget(dump, progress)
                self._book.finish_if_done(dump)
                self._book.store(dump)

            self._actions.post(act)

        record = {
            "type": "dump-completed",
            "dump_id": dump.dump_id,
            "table": progress.table,
            "first_offset": progress.first_offset,
            "delete_absent": dump.whole_tables,
        }
        self._actions.call_later(lambda: self._actions.engine.append_control(record, completed))

    def cancel(self, dump_id: str | None, tables: list[str] | None) -> list[str]:
        """Stop a dump, or only some of its tables."""
        changed = []
        for dump in self._book.selected(dump_id, {"queued", "running", "paused"}):
            for progress in dump.tables:
                if progress.status not in FINISHED and (not tables or progress.table in tables):
                    progress.status = "cancelled"
                    progress.reason = "cancelled"
                    self._forget(dump, progress)
                    changed.append(dump.dump_id)
            self._book.finish_if_done(dump)
            self._book.store(dump)
        return list(dict.fromkeys(changed))

    def fail(self, dump: DumpState, progress: TableProgress, reason: str) -> None:
        progress.status = "failed"
        progress.reason = reason
        self._forget(dump, progress)
        self._book.finish_if_done(dump)
        self._book.store(dump)

    def release(self, table: TableName) -> None:
        """Let the table's key history go if nothing reads the table any more."""
        if self._tasks.any_of(table):
            return
        if any(name == str(table) for _dump, name in self._started):
            return
        self._actions.call_later(lambda: self._actions.engine.forget_table(table))

    def _forget(self, dump: DumpState, progress: TableProgress) -> None:
        self._started.discard((dump.dump_id, progress.table))
        self._tasks.forget(dump, progress)
        self.release(TableName.parse(progress.table))
