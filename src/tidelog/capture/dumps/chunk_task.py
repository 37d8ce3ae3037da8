"""Reads one chunk: watermarks and SELECT in a reader's thread, the window's end on the loop's.

`ChunkReaders` are these threads, `ChunkReading` is what they do with a chunk. `KeyPlanner` finds
the keys at which chunks end ahead of them, so that chunks can be read in parallel.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from tidelog.capture.dumps.chunk_planner import ChunkTask, RowWidths, TableCursor
from tidelog.capture.dumps.chunk_results import TRANSIENT, ChunkResults
from tidelog.capture.dumps.refetch_queue import REFETCH_DUMP_ID
from tidelog.capture.dumps.state import ChunkInput, ChunkStatus, Key
from tidelog.capture.dumps.table_dump import DumpParts, DumpTables
from tidelog.capture.dumps.throttle import Throttle
from tidelog.capture.windows import ClosedWindow, VoidedWindow, VoidReason, Window
from tidelog.capture.writer_thread import ChunkItem, item_bytes
from tidelog.errors import (
    ChunkError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ChunkVoidError,
    ConnectionLostError,
    SourceError,
)
from tidelog.model.records import ChunkMeta, RecordKind
from tidelog.ports import ChunkReader, ChunkRequest, ChunkRows
from tidelog.system import failpoints
from tidelog.system.compilation import compilations

NICE = 10
"""The niceness of threads that read chunks: the log's thread, and a database on the same host, go
first.
"""
OVERDUE_S = 10.0
"""A window open for longer is checked: has the log passed its watermark without showing it?"""


FIRST_READ_S = 2.0
"""After this time other chunks are read before the first one has returned."""
DELIVER_S, MOST_TIMES = 5.0, 5
"""How long after its SELECT a transaction waits for capture, which may wait for a store or a disk:
DDL of the table waits for the transaction, and later statements wait for the DDL. Each retry of the
chunk adds as much again, up to this many times: where every append is slow, a dump must still
progress.
"""


class ChunkReading:
    """Reads chunks and appends the rows that their windows let through."""

    def __init__(self, parts: DumpParts, results: ChunkResults, throttle: Throttle) -> None:
        self._keys = parts.keys
        self._catalogue = parts.catalogue
        self._decisions = parts.decisions
        self._lock = parts.decisions.lock
        self._store = parts.store
        self._queue = parts.queue
        self._results = results
        self._throttle = throttle
        self._widths = RowWidths()
        self._chunk_bytes: float | None = None  # smoothed size of recent chunks
        self._overdue: dict[str, tuple[float, int]] = {}

    def room(self, readers: int) -> bool:
        """May another chunk begin: is there a window, and memory, for it?"""
        inflight = self._queue.under_way
        if self._chunk_bytes is None:  # the first one shows the size, unless it hangs
            now = time.monotonic()
            return all(task.begun and now - task.begun > FIRST_READ_S for task in inflight)
        if len(inflight) >= (2 if readers == 1 else 2 * readers + 2):
            return False
        each = self._chunk_bytes
        in_memory = sum(task.bytes or each for task in inflight)
        return not inflight or in_memory + each <= self._store.options.buffer_bytes

    def windows(self) -> list[dict[str, Any]]:
        """For status: the chunks being read."""
        now = time.monotonic()
        return [
            {
                "chunk": "" if task.window is None else task.window.chunk_id[:8],
                "table": str(task.table),
                "state": str(task.status),
                "bytes": task.bytes,
                "age_ms": int((now - task.begun) * 1000),
            }
            for task in self._queue.inflight
        ]

    # ------------------------------------------------------------ a reader's thread

    def read(self, reader: ChunkReader, task: ChunkTask) -> None:
        """Do steps 1 to 6 of Algorithm 1 for a chunk; the loop's thread closes the window."""
        chunk_id = uuid.uuid4().hex
        window = Window(
            chunk_id=chunk_id,
            table=task.table,
            low_watermark=f"{chunk_id}:low",
            high_watermark=f"{chunk_id}:high",
        )
        with self._lock:
            self._queue.reader_began(task)
            if task.ended:
                self._throttle.on_chunk_read(time.monotonic(), 0, 0.0)
                self._results.drop(task)
                return
            self._queue.begin(task, window)
            self._store.note("begun", chunk_id, str(task.table))
            most, room = task.request.limit_rows, self._store.options.chunk_bytes
            request = replace(
                task.request,
                limit_rows=self._widths.rows(task.table, most, room),
                limit_bytes=room,
                spread_s=self._throttle.spread_s(),
            )
        loop = self._decisions.loop
        begun, seconds, rows = 0.0, 0.0, None
        try:
            loop.register(window)
            marked_s = _timed(lambda: reader.write_watermark(window.low_watermark))
            failpoints.hit("chunk.after_low")
            try:
                begun, compiled = time.monotonic(), compilations()
                rows = reader.read(request)
                # 0.0, unknown: a kernel was compiled during it, maybe by another thread.
                if compiled is not None and compiled == compilations():
                    seconds = time.monotonic() - begun
                failpoints.hit("chunk.after_read")
                until = time.monotonic() + DELIVER_S * (1 + min(task.tries, MOST_TIMES))
                with self._lock:
                    if not self._is_open(window, task):  # voided during the read: read again
                        return
                    self._have_read(task, window, rows)
                loop.deliver(window, rows, until)
                high_s = _timed(lambda: reader.write_watermark(window.high_watermark))
                high_at = time.monotonic()
                failpoints.hit("chunk.after_high")
            finally:
                reader.release()
            if rows.emit_at is None:  # else no watermark was written
                with self._lock:
                    self._throttle.on_watermark(begun, marked_s)
                    self._throttle.on_watermark(high_at, high_s)
        except (ChunkError, ConnectionLostError) as error:
            loop.discard(window)
            if begun and rows is None:  # a SELECT that exceeds its time limit counts too
                seconds = time.monotonic() - begun
            self._failed(task, window, error)
        finally:
            with self._lock:
                count, rested_s = (0, 0.0) if rows is None else (len(rows.rows), rows.rested_s)
                self._throttle.on_chunk_read(time.monotonic(), count, seconds, rested_s)
            self._decisions.wake()

    def _failed(self, task: ChunkTask, window: Window, error: SourceError) -> None:
        with self._lock:
            doubtful = self._is_open(window, task) and self._results.on_failure(task, error)
        if doubtful:
            result = self._results.look_up(task)
            with self._lock:
                self._results.on_lookup(task, error, result)

    def _have_read(self, task: ChunkTask, window: Window, rows: ChunkRows) -> None:
        self._store.chunks_read.answered()
        self._queue.advance(task, rows)
        task.bytes = item_bytes(rows.rows)
        task.transition(ChunkInput.ROWS)
        self._widths.note(task.table, len(rows.rows), task.bytes)
        before = self._chunk_bytes
        self._chunk_bytes = task.bytes if before is None else before + 0.2 * (task.bytes - before)
        self._store.note("read", window.chunk_id, str(task.table), rows=len(rows.rows))

    # ------------------------------------------------------------ the loop's thread

    def keys_to_request(self, closed: ClosedWindow) -> list[bytes]:
        """The keys to read again that are not stored yet. Those of a task that reads missing rows
        are stored until they have been read.
        """
        task = self._queue.find(closed.window.chunk_id)
        if task is None or task.dump is not None or not closed.refetch:
            return closed.refetch
        if closed.schema.match_key != task.request.key_columns:
            return closed.refetch
        own = set(task.request.keys or ())
        return [key for key in closed.refetch if self._keys.texts(key, closed.schema) not in own]

    def on_window_closed(self, closed: ClosedWindow) -> ChunkItem | None:
        """The item to append. Takes no lock except that of the posted decisions."""
        task = self._queue.find(closed.window.chunk_id)
        if task is None:
            return None
        if task.ended:
            self._decisions.post(lambda: self._results.drop(task))
            return None
        task.transition(ChunkInput.CLOSE)  # the rest depends on the writer and its disk
        is_absent = closed.rows.kind == RecordKind.ABSENT
        absent: list[Key] = []
        if is_absent.any():
            absent = self._absent_keys(closed)
            if task.progress is not None and task.progress.missing == "list":
                closed.rows = closed.rows.filter(~is_absent)

        def done(_offset: int) -> None:
            self._decisions.post(lambda: self._results.on_durable(task, closed, absent))

        if not len(closed.rows):
            done(-1)
            return None
        closed.rows.commit_ts = np.full(len(closed.rows), time.time_ns() // 1000, np.int64)
        return ChunkItem(closed.rows, _meta(task, closed), closed.high_position, done)

    def _absent_keys(self, closed: ClosedWindow) -> list[Key]:
        at = np.flatnonzero(closed.rows.kind == RecordKind.ABSENT).astype(np.int32)
        entries = self._keys.keys(closed.rows, at, closed.schema)
        return [self._keys.texts(entries.key(i), closed.schema) for i in range(len(entries))]

    # ------------------------------------------------------------ the coordinator's thread

    def void_overdue(self) -> None:
        """Void windows whose watermark the log has passed without showing it. While the log is
        behind that position, it is waited for.
        """
        now = time.monotonic()
        with self._lock:
            late = {
                task.window.chunk_id: task
                for task in self._queue.inflight
                if task.status is ChunkStatus.READ and task.window and now - task.begun > OVERDUE_S
            }
            self._overdue = {k: v for k, v in self._overdue.items() if k in late}
        for chunk_id, task in late.items():
            if chunk_id not in self._overdue:
                try:
                    self._overdue[chunk_id] = (now, self._catalogue.position())
                except SourceError:
                    continue
            since, position = self._overdue[chunk_id]
            if now - since < OVERDUE_S:
                continue
            if self._decisions.loop.reached < position:
                continue
            window = task.window
            if window is None or window.chunk_id != chunk_id:
                continue
            self._decisions.loop.discard(window)
            with self._lock:
                if self._is_open(window, task):
                    self._results.on_void(VoidedWindow(window, VoidReason.DISCARDED))

    def _is_open(self, window: Window, task: ChunkTask) -> bool:
        """Is the window still open? If not, it has closed or its task is read again."""
        return self._queue.find(window.chunk_id) is task and task.status is not ChunkStatus.CLOSING


def _timed(work: Callable[[], None]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _meta(task: ChunkTask, closed: ClosedWindow) -> ChunkMeta:
    return ChunkMeta(
        dump_id=task.dump.dump_id if task.dump else REFETCH_DUMP_ID,
        table=str(closed.window.table),
        chunk_id=closed.window.chunk_id,
        low_key=_list(task.request.after),
        high_key=_list(task.request.upto),
        low_watermark=f"{closed.low_position}",
        high_watermark=f"{closed.high_position}",
        snapshot=closed.snapshot.to_text(),
        rows_read=closed.rows_read,
        rows_superseded=closed.rows_superseded,
        keys_requested=len(task.request.keys or ()),
        order=task.order,
    )


def _list(key: Key | None) -> list[str | None] | None:
    return None if key is None else list(key)


class ChunkReaders:
    """The threads that read chunks. They are started on demand; connections are closed when fewer
    are needed.

    Args:
        open_reader: returns a new reader; it connects on first use.
        work: called in a reader's thread for each task. Its exception ends all (`failure`).
    """

    def __init__(
        self, open_reader: Callable[[], ChunkReader], work: Callable[[ChunkReader, ChunkTask], None]
    ) -> None:
        self._open_reader = open_reader
        self._work = work
        self._queue: SimpleQueue[ChunkTask | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._readers: list[ChunkReader] = []
        self._running = 0
        self._busy = 0
        self.failure: BaseException | None = None

    @property
    def busy(self) -> int:
        """Number of threads that read, including tasks about to be read."""
        with self._lock:
            return self._busy

    def give(self, task: ChunkTask) -> None:
        """Read ``task`` now; call it only while fewer threads are busy than are wanted."""
        with self._lock:
            self._busy += 1
            if self._busy > self._running:
                self._running += 1
                name = f"tidelog-chunks-{self._running}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads = [t for t in self._threads if t.is_alive()]
                self._threads.append(thread)
                thread.start()
        self._queue.put(task)

    def shrink(self, wanted: int) -> None:
        """Let threads beyond ``wanted`` end as soon as they are idle."""
        with self._lock:
            surplus = self._running - max(wanted, self._busy)
            for _ in range(surplus):
                self._running -= 1
                self._queue.put(None)

    def close(self) -> None:
        """Cancel current reads, and disconnect."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(10)

    def _run(self) -> None:
        _yield_to_others()
        reader = self._open_reader()
        with self._lock:
            self._readers.append(reader)
        try:
            while (task := self._queue.get()) is not None:
                try:
                    self._work(reader, task)
                finally:
                    with self._lock:
                        self._busy -= 1
        except BaseException as failure:  # noqa: BLE001 - raised by the coordinator
            self.failure = failure
        finally:
            reader.close()
            with self._lock:
                self._readers.remove(reader)


def _yield_to_others() -> None:
    """Lower the thread's priority. Only on Linux: elsewhere this would be the process's."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


# Where chunks end.

TURN_S = 0.2
MAX_QUERY_FAILURES = 3
"""Failures of one query. After these a reader cuts the chunk, and finds what can't be read in
it.
"""
PLAN_S = 0.5  # about the longest time of one query for several ends: readers wait for them
CHUNKS_AHEAD = 4  # chunks planned for each reader


class KeyPlanner:
    """One thread with a reader of its own. If chunks are read by one reader only, its only task is
    to find the key of a row that can't be read (`_find_stuck_key`).
    """

    def __init__(
        self,
        parts: DumpParts,
        open_reader: Callable[[], ChunkReader],
        tables: DumpTables,
        results: ChunkResults,
    ) -> None:
        self._open_reader = open_reader
        self._decisions = parts.decisions
        self._store = parts.store
        self._queue = parts.queue
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
        self._decisions.planning.set()
        if self._reader is not None:
            self._reader.close()
        if self._thread is not None:
            self._thread.join(10)

    def _run(self) -> None:
        reader = self._reader = self._open_reader()
        try:
            while not self._closing.is_set():
                if not self._turn(reader):
                    self._decisions.planning.wait(TURN_S)
                    self._decisions.planning.clear()
        except BaseException as failure:  # noqa: BLE001 - raised by the coordinator
            self.failure = failure
        finally:
            reader.close()

    def _turn(self, reader: ChunkReader) -> bool:
        """Run one query; False if none is needed."""
        with self._decisions.lock:
            stuck, options, plan = self._queue.stuck[:1], self._store.options, None
            if not stuck and options.parallelism > 1:
                ahead, now = CHUNKS_AHEAD * options.parallelism, time.monotonic()
                plan = self._queue.next_plan(options.chunk_rows, ahead, now)
        if stuck:
            self._find_stuck_key(reader, stuck[0])
        elif plan is not None:
            self._plan(reader, *plan)
        else:
            return False
        self._decisions.wake()
        return True

    def _plan(
        self, reader: ChunkReader, cursor: TableCursor, request: ChunkRequest, count: int
    ) -> None:
        begun = time.monotonic()
        try:
            ends = reader.boundaries(request, count)
        except (ChunkError, ConnectionLostError) as error:
            with self._decisions.lock:
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
                elif failures >= MAX_QUERY_FAILURES:
                    self._queue.plan_unknown(cursor, request)
            return
        each_s = max(1e-6, time.monotonic() - begun) / count
        with self._decisions.lock:
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
            with self._decisions.lock:
                self._store.chunks_read.failed(error)
            ends = []
        with self._decisions.lock:
            self._results.give_up(task, ends[0] if ends else None)
