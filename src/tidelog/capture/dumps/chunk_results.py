"""Handles the result of a chunk: durable, void, failed, or not needed."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from tidelog.capture.dumps.chunk_planner import ChunkTask
from tidelog.capture.dumps.refetch_queue import KeysToRead
from tidelog.capture.dumps.state import ChunkInput, Key
from tidelog.capture.dumps.table_dump import DumpParts, DumpTables, LookupResult
from tidelog.capture.windows import ClosedWindow, VoidedWindow, VoidReason
from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkVoidError,
    ConnectionLostError,
    SourceError,
    UnsupportedTableError,
)
from tidelog.system import failpoints

READS_BEFORE_HALVING = 3
LOSSES_A_FAILURE = 3
"""A read fails each time its connection was lost this often, though a new one could be opened."""
TRANSIENT = (ConnectionLostError, ChunkLostError, ChunkBusyError)
"""The reader reconnects; a lock will be released."""


class ChunkResults:
    """Handles the end of a chunk. The caller holds the coordinator's lock."""

    def __init__(self, parts: DumpParts, tables: DumpTables) -> None:
        self._catalogue = parts.catalogue
        self._keys = parts.keys
        self._decisions = parts.decisions
        self._store = parts.store
        self._queue = parts.queue
        self._tables = tables
        self._refetch_queue = parts.refetch_queue
        self._notices = parts.notices

    def on_durable(self, task: ChunkTask, closed: ClosedWindow, absent: list[Key]) -> None:
        """Store the progress: the chunk's rows are in the event log."""
        task.transition(ChunkInput.APPENDED)
        self._queue.end(closed.window)
        counters = self._store.counters
        counters.chunks += 1
        counters.rows += len(closed.rows)
        counters.superseded += closed.rows_superseded
        self._store.note(
            "durable",
            closed.window.chunk_id,
            str(task.table),
            rows=len(closed.rows),
            superseded=closed.rows_superseded,
        )
        failpoints.hit("chunk.durable_before_progress")
        if task.dump is None or task.progress is None:
            again = {self._keys.texts(key, closed.schema) for key in closed.refetch}
            if again:  # still invisible: give the transaction time to become visible
                self._queue.refetch_not_before = time.monotonic() + 0.2
            self._refetched(task, again)
            return
        progress = task.progress
        progress.chunks += 1
        progress.rows_read += closed.rows_read
        progress.rows_superseded += closed.rows_superseded
        if task.request.keys is not None:
            first = int(task.order)
            if progress.missing == "list":
                self._store.list_absent(task.dump, first, len(task.request.keys), absent)
            progress.keys_absent += len(absent)
            progress.add_keys(first, len(task.request.keys))
        else:
            progress.add_range(task.request.after, task.request.upto, task.order)
        self._notices.in_progress(task.dump, progress)
        self._store.store_soon(task.dump)
        if task.ended:
            self._tables.release(task.table)

    def on_void(self, voided: VoidedWindow) -> None:
        """Read the chunk again: its rows can't be used."""
        task = self._queue.end(voided.window)
        if task is None:
            return
        name = voided.reason.name.lower()
        counts = self._store.counters.voided
        counts[name] = counts.get(name, 0) + 1
        self._store.note("voided", voided.window.chunk_id, str(task.table))
        if task.progress is not None:
            task.progress.chunks_voided += 1
        loop = self._decisions.loop
        if voided.reason is VoidReason.KEYS_NOT_HELD:
            self._decisions.effect(
                lambda: loop.resolve_keys(voided.window.table, voided.unseen_xids)
            )
        elif voided.reason is VoidReason.DISCARDED:
            self._decisions.effect(lambda: loop.discard(voided.window))
        if task.ended:
            self.drop(task)
        else:
            self._queue.retry(task, ChunkInput.VOID)

    def on_failure(self, task: ChunkTask, error: SourceError) -> bool:
        """Read a failed chunk again, then halve it, down to the row that can't be read. True: its
        table must be looked up first (`look_up`, `on_lookup`).
        """
        self._queue.end(task.window)
        self._store.chunks_read.failed(error)
        self._store.counters.failed += 1
        if task.window is not None:
            self._store.note("failed", task.window.chunk_id, str(task.table))
        task.losses += isinstance(error, ChunkLostError)
        often_lost = isinstance(error, ChunkLostError) and task.losses % LOSSES_A_FAILURE == 0
        if often_lost or not isinstance(error, TRANSIENT):
            task.failures += 1
        if task.ended:
            self.drop(task)
            return False
        if often_lost and task.progress is not None and task.progress.where is not None:
            assert task.dump is not None
            reason = f"{error} {task.losses} times: check the dump's condition"
            self._tables.fail(task.dump, task.progress, reason)
            self.drop(task)
            return False
        if not _is_permanent(error) and task.failures < READS_BEFORE_HALVING:
            self._queue.retry(task, ChunkInput.FAIL)
            return False
        self._queue.await_lookup(task)
        return True

    def look_up(self, task: ChunkTask) -> LookupResult:
        """Query the catalogue for the chunk's table. Call it without the lock."""
        try:
            return self._catalogue.shape(task.table)
        except SourceError as error:
            return error

    def on_lookup(self, task: ChunkTask, error: SourceError, found: LookupResult) -> None:
        """Halve the chunk, or give it or its table up, depending on what was ``found``."""
        self._queue.end_lookup(task)
        if task.ended:
            self.drop(task)
            return
        if isinstance(found, UnsupportedTableError):
            self._refuse(task, found)
            return
        if isinstance(found, SourceError):  # the source does not answer: check again later
            self._queue.retry(task, ChunkInput.AGAIN)
            return
        if isinstance(error, ChunkDeniedError) and found is not None:
            self._refuse(task, error)
            return
        if task.dump is None or task.progress is None:
            if found is None or found.schema.match_key != task.request.key_columns:
                # The keys mean nothing any more; if the table exists, a dump of it is due.
                task.transition(ChunkInput.ANSWERED)
                self._refetched(task, ())
                return
        elif _is_permanent(error) or found is None:
            self._tables.fail(task.dump, task.progress, str(error))
            self.drop(task)
            return
        self._halve(task)

    def _refuse(self, task: ChunkTask, error: SourceError) -> None:
        """Report the table as unsupported. A task that reads missing rows waits instead."""
        if task.dump is None or task.progress is None:
            self._queue.retry(task, ChunkInput.AGAIN)
        else:
            self._tables.refuse(task.dump, task.progress, error)
            self.drop(task)

    def _halve(self, task: ChunkTask) -> None:
        """Read less at once: in the end only the row that can't be read is left out."""
        keys, limit = task.request.keys, task.request.limit_rows
        if keys is None:
            if limit == 1:
                self._queue.set_stuck(task)
                self._decisions.wake()
                return
            task.request = replace(task.request, limit_rows=limit // 2)
        else:
            half = len(keys) // 2
            if not half:
                task.transition(ChunkInput.ANSWERED)
                self._give_up_key(task, keys[0])
                return
            rest = task.split_off(replace(task.request, keys=keys[half:]), order=task.order + half)
            rest.failures = 1
            task.request = replace(task.request, keys=keys[:half])
            self._queue.retry_later(rest)
        task.failures, task.tries = 1, 0
        self._queue.retry(task, ChunkInput.AGAIN)

    def _give_up_key(self, task: ChunkTask, key: Key) -> None:
        if task.dump is None or task.progress is None:
            self._refetch_queue.quarantine(_taken(task))
            self._tables.release(task.table)
            return
        task.progress.chunks_failed += 1
        task.progress.add_failed(key, key, task.order)
        task.progress.add_keys(int(task.order), 1)
        self._store.store(task.dump)

    def give_up(self, task: ChunkTask, end: Key | None) -> None:
        """Skip the row that can't be read; its key is ``end`` (None: the task's range ends)."""
        assert task.dump is not None
        assert task.progress is not None
        if task not in self._queue.stuck:  # its table was cancelled or has failed
            return
        self._queue.skip_row(task, end)
        task.progress.chunks_failed += 1
        task.progress.add_failed(task.request.after, task.request.upto, task.order)
        self._store.note("failed", "", str(task.table))
        self._store.store(task.dump)

    def drop(self, task: ChunkTask) -> None:
        """Drop a chunk whose table was cancelled or has failed."""
        task.transition(ChunkInput.DROP)
        self._queue.end(task.window)
        self._tables.release(task.table)

    def _refetched(self, task: ChunkTask, unread: Collection[Key]) -> None:
        self._refetch_queue.done(_taken(task), unread)
        self._tables.release(task.table)


def _is_permanent(error: SourceError) -> bool:
    """Would another read fail in the same way?"""
    return isinstance(error, (ChunkRefusedError, ChunkVoidError))


def _taken(task: ChunkTask) -> KeysToRead:
    assert task.taken is not None
    return replace(task.taken, keys=task.request.keys or ())
