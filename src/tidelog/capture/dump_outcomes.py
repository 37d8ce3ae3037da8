"""What became of a chunk: durable, void, failed or of no use any more."""

from __future__ import annotations

import time

from tidelog import failpoints
from tidelog.capture.dump_actions import Actions
from tidelog.capture.dump_book import DumpBook
from tidelog.capture.dump_state import Key
from tidelog.capture.dump_tables import DumpTables
from tidelog.capture.dump_tasks import Task, Tasks
from tidelog.capture.rereads import Reread, Rereads
from tidelog.capture.windows import Closed, Voided, VoidReason
from tidelog.errors import ChunkRefusedError, ConnectionLostError, SourceError
from tidelog.ports import Catalogue, KeyExtractor

MAX_READ_FAILURES = 8


class Outcomes:
    """Draws the consequences of a chunk's end. The coordinator's lock is held by who calls."""

    def __init__(
        self,
        catalogue: Catalogue,
        keys: KeyExtractor,
        actions: Actions,
        book: DumpBook,
        tasks: Tasks,
        tables: DumpTables,
        rereads: Rereads,
    ) -> None:
        self._catalogue = catalogue
        self._keys = keys
        self._actions = actions
        self._book = book
        self._tasks = tasks
        self._tables = tables
        self._rereads = rereads

    def durable(self, task: Task, closed: Closed, absent: int) -> None:
        """Its rows are in the event log: progress is stored."""
        self._tasks.end(closed.window)
        counters = self._book.counters
        counters.chunks += 1
        counters.rows += len(closed.rows)
        counters.superseded += closed.rows_superseded
        failpoints.hit("chunk.durable_before_progress")
        if task.dump is None or task.progress is None:
            again = {self._keys.texts(key) for key in closed.reread}
            if again:  # still unseen: give the transaction time to become visible
                self._tasks.pause_until = time.monotonic() + 0.2
            self._reread_done(task, [k for k in task.request.keys or () if k not in again])
            return
        progress = task.progress
        progress.chunks += 1
        progress.rows_read += closed.rows_read
        progress.rows_superseded += closed.rows_superseded
        if task.request.keys is not None:
            progress.keys_done = task.first_key + len(task.request.keys)
            progress.keys_absent += absent
        else:
            progress.add_range(task.request.after, task.request.upto, task.order)
        self._book.store(task.dump)
        if task.ended:
            self._tables.release(task.table)

    def void(self, voided: Voided) -> None:
        """Its rows can't be used: it is read again."""
        task = self._tasks.end(voided.window)
        if task is None:
            return
        name = voided.reason.name.lower()
        counts = self._book.counters.voided
        counts[name] = counts.get(name, 0) + 1
        if task.progress is not None:
            task.progress.chunks_voided += 1
        engine = self._actions.engine
        if voided.reason is VoidReason.KEYS_NOT_HELD:
            self._actions.call_later(
                lambda: engine.resolve_keys(voided.window.table, voided.unseen_xids)
            )
        elif voided.reason is VoidReason.DISCARDED:
            self._actions.call_later(lambda: engine.discard(voided.window))
        self._again(task)

    def failed(self, task: Task, error: SourceError) -> None:
        """It could not be read: it is tried again, unless that is hopeless."""
        self._tasks.end(task.window)
        self._book.counters.last_error = str(error)
        if not isinstance(error, ConnectionLostError):  # the reader connects anew
            task.failures += 1
        hopeless = task.failures >= MAX_READ_FAILURES or isinstance(error, ChunkRefusedError)
        if hopeless and task.dump is not None and task.progress is not None and not task.ended:
            self._tables.fail(task.dump, task.progress, str(error))
            return
        if task.dump is None and hopeless and self._cannot_read(task):
            self._reread_done(task, list(task.request.keys or ()))
            return
        self._again(task)

    def drop(self, task: Task) -> None:
        """A chunk of a table that was cancelled or has failed is of no use any more."""
        self._tasks.end(task.window)
        self._tables.release(task.table)

    def _again(self, task: Task) -> None:
        if task.ended:
            self.drop(task)
        else:
            self._tasks.again(task)

    def _cannot_read(self, task: Task) -> bool:
        """Is the table gone, or a column of the key? Then a dump of the table is due anyway."""
        shape = self._catalogue.shape(task.table)
        columns = task.request.key_columns or ()
        return shape is None or not set(columns) <= set(shape.schema.column_names)

    def _reread_done(self, task: Task, keys: list[Key]) -> None:
        spot = Reread(str(task.table), task.request.key_columns or ())
        self._rereads.done(spot, keys, task.reread_number)
        self._tables.release(task.table)
