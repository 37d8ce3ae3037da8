"""Dump coordination: which chunk is read next, what became of it, and progress that survives.

One thread (`DumpCoordinator.run`) drives the chunk reader through the steps of Algorithm 1; windows
close on the engine's thread. Progress is stored after the chunk's segment is durable, and at start
it is reconciled with the event log's own chunk metadata, so no completed chunk is read again.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np

from tidelog import failpoints
from tidelog.capture.dump_actions import Actions, Log
from tidelog.capture.dump_book import DUMP_PREFIX, DumpBook, DumpOptions
from tidelog.capture.dump_outcomes import Outcomes
from tidelog.capture.dump_state import DumpState, Key
from tidelog.capture.dump_tables import DumpTables
from tidelog.capture.dump_tasks import Task, Tasks
from tidelog.capture.output_buffer import ChunkItem
from tidelog.capture.rereads import REREAD_KEY, Rereads
from tidelog.capture.windows import Closed, MovedKeys, Voided, VoidReason, Window
from tidelog.errors import ChunkError, ConnectionLostError, UsageError
from tidelog.model.records import ChunkMeta, Kind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import Catalogue, ChunkReader, KeyExtractor, StateStore

__all__ = ["DUMP_PREFIX", "REREAD_KEY", "DumpCoordinator", "DumpOptions"]


class DumpCoordinator:
    """Drives dumps. Public methods may be called from any thread.

    The engine's thread calls ``closed``, ``voided``, ``moved`` and ``reread`` while it holds its
    own lock: these don't take the coordinator's, under which nothing waits for the engine's.
    """

    def __init__(
        self,
        *,
        reader: ChunkReader,
        catalogue: Catalogue,
        keys: KeyExtractor,
        state: StateStore,
        options: DumpOptions,
        window_timeout_s: float = 60.0,
    ) -> None:
        self._reader = reader
        self._window_timeout_s = window_timeout_s
        self._actions = Actions()
        self._lock = self._actions.lock
        self._rereads = Rereads(keys, state)
        self._book = DumpBook(state, options)
        self._tasks = Tasks()
        self._tables = DumpTables(
            reader, catalogue, self._actions, self._book, self._tasks, self._rereads
        )
        self._outcomes = Outcomes(
            catalogue, keys, self._actions, self._book, self._tasks, self._tables, self._rereads
        )

    # ------------------------------------------------------------ start, commands

    def recover(self, log: Log, chunks: Iterable[tuple[int, ChunkMeta]]) -> None:
        """Load what is stored and add the chunks that the event log holds beyond it.

        Args:
            log: the engine.
            chunks: (first offset, metadata) of chunk segments on the chain.
        """
        with self._lock:
            self._actions.connect(log)
            self._book.load()
            self._rereads.load()
            self._book.reconcile(chunks)

    def request(
        self,
        dump_id: str,
        tables: list[TableName],
        *,
        where: str | None = None,
        keys: list[Key] | None = None,
        key_columns: tuple[str, ...] | None = None,
        reason: str = "requested",
        now_ms: int,
    ) -> DumpState:
        """Queue a dump. A dump id that exists already is returned as it is (acted on once).

        ``key_columns``: what ``keys`` are of, in that order; None: the table's key.
        """
        if not tables:
            raise UsageError("no captured table matches what is to be dumped; see source.tables")
        if keys is not None and len(tables) != 1:
            raise UsageError("--keys needs exactly one table")
        with self._lock:
            dump = self._book.request(
                dump_id,
                tables,
                where=where,
                keys=keys,
                key_columns=key_columns,
                reason=reason,
                now_ms=now_ms,
            )
            self._actions.wake()
            return dump

    def pause(self, dump_id: str | None) -> list[str]:
        """Issue no more chunks; those being read end. All unfinished dumps if None."""
        with self._lock:
            paused = self._book.pause(dump_id)
            self._actions.wake()
            return paused

    def resume(self, dump_id: str | None) -> list[str]:
        with self._lock:
            resumed = self._book.resume(dump_id)
            self._actions.wake()
            return resumed

    def cancel(self, dump_id: str | None, tables: list[str] | None = None) -> list[str]:
        """Stop a dump, or only some of its tables; rows already delivered stay valid."""
        with self._lock:
            cancelled = self._tables.cancel(dump_id, tables)
            self._actions.wake()
            return cancelled

    def set_options(self, **changes: int) -> DumpOptions:
        """Change how chunks are read; survives a restart."""
        with self._lock:
            options = self._book.set_options(**changes)
            self._actions.wake()
            return options

    def dumps(self) -> list[DumpState]:
        with self._lock:
            return self._book.all()

    def summary(self, finished: int) -> dict[str, Any]:
        """What status shows: options, counters, unfinished dumps and the last ``finished``."""
        with self._lock:
            return self._book.summary(finished)

    # ------------------------------------------------------------ from the engine's thread

    def closed(self, closed: Closed) -> ChunkItem | None:
        """A window closed: what to append. Keys to be read again are stored before."""
        if closed.reread:
            self.reread(closed.schema, closed.reread)
        task = self._tasks.find(closed.window.chunk_id)
        if task is None:
            return None
        if task.ended:
            self._actions.post(lambda: self._outcomes.drop(task))
            return None
        table = str(closed.window.table)
        absent = int((closed.rows.kind == Kind.ABSENT).sum())
        meta = ChunkMeta(
            dump_id=task.dump.dump_id if task.dump else "reread",
            table=table,
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

        def done(_offset: int) -> None:
            self._actions.post(lambda: self._outcomes.durable(task, closed, absent))

        task.deadline = math.inf  # what follows is the writer's, however slow its disk
        if not len(closed.rows):
            done(-1)
            return None
        closed.rows.commit_ts = np.full(len(closed.rows), time.time_ns() // 1000, np.int64)
        return ChunkItem(closed.rows, meta, closed.high_position, done)

    def voided(self, voided: Voided) -> None:
        self._actions.post(lambda: self._outcomes.void(voided))

    def moved(self, moved: MovedKeys) -> None:
        """Rows moved to keys with columns missing: stored before the records are appended."""
        self.reread(moved.schema, list(moved.keys))

    def reread(self, schema: TableSchema, keys: list[bytes]) -> None:
        """Read these match keys by a key chunk, also after a crash."""
        self._rereads.add(schema, keys)
        self._actions.wake()

    # ------------------------------------------------------------ the coordinator's thread

    def run(self, stop: threading.Event) -> None:
        """Read chunks until ``stop``. Raises what is not a chunk's own failure."""
        task: Task | None = None
        while not stop.is_set():
            self._take_inbox(0.0 if task is not None else 0.1)
            task = self._next_task(time.monotonic())
            if task is not None:
                self._read(task)
            self._actions.tell_engine()

    def _take_inbox(self, wait_s: float) -> None:
        """Do what the other threads left to do, and void the windows whose time is up."""
        self._actions.take(wait_s)
        now = time.monotonic()
        with self._lock:
            for task in self._tasks.inflight:
                if task.deadline < now and task.window is not None:
                    self._outcomes.void(Voided(task.window, VoidReason.DISCARDED))

    def _next_task(self, now: float) -> Task | None:
        with self._lock:
            full = len(self._tasks.inflight) >= self._book.options.windows
            if full or now < self._tasks.pause_until:
                return None
            task = self._tasks.next_retry(now) or self._tasks.next_reread(self._rereads)
            if task is not None:
                return task
            for dump in self._book.all():
                if dump.status in ("queued", "running"):
                    task = self._tables.next_of(dump)
                    if task is not None:
                        return task
            return None

    def _read(self, task: Task) -> None:
        """Steps 1 to 6 of Algorithm 1 for one chunk; the window closes on the engine's thread."""
        chunk_id = uuid.uuid4().hex
        window = Window(
            chunk_id=chunk_id,
            table=task.table,
            low_mark=f"{chunk_id}:low",
            high_mark=f"{chunk_id}:high",
        )
        with self._lock:
            if task.ended:
                self._outcomes.drop(task)
                return
            self._tasks.begin(task, window)
        try:
            self._actions.engine.register(window)
            self._reader.write_watermark(window.low_mark)
            failpoints.hit("chunk.after_low")
            try:
                rows = self._reader.read(task.request)
                failpoints.hit("chunk.after_read")
                self._actions.engine.resolve_unseen(rows.snapshot)
                with self._lock:
                    self._tasks.advance(task, rows)
                self._actions.engine.deliver(window, rows)
                task.deadline = time.monotonic() + self._window_timeout_s
                self._reader.write_watermark(window.high_mark)
                failpoints.hit("chunk.after_high")
            finally:
                self._reader.release()
        except (ChunkError, ConnectionLostError) as error:
            self._actions.engine.discard(window)
            with self._lock:
                self._outcomes.failed(task, error)
            return
        self._tasks.pause_until = time.monotonic() + self._book.options.delay_ms / 1000


def _list(key: Key | None) -> list[str | None] | None:
    return None if key is None else list(key)
