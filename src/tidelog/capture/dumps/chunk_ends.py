"""Finds where chunks end, ahead of the readers, so that chunks can be read in parallel.

`RowWidths` limits a chunk's rows by their size, `KeyPlanner` finds the keys at which chunks end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tidelog.capture.dumps.chunk_planner import ChunkQueue, ChunkTask, TableCursor
from tidelog.capture.dumps.chunk_results import ChunkResults
from tidelog.capture.dumps.store import DumpStore
from tidelog.capture.dumps.table_dump import DumpTables
from tidelog.capture.dumps.thread_messages import Actions
from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ChunkVoidError,
    ConnectionLostError,
)
from tidelog.model.schema import TableName
from tidelog.ports import ChunkReader, ChunkRequest

SMOOTHING = 0.2
AIM = 0.75
"""The share of a chunk's room to plan for, because row sizes differ; a chunk that needs more ends
early.
"""
TURN_S = 0.2
MAX_FAILURES = 3
"""Failures of one query. After these a reader cuts the chunk, and finds what can't be read in
it.
"""
TRANSIENT = (ChunkBusyError, ChunkLostError, ConnectionLostError)
"""A lock will be released, or the reader reconnects."""
PLAN_S = 0.5  # about the longest time of one query for several ends: readers wait for them
AHEAD = 4  # chunks planned for each reader


class KeyPlanner:
    """One thread with a reader of its own. If chunks are read by one reader only, its only task is
    to find the key of a row that can't be read (`_find_stuck_key`).
    """

    def __init__(
        self,
        open_reader: Callable[[], ChunkReader],
        actions: Actions,
        store: DumpStore,
        queue: ChunkQueue,
        tables: DumpTables,
        results: ChunkResults,
    ) -> None:
        self._open_reader = open_reader
        self._actions = actions
        self._store = store
        self._queue = queue
        self._tables = tables
        self._results = results
        self._thread: threading.Thread | None = None
        self._reader: ChunkReader | None = None
        self._closing = threading.Event()
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tidelog-planner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel the current query, and disconnect."""
        self._closing.set()
        self._actions.planning.set()
        if self._reader is not None:
            self._reader.close()
        if self._thread is not None:
            self._thread.join(10)

    def _run(self) -> None:
        reader = self._reader = self._open_reader()
        try:
            while not self._closing.is_set():
                if not self._turn(reader):
                    self._actions.planning.wait(TURN_S)
                    self._actions.planning.clear()
        except BaseException as failure:  # noqa: BLE001 - raised by the coordinator
            self.failure = failure
        finally:
            reader.close()

    def _turn(self, reader: ChunkReader) -> bool:
        """Run one query; False if none is needed."""
        with self._actions.lock:
            stuck, options, plan = self._queue.stuck[:1], self._store.options, None
            if not stuck and options.parallelism > 1:
                ahead, now = AHEAD * options.parallelism, time.monotonic()
                plan = self._queue.next_plan(options.chunk_rows, ahead, now)
        if stuck:
            self._find_stuck_key(reader, stuck[0])
        elif plan is not None:
            self._plan(reader, *plan)
        else:
            return False
        self._actions.wake()
        return True

    def _plan(
        self, reader: ChunkReader, cursor: TableCursor, request: ChunkRequest, count: int
    ) -> None:
        begun = time.monotonic()
        try:
            ends = reader.boundaries(request, count)
        except (ChunkError, ConnectionLostError) as error:
            with self._actions.lock:
                self._store.chunks_read.failed(error)
                transient = isinstance(error, TRANSIENT)
                failures = self._queue.on_plan_failure(
                    cursor, time.monotonic(), transient=transient
                )
                cursor.plan_count = 1
                if isinstance(error, ChunkTooSlowError):
                    cursor.plan_halvings += 1
                if isinstance(error, (ChunkRefusedError, ChunkVoidError)):
                    self._tables.fail(cursor.dump, cursor.progress, str(error))
                elif failures >= MAX_FAILURES:
                    self._queue.plan_unknown(cursor, request)
            return
        each_s = max(1e-6, time.monotonic() - begun) / count
        with self._actions.lock:
            cursor.plan_count = max(1, min(4 * count, int(PLAN_S / each_s)))
            self._queue.add_planned(cursor, request, ends, last=len(ends) < count)

    def _find_stuck_key(self, reader: ChunkReader, task: ChunkTask) -> None:
        """Find the key of the row that can't be read, from the index alone: the dump's condition
        may be what fails.
        """
        try:
            ends = reader.boundaries(replace(task.request, limit_rows=1, where=None), 1)
        except TRANSIENT:
            time.sleep(TURN_S)  # then try again
            return
        except ChunkError as error:
            with self._actions.lock:
                self._store.chunks_read.failed(error)
            ends = []
        with self._actions.lock:
            self._results.give_up(task, ends[0] if ends else None)


class RowWidths:
    """The row width of each table, so that its next chunk stays below a size limit. Guarded by the
    coordinator's lock.
    """

    def __init__(self) -> None:
        self._widths: dict[TableName, float] = {}

    def note(self, table: TableName, rows: int, size: int) -> None:
        """Note that a chunk of ``rows`` rows took ``size`` bytes. Larger rows count at once,
        smaller ones gradually.
        """
        if rows:
            width = size / rows
            before = self._widths.get(table, width)
            self._widths[table] = max(width, before + SMOOTHING * (width - before))

    def rows(self, table: TableName, most: int, room: int) -> int:
        """The number of rows to read, at most ``most``, so that they take less than ``room``."""
        width = self._widths.get(table)
        return most if not width else max(1, min(most, int(AIM * room / width)))
