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
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from tidelog import failpoints
from tidelog.capture.dump_state import FINISHED, DumpState, Key, TableProgress
from tidelog.capture.output_buffer import ChunkItem
from tidelog.capture.windows import Closed, MovedKeys, Voided, VoidReason, Window
from tidelog.errors import (
    ChunkError,
    ChunkRefusedError,
    ConnectionLostError,
    SourceError,
    UsageError,
)
from tidelog.model.records import ChunkMeta, Kind, Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    Catalogue,
    ChunkReader,
    ChunkRequest,
    ChunkRows,
    KeyExtractor,
    StateStore,
)

DUMP_PREFIX = "dump/"
REREAD_KEY = "dump-reread"
OPTIONS_KEY = "dump-options"
MAX_READ_FAILURES = 8
KEYS_PER_CHUNK = 1_000
KEEP_FINISHED = 500  # dumps; one whose id is asked for again is not repeated while it is kept
RECONNECT_S = 0.5


class Log(Protocol):
    """What the coordinator needs of the engine; all of it thread-safe."""

    def register(self, window: Window) -> None: ...
    def deliver(self, window: Window, rows: ChunkRows) -> None: ...
    def discard(self, window: Window) -> None: ...
    def forget_table(self, table: TableName) -> None: ...
    def append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        """Append behind all that was emitted."""
        ...

    def first_unseen(self, snapshot: Snapshot, table: TableName) -> int | None:
        """The lowest offset of a durable record of ``table`` that the snapshot can't see."""
        ...

    def resolve_unseen(self, snapshot: Snapshot) -> None:
        """Look the snapshot's unseen transactions up in the event log, if not done before."""
        ...

    def resolve_keys(self, table: TableName, xids: Iterable[int]) -> None:
        """Read the keys that ``xids`` touched back from the event log."""
        ...


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """How chunks are read; may change while a dump runs."""

    chunk_rows: int = 10_000
    delay_ms: int = 0
    parallelism: int = 1
    windows: int = 2  # chunks read but not yet closed


@dataclass(slots=True)
class Task:
    """One chunk to read, and read again if it is voided."""

    table: TableName
    dump: DumpState | None  # None: keys to read again
    progress: TableProgress | None
    request: ChunkRequest
    tries: int = 0
    not_before: float = 0.0
    first_key: int = 0
    cut: bool = False  # its range is fixed: rows were read once
    reread_number: int = 0  # of the newest request that reading the keys again answers
    order: float = 0.0  # sorts as the range's keys
    span: float = 1.0  # room in the order before the next range
    window: Window | None = None
    deadline: float = math.inf  # for the log to show the high watermark, once it is written
    failures: int = 0  # reads that failed, as against windows that were voided

    @property
    def ended(self) -> bool:
        """Was its table cancelled, or did another chunk of it fail?"""
        return self.progress is not None and self.progress.status in FINISHED


@dataclass(frozen=True, slots=True)
class Reread:
    """A table whose keys, of these columns, are to be read again."""

    table: str
    columns: tuple[str, ...]


@dataclass(slots=True)
class Counters:
    """What was done since start, for status and the demo."""

    chunks: int = 0
    rows: int = 0
    superseded: int = 0
    voided: dict[str, int] = field(default_factory=dict)
    last_error: str = ""


class DumpCoordinator:
    """Drives dumps. Public methods may be called from any thread."""

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
        self._catalogue = catalogue
        self._keys = keys
        self._state = state
        self._defaults = options
        self.options = options
        self._window_timeout_s = window_timeout_s
        self._log: Log | None = None
        self._lock = threading.RLock()
        self._reread_lock = threading.Lock()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._dumps: dict[str, DumpState] = {}
        self._retry: deque[Task] = deque()
        self._inflight: dict[str, Task] = {}
        self._cursor: dict[tuple[str, str], Key | None] = {}
        self._cut: dict[tuple[str, str], float] = {}
        self._drained: set[tuple[str, str]] = set()
        self._started: set[tuple[str, str]] = set()
        self._starting: set[tuple[str, str]] = set()
        self._completing: set[tuple[str, str]] = set()
        self._rereads: dict[Reread, dict[Key, int]] = {}  # key → number of its newest request
        self._reread_number = 0
        self._next_chunk_at = 0.0
        self._calls: list[Callable[[], None]] = []
        self.counters = Counters()

    # ------------------------------------------------------------ start, commands

    def recover(self, log: Log, chunks: Iterable[tuple[int, ChunkMeta]]) -> None:
        """Load what is stored and add the chunks that the event log holds beyond it.

        Args:
            log: the engine.
            chunks: (first offset, metadata) of chunk segments on the chain.
        """
        with self._lock:
            self._log = log
            stored = self._state.get(OPTIONS_KEY)
            if stored is not None:
                self.options = replace(self._defaults, **stored.value)
            for key in self._state.keys(DUMP_PREFIX):
                document = self._state.get(key)
                if document is not None:
                    dump = DumpState.from_json(document.value)
                    self._dumps[dump.dump_id] = dump
            reread = self._state.get(REREAD_KEY)
            if reread is not None:
                self._rereads = {
                    Reread(entry["table"], tuple(entry["columns"])): {
                        tuple(key): 0 for key in entry["keys"]
                    }
                    for entry in reread.value
                }
            changed: dict[str, DumpState] = {}
            for _offset, meta in chunks:
                found = self._dumps.get(meta.dump_id)
                if found is None or found.finished:
                    continue
                for progress in found.tables:
                    if progress.table == meta.table and progress.keys is None:
                        low, high = _tuple(meta.low_key), _tuple(meta.high_key)
                        if progress.add_range(low, high, meta.order):
                            changed[found.dump_id] = found
            for dump in changed.values():
                self._store(dump)

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
            if dump_id in self._dumps:
                return self._dumps[dump_id]
            number = 1 + max((d.number for d in self._dumps.values()), default=0)
            dump = DumpState(
                dump_id=dump_id,
                number=number,
                tables=[
                    TableProgress(
                        str(table),
                        keys=list(keys) if keys is not None else None,
                        key_columns=key_columns,
                    )
                    for table in dict.fromkeys(tables)
                ],
                where=where,
                reason=reason,
                requested_ms=now_ms,
            )
            self._dumps[dump_id] = dump
            self._store(dump)
            self._wake()
            return dump

    def pause(self, dump_id: str | None) -> list[str]:
        """Issue no more chunks; those being read end. All unfinished dumps if None."""
        return self._change(dump_id, {"queued", "running"}, "paused")

    def resume(self, dump_id: str | None) -> list[str]:
        return self._change(dump_id, {"paused"}, "running")

    def cancel(self, dump_id: str | None, tables: list[str] | None = None) -> list[str]:
        """Stop a dump, or only some of its tables; rows already delivered stay valid."""
        changed = []
        with self._lock:
            for dump in self._selected(dump_id, {"queued", "running", "paused"}):
                for progress in dump.tables:
                    if progress.status not in FINISHED and (not tables or progress.table in tables):
                        progress.status = "cancelled"
                        progress.reason = "cancelled"
                        self._forget(dump, progress)
                        changed.append(dump.dump_id)
                self._finish_if_done(dump)
                self._store(dump)
            self._wake()
        return list(dict.fromkeys(changed))

    def set_options(self, **changes: int) -> DumpOptions:
        """Change how chunks are read; survives a restart."""
        with self._lock:
            self.options = replace(self.options, **changes)
            stored = self._state.get(OPTIONS_KEY)
            value = {**(stored.value if stored else {}), **changes}
            self._state.put(OPTIONS_KEY, value, None)
            self._wake()
            return self.options

    def dumps(self) -> list[DumpState]:
        with self._lock:
            return sorted(self._dumps.values(), key=lambda dump: dump.number)

    def summary(self, finished: int) -> dict[str, Any]:
        """What status shows: options, counters, unfinished dumps and the last ``finished``."""
        with self._lock:
            dumps = self.dumps()
            recent = {dump.dump_id for dump in dumps[-finished:]}
            return {
                "dump_options": asdict(self.options),
                "dump_counters": asdict(self.counters),
                "dumps": [
                    dump.summary() for dump in dumps if not dump.finished or dump.dump_id in recent
                ],
            }

    def _selected(self, dump_id: str | None, statuses: set[str]) -> list[DumpState]:
        if dump_id is not None and dump_id not in self._dumps:
            raise UsageError(f"there is no dump {dump_id!r}; `tidelog status` lists them")
        return [
            d
            for d in self.dumps()
            if d.status in statuses and (dump_id is None or d.dump_id == dump_id)
        ]

    def _change(self, dump_id: str | None, statuses: set[str], to: Any) -> list[str]:
        with self._lock:
            selected = self._selected(dump_id, statuses)
            for dump in selected:
                dump.status = to
                self._store(dump)
            self._wake()
            return [dump.dump_id for dump in selected]

    # ------------------------------------------------------------ from the engine's thread

    def closed(self, closed: Closed) -> ChunkItem | None:
        """A window closed: what to append. Keys to be read again are stored before."""
        if closed.reread:
            self.reread(closed.schema, closed.reread)
        task = self._inflight.get(closed.window.chunk_id)
        if task is None:
            return None
        if task.ended:
            self._inbox.put(lambda: self._drop(task))
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
            self._inbox.put(lambda: self._chunk_done(task, closed, absent))

        task.deadline = math.inf  # what follows is the writer's, however slow its disk
        if not len(closed.rows):
            done(-1)
            return None
        closed.rows.commit_ts = np.full(len(closed.rows), time.time_ns() // 1000, np.int64)
        return ChunkItem(closed.rows, meta, closed.high_position, done)

    def voided(self, voided: Voided) -> None:
        self._inbox.put(lambda: self._void(voided))

    def moved(self, moved: MovedKeys) -> None:
        """Rows moved to keys with columns missing: stored before the records are appended."""
        self.reread(moved.schema, list(moved.keys))

    def reread(self, schema: TableSchema, keys: list[bytes]) -> None:
        """Read these match keys by a key chunk, also after a crash."""
        with self._reread_lock:
            spot = Reread(str(schema.table), schema.match_key)
            wanted = self._rereads.setdefault(spot, {})
            before = len(wanted)
            self._reread_number += 1
            wanted.update((self._keys.texts(key), self._reread_number) for key in keys)
            if len(wanted) != before:
                self._store_rereads()
        self._wake()

    # ------------------------------------------------------------ the coordinator's thread

    def run(self, stop: threading.Event) -> None:
        """Read chunks until ``stop``. Raises what is not a chunk's own failure."""
        task: Task | None = None
        while not stop.is_set():
            self._take_inbox(0.0 if task is not None else 0.1)
            task = self._next_task(time.monotonic())
            if task is not None:
                self._read(task)
            self._tell_engine()

    def _take_inbox(self, wait_s: float) -> None:
        """Do what the other threads left to do; wait for the first of it."""
        try:
            # No more than is there now: an action may put itself back, to be tried again.
            for _ in range(max(1, self._inbox.qsize())):
                action = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
                wait_s = 0.0
                with self._lock:
                    action()
        except Empty:
            pass
        now = time.monotonic()
        with self._lock:
            for task in [t for t in self._inflight.values() if t.deadline < now]:
                if task.window is not None:
                    self._void(Voided(task.window, VoidReason.DISCARDED))

    def _wake(self) -> None:
        self._inbox.put(lambda: None)

    def _tell_engine(self) -> None:
        """Call the engine for what was decided under our lock, which must not be held then: the
        engine's thread holds its own lock while it calls us.
        """
        with self._lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    @property
    def _engine(self) -> Log:
        assert self._log is not None, "recover() comes first"
        return self._log

    def _next_task(self, now: float) -> Task | None:
        with self._lock:
            if len(self._inflight) >= self.options.windows or now < self._next_chunk_at:
                return None
            for task in list(self._retry):
                if task.dump is not None and task.dump.status == "paused":
                    continue
                if task.not_before <= now:
                    self._retry.remove(task)
                    return task
            reread = self._next_reread()
            if reread is not None:
                return reread
            for dump in self.dumps():
                if dump.status in ("queued", "running"):
                    task_ = self._next_of(dump)
                    if task_ is not None:
                        return task_
            return None

    def _next_reread(self) -> Task | None:
        busy = {t.table for t in [*self._inflight.values(), *self._retry] if t.dump is None}
        with self._reread_lock:
            number = self._reread_number
            waiting = {spot: list(keys)[:KEYS_PER_CHUNK] for spot, keys in self._rereads.items()}
        for spot, keys in waiting.items():
            table = TableName.parse(spot.table)
            if keys and table not in busy:
                request = ChunkRequest(table, keys=tuple(keys), key_columns=spot.columns)
                return Task(table, None, None, request, reread_number=number)
        return None

    def _next_of(self, dump: DumpState) -> Task | None:
        for progress in dump.tables:
            if progress.status in FINISHED:
                continue
            spot = (dump.dump_id, progress.table)
            if spot in self._starting or spot in self._completing:
                return None
            if spot not in self._started:
                self._start_table(dump, progress)
                return None
            task = self._next_chunk(dump, progress)
            if task is not None:
                return task
            # one table at a time, so that its history is held for as short as can be
            self._complete_if_read(dump, progress)
            return None
        return None

    def _start_table(self, dump: DumpState, progress: TableProgress) -> None:
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
            self._finish_if_done(dump)
            self._store(dump)
            return
        progress.estimated_rows = shape.estimated_rows
        if progress.first_offset is not None:  # started before a restart
            self._started.add(spot)
            self._cursor[spot] = None
            self._refill(dump, progress)
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
                    self.counters.last_error = str(error)
                    time.sleep(RECONNECT_S)
                    self._inbox.put(act)
                    return
                unseen = self._engine.first_unseen(snapshot, table)
                self._starting.discard(spot)
                self._started.add(spot)
                progress.first_offset = offset if unseen is None else min(offset, unseen)
                progress.status = "running"
                self._cursor[spot] = None
                self._store(dump)

            self._inbox.put(act)

        record = {"type": "dump-started", "dump_id": dump.dump_id, "table": progress.table}
        self._calls.append(lambda: self._engine.append_control(record, started))

    def _refill(self, dump: DumpState, progress: TableProgress) -> None:
        """After a restart: read the gaps between completed ranges, then go on behind the last."""
        table, spot = TableName.parse(progress.table), (dump.dump_id, progress.table)
        low: Key | None = None
        order = progress.ranges[0].order - 1 if progress.ranges else 0.0
        for done in progress.ranges:
            if done.low != low:
                request = ChunkRequest(
                    table,
                    after=low,
                    upto=done.low,
                    limit_rows=self.options.chunk_rows,
                    where=dump.where,
                )
                span = (done.order - order) / 2
                task = Task(table, dump, progress, request, cut=True, order=order + span, span=span)
                self._retry.append(task)
            low, order = done.high, done.last_order
        if progress.ranges:
            last = progress.ranges[-1]
            self._cut[spot] = last.last_order + 1
            self._cursor[spot] = last.high
            if last.high is None:
                self._drained.add(spot)

    def _next_chunk(self, dump: DumpState, progress: TableProgress) -> Task | None:
        spot = (dump.dump_id, progress.table)
        table = TableName.parse(progress.table)
        busy = [t for t in [*self._inflight.values(), *self._retry] if t.progress is progress]
        if progress.keys is not None:
            if busy:  # one after the other, so that a count says which are done
                return None
            first = progress.keys_done
            batch = tuple(
                progress.keys[first : first + min(KEYS_PER_CHUNK, self.options.chunk_rows)]
            )
            if not batch:
                return None
            request = ChunkRequest(table, keys=batch, key_columns=progress.key_columns)
            return Task(table, dump, progress, request, first_key=first)
        if spot in self._drained or any(not t.cut for t in busy):
            return None
        request = ChunkRequest(
            table,
            after=self._cursor.get(spot),
            limit_rows=self.options.chunk_rows,
            where=dump.where,
        )
        order = self._cut.get(spot, 0.0)
        self._cut[spot] = order + 1
        return Task(table, dump, progress, request, order=order)

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
                self._drop(task)
                return
            task.window = window
            task.deadline = math.inf  # a read may take its time
            self._inflight[chunk_id] = task
        try:
            self._engine.register(window)
            self._reader.write_watermark(window.low_mark)
            failpoints.hit("chunk.after_low")
            try:
                rows = self._reader.read(task.request)
                failpoints.hit("chunk.after_read")
                self._engine.resolve_unseen(rows.snapshot)
                self._advance(task, rows)
                self._engine.deliver(window, rows)
                task.deadline = time.monotonic() + self._window_timeout_s
                self._reader.write_watermark(window.high_mark)
                failpoints.hit("chunk.after_high")
            finally:
                self._reader.release()
        except (ChunkError, ConnectionLostError) as error:
            self._engine.discard(window)
            with self._lock:
                self._failed(task, error)
            return
        self._next_chunk_at = time.monotonic() + self.options.delay_ms / 1000

    def _advance(self, task: Task, rows: ChunkRows) -> None:
        """The next chunk starts behind this one's last key."""
        if task.dump is None or task.request.keys is not None:
            return
        with self._lock:
            if task.ended:
                return
            spot = (task.dump.dump_id, str(task.table))
            upto = task.request.upto
            cut_short = not rows.exhausted and rows.last_key != upto
            if not task.cut:
                if rows.exhausted:
                    self._drained.add(spot)
                else:
                    self._cursor[spot] = rows.last_key
            elif cut_short:  # rows were inserted since it was read first
                task.span /= 2
                rest = replace(task, tries=0, failures=0, not_before=0.0, window=None)
                rest.request = replace(task.request, after=rows.last_key)
                rest.order = task.order + task.span
                self._retry.append(rest)
            task.cut = True
            if cut_short:
                task.request = replace(task.request, upto=rows.last_key)

    # ------------------------------------------------------------ outcomes (under the lock)

    def _chunk_done(self, task: Task, closed: Closed, absent: int) -> None:
        self._inflight.pop(closed.window.chunk_id, None)
        self.counters.chunks += 1
        self.counters.rows += len(closed.rows)
        self.counters.superseded += closed.rows_superseded
        failpoints.hit("chunk.durable_before_progress")
        if task.dump is None or task.progress is None:
            again = {self._keys.texts(key) for key in closed.reread}
            if again:  # still unseen: give the transaction time to become visible
                self._next_chunk_at = time.monotonic() + 0.2
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
        self._store(task.dump)
        if task.ended:
            self._release(task.table)

    def _complete_if_read(self, dump: DumpState, progress: TableProgress) -> None:
        spot = (dump.dump_id, progress.table)
        if any(t.progress is progress for t in [*self._inflight.values(), *self._retry]):
            return
        with self._reread_lock:
            reread_first = any(r.table == progress.table for r in self._rereads)
        if not progress.complete or reread_first:
            return
        self._completing.add(spot)

        def completed(_offset: int) -> None:
            def act() -> None:
                self._completing.discard(spot)
                if progress.status not in FINISHED:
                    progress.status = "done"
                self._forget(dump, progress)
                self._finish_if_done(dump)
                self._store(dump)

            self._inbox.put(act)

        record = {
            "type": "dump-completed",
            "dump_id": dump.dump_id,
            "table": progress.table,
            "first_offset": progress.first_offset,
            "delete_absent": dump.whole_tables,
        }
        self._calls.append(lambda: self._engine.append_control(record, completed))

    def _void(self, voided: Voided) -> None:
        task = self._inflight.pop(voided.window.chunk_id, None)
        if task is None:
            return
        name = voided.reason.name.lower()
        self.counters.voided[name] = self.counters.voided.get(name, 0) + 1
        if task.progress is not None:
            task.progress.chunks_voided += 1
        if voided.reason is VoidReason.KEYS_NOT_HELD:
            self._calls.append(
                lambda: self._engine.resolve_keys(voided.window.table, voided.unseen_xids)
            )
        elif voided.reason is VoidReason.DISCARDED:
            self._calls.append(lambda: self._engine.discard(voided.window))
        self._again(task)

    def _failed(self, task: Task, error: SourceError) -> None:
        if task.window is not None:
            self._inflight.pop(task.window.chunk_id, None)
        self.counters.last_error = str(error)
        if not isinstance(error, ConnectionLostError):  # the reader connects anew
            task.failures += 1
        hopeless = task.failures >= MAX_READ_FAILURES or isinstance(error, ChunkRefusedError)
        if hopeless and task.progress is not None and not task.ended:
            task.progress.status = "failed"
            task.progress.reason = str(error)
            if task.dump is not None:
                self._forget(task.dump, task.progress)
                self._finish_if_done(task.dump)
                self._store(task.dump)
            return
        if task.dump is None and hopeless and self._cannot_read(task):
            self._reread_done(task, list(task.request.keys or ()))
            return
        self._again(task)

    def _cannot_read(self, task: Task) -> bool:
        """Is the table gone, or a column of the key? Then a dump of the table is due anyway."""
        shape = self._catalogue.shape(task.table)
        columns = task.request.key_columns or ()
        return shape is None or not set(columns) <= set(shape.schema.column_names)

    def _drop(self, task: Task) -> None:
        """A chunk of a table that was cancelled or has failed is of no use any more."""
        if task.window is not None:
            self._inflight.pop(task.window.chunk_id, None)
        self._release(task.table)

    def _again(self, task: Task) -> None:
        if task.ended:
            self._drop(task)
            return
        task.tries += 1
        task.not_before = time.monotonic() + min(10.0, 0.05 * 2 ** min(task.tries, 8))
        task.window, task.deadline = None, math.inf
        self._retry.append(task)

    def _forget(self, dump: DumpState, progress: TableProgress) -> None:
        spot = (dump.dump_id, progress.table)
        self._started.discard(spot)
        self._cursor.pop(spot, None)
        self._cut.pop(spot, None)
        self._drained.discard(spot)
        self._retry = deque(task for task in self._retry if task.progress is not progress)
        self._release(TableName.parse(progress.table))

    def _release(self, table: TableName) -> None:
        """Let the table's key history go if nothing reads the table any more."""
        if any(t.table == table for t in [*self._inflight.values(), *self._retry]):
            return
        if any(name == str(table) for _dump, name in self._started):
            return
        self._calls.append(lambda: self._engine.forget_table(table))

    def _reread_done(self, task: Task, keys: list[Key]) -> None:
        with self._reread_lock:
            spot = Reread(str(task.table), task.request.key_columns or ())
            wanted = self._rereads.get(spot, {})
            for key in keys:
                # One that was asked for again since may have changed behind what was read.
                if wanted.get(key, 0) <= task.reread_number:
                    wanted.pop(key, None)
            if not wanted:
                self._rereads.pop(spot, None)
            self._store_rereads()
        self._release(task.table)

    def _finish_if_done(self, dump: DumpState) -> None:
        if not dump.finished and all(t.status in FINISHED for t in dump.tables):
            done = any(t.status == "done" for t in dump.tables)
            dump.status = "completed" if done else "aborted"
            dump.finished_ms = int(time.time() * 1000)
            for table in dump.tables:
                table.keys = table.keys and []  # may be many, and are of no use any more
            finished = [d for d in self.dumps() if d.finished and d.reason != "initial"]
            for old in finished[:-KEEP_FINISHED]:
                del self._dumps[old.dump_id]
                self._state.delete(DUMP_PREFIX + old.dump_id)

    def _store(self, dump: DumpState) -> None:
        self._state.put(DUMP_PREFIX + dump.dump_id, dump.to_json(), None)

    def _store_rereads(self) -> None:
        value = [
            {"table": spot.table, "columns": spot.columns, "keys": [list(key) for key in keys]}
            for spot, keys in self._rereads.items()
        ]
        self._state.put(REREAD_KEY, value, None)


def _tuple(key: list[str | None] | None) -> Key | None:
    return None if key is None else tuple(key)


def _list(key: Key | None) -> list[str | None] | None:
    return None if key is None else list(key)
