"""The capture loop of one leadership: reader → windows → output buffer → writer.

A loop starts at the event log's end and runs until the first failure; then a new one starts
at the end again, so that nothing in memory can disagree with what is durable.

A token bucket limits how many bytes of the source's log are read per second. It may go into debt,
as in the dumps' throttle: the size of a read is known only after it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.thread_messages import acquired
from tidelog.capture.pauses import BlockingDumpPause
from tidelog.capture.windows import ClosedWindow, VoidedWindow, Window, Windows
from tidelog.capture.writer_thread import (
    Appender,
    ChunkItem,
    ControlItem,
    Item,
    OutputBuffer,
    PositionItem,
    WriterThread,
)
from tidelog.errors import OffsetGoneError
from tidelog.model.records import LogBatch, Resume, Snapshot, XidRanges, ranges_of
from tidelog.model.schema import TableName
from tidelog.ports import (
    CatalogueChanged,
    ChunkRows,
    IdleAt,
    LogEvent,
    LogReader,
    RelationNamed,
    RowsUnlogged,
    SchemaSeen,
    SignalSeen,
    TableRenamed,
    UnsupportedTableSeen,
    WatermarkSeen,
)
from tidelog.system import failpoints

# The limit of bytes read per second. Pure: time is passed in.

BURST_S = 0.25
"""Budget that may be saved up: makes up for late polls."""


class ReadRate:
    """The read rate of one loop, used by its thread.

    Args:
        limit: bytes a second; None: no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._budget = 0.0
        self._at: float | None = None

    def add(self, size: int) -> None:
        """Note bytes that were read."""
        if self._limit is not None:
            self._budget -= size

    def wait_s(self, now: float) -> float:
        """0.0 if the log may be read now, else seconds after which to ask again."""
        if self._limit is None:
            return 0.0
        if self._at is not None:
            earned = self._limit * max(0.0, now - self._at)
            self._budget = min(self._budget + earned, self._limit * BURST_S)
        self._at = now
        return max(0.0, -self._budget / self._limit)


# The loop.


@dataclass(slots=True)
class CaptureProgress:
    """Counts and positions of a loop, for status.

    ``covered``: all commits before this position in the source are durable in the event log, even
    if no record shows it. ``bytes``: of the records' payloads; ``append_s``: total time of
    appending, until each segment was durable.
    """

    position: int = 0
    covered: int = 0
    durable: Resume | None = None
    records: int = 0
    segments: int = 0
    bytes: int = 0
    append_s: float = 0.0
    next_offset: int = 0
    last_commit_ts: int = 0
    buffer_bytes: int = 0
    buffer_waited_s: float = 0.0
    open_windows: int = 0
    retained_bytes: int = 0
    unseen_transactions: int = 0
    held: bool = False


class EmittedTransactionsLog(Protocol):
    """Reads what was emitted before this loop started, or is not in its memory any more."""

    def changed_by(self, xids: XidRanges) -> dict[int, set[int]]:
        """Xid → schema ids of its records, for those ``xids`` that are in the event log."""
        ...

    def records_of(self, xids: XidRanges, table: TableName) -> Iterable[LogBatch]:
        """The records of ``xids`` on ``table``, in log order, read lazily."""
        ...

    def first_offset_of(self, xids: XidRanges, table: TableName) -> int | None:
        """The lowest offset of a durable record of ``xids`` on ``table``; None if there is none."""
        ...

    def max_xid(self) -> int:
        """The greatest xid in the event log; 0 if there is none."""
        ...


class LogListener(Protocol):
    """Receives what the log shows of tables, on the loop's thread, before it reads on."""

    def on_schema(self, seen: SchemaSeen) -> None: ...

    def on_unlogged(self, seen: Sequence[RowsUnlogged]) -> None: ...

    def on_catalogue(self, seen: RelationNamed | TableRenamed | CatalogueChanged) -> None: ...

    def on_unsupported(self, seen: UnsupportedTableSeen) -> None: ...


END_S = 30.0
PAUSED_TURN_S = 0.02
DURABLE_WAIT_S = 5.0
MOST_TOGETHER = 10_000
"""Most events that are stored together."""


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Sizes and times of the capture loop; the first four are the section ``capture``'s."""

    flush_bytes: int
    flush_s: float
    buffer_bytes: int
    read_bytes_per_s: int | None
    settle_s: float = 1.0  # time without records before a position is appended …
    idle_position_s: float = 10.0  # … and between two such positions
    journal_prune_entries: int = 50_000


class CaptureLoop:
    """Runs until `stop`, or until an error, which `run` raises. Lock order: the loop's lock may
    be held while the coordinator is called, never the reverse.
    """

    def __init__(
        self,
        *,
        reader: LogReader,
        windows: Windows,
        coordinator: DumpCoordinator,
        log: Appender,
        log_answers: Callable[[], bool] = lambda: True,
        emitted: EmittedTransactionsLog,
        resume: Resume,
        options: CaptureOptions,
        on_signals: Callable[[Sequence[SignalSeen]], None],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reader = reader
        self._windows = windows
        self._coordinator = coordinator
        self._emitted = emitted
        self._options = options
        self._on_signals = on_signals
        self._listener: LogListener  # of `run`
        self._is_paused = is_paused
        self._rate = ReadRate(options.read_bytes_per_s)
        self._lock = threading.Lock()
        self._buffer = OutputBuffer(options.buffer_bytes)
        flush = options.flush_bytes, options.flush_s
        self._writer = WriterThread(self._buffer, log, resume, *flush, log_answers)
        self._resume = resume
        self._appends: deque[ControlItem | ChunkItem] = deque()
        self._log_pause: BlockingDumpPause | None = None
        self._paused = False  # the log is paused at a dump's position
        self._stopped = threading.Event()
        self._reached = resume.acknowledge
        # True between two transactions. An idle source may show nothing more.
        self._between = resume.acknowledge > resume.position
        self._idle = False  # the last appended item is a position
        self._last_put_at = 0.0

    # ------------------------------------------------------------ the loop

    def run(self, stop: threading.Event, listener: LogListener) -> None:
        """Stream from the resume point until ``stop``; at the end all that was read is made
        durable.
        """
        self._listener = listener
        self._writer.start()
        self._stopped = stop
        try:
            acknowledged = self._resume.acknowledge
            while not stop.is_set():
                if wait_s := self._wait_s():
                    self._reader.keepalive()
                    stop.wait(wait_s)
                else:
                    self._handle_all(self._reader.poll(0.02))
                if self._between:
                    self._at_boundary(self._reached)
                self._append_waiting()
                self._buffer.raise_failure()
                self._writer.check()
                durable = self._writer.durable.acknowledge
                if durable > acknowledged:
                    failpoints.hit("capture.before_acknowledge")
                    acknowledged = durable
                    self._reader.acknowledge(durable)
        finally:
            self._writer.end(END_S)
        self._buffer.raise_failure()
        if self._writer.durable.acknowledge > acknowledged:
            self._reader.acknowledge(self._writer.durable.acknowledge)

    @property
    def reads_slowly(self) -> bool:
        """Does a configured limit delay the reading of the log?"""
        return self._options.read_bytes_per_s is not None

    def _wait_s(self) -> float:
        """Seconds for which not to read the log now. While a blocking dump runs, the log is read on
        even if it is to be paused: the dump waits for it to reach its snapshot, which is kept open.
        """
        log_pause = self._log_pause
        reads_on = log_pause is not None and log_pause.at is not None
        if not reads_on and self._is_paused():
            return PAUSED_TURN_S
        return min(PAUSED_TURN_S, self._rate.wait_s(time.monotonic()))

    def _handle_all(self, events: Iterable[LogEvent]) -> None:
        """Handle events; signals in a row are passed on together, and so are changes without row
        events: one statement may yield one for each table. They are stored before a later record is
        appended, or a crash could lose them.
        """
        signals: list[SignalSeen] = []
        unlogged: list[RowsUnlogged] = []
        for event in events:
            if signals and not isinstance(event, SignalSeen):
                self._on_signals(signals)
                signals = []
            if unlogged and not (isinstance(event, RowsUnlogged) and len(unlogged) < MOST_TOGETHER):
                self._listener.on_unlogged(unlogged)
                unlogged = []
            if isinstance(event, SignalSeen):
                signals.append(event)
            elif isinstance(event, RowsUnlogged):
                unlogged.append(event)
            else:
                self._handle(event)
        if signals:
            self._on_signals(signals)
        if unlogged:
            self._listener.on_unlogged(unlogged)

    def _handle(self, event: LogEvent) -> None:
        if isinstance(event, LogBatch):
            self._append_batch(event)
        elif isinstance(event, WatermarkSeen):
            with self._lock:
                outcome = self._windows.on_watermark(event)
                if outcome is not None:
                    self._end_window(outcome)
        elif isinstance(event, SchemaSeen):
            with self._lock:
                self._windows.on_schema(event.schema)
            self._listener.on_schema(event)
        elif isinstance(event, (RelationNamed, TableRenamed, CatalogueChanged)):
            self._listener.on_catalogue(event)
        elif isinstance(event, UnsupportedTableSeen):
            self._listener.on_unsupported(event)
        elif isinstance(event, IdleAt):
            self._reached = max(self._reached, event.position)
            self._between = True
            self._at_boundary(self._reached)
            self._store_idle_position(event)

    def _append_batch(self, batch: LogBatch) -> None:
        """Append a batch; windows that close within it are appended between two transactions."""
        self._rate.add(batch.payload_bytes)
        while True:
            log_pause = None if self._stopped.is_set() else self._log_pause
            also_at = None if log_pause is None else log_pause.at
            if also_at is None and self._rows_wait:
                also_at = 0  # between any two transactions
            with self._lock:
                at = self._windows.due(batch, also_at)
                if at is None:
                    self._emit(batch)
                    return
                if at:
                    head = batch.slice(0, at)
                    acknowledge = self._resume.acknowledge
                    head.resume = replace(head.resume, acknowledge=acknowledge)
                    self._emit(head)
            position = int(batch.position[at])
            batch = batch.slice(at, len(batch))
            self._at_boundary(position)

    def _emit(self, batch: LogBatch) -> None:
        for moved in self._windows.on_batch(batch):
            self._coordinator.on_keys_changed(moved)
        self._put(batch)
        self._resume = batch.resume
        self._reached = max(self._reached, batch.resume.acknowledge)
        self._between = False

    def _at_boundary(self, position: int) -> None:
        """Close due windows, and pause if requested: all before ``position`` was read."""
        with self._lock:
            for outcome in self._windows.close_due(position):
                self._end_window(outcome)
        log_pause = self._log_pause
        if log_pause is None or log_pause.at is None:
            self._append_waiting(between=True)
            return
        self._paused = True
        while not self._stopped.is_set() and log_pause.pause_at(position, PAUSED_TURN_S):
            self._append_waiting(between=True)
            self._buffer.raise_failure()
            self._while_full()
        self._append_waiting(between=True)  # rows queued before the pause was released belong here
        self._paused = False

    def _end_window(self, outcome: ClosedWindow | VoidedWindow) -> None:
        if isinstance(outcome, ClosedWindow):
            failpoints.hit("window.closed")
            item = self._coordinator.on_window_closed(outcome)
            if item is not None:
                self._put(item)
        else:
            self._coordinator.on_window_voided(outcome)

    @property
    def _rows_wait(self) -> bool:
        """Is the next item to append a chunk's rows, which stand between two transactions?"""
        return bool(self._appends) and isinstance(self._appends[0], ChunkItem)

    def _append_waiting(self, *, between: bool = False) -> None:
        """Append what waits; rows only ``between`` two transactions."""
        while self._appends and (between or not self._rows_wait):
            item = self._appends.popleft()
            if isinstance(item, ChunkItem) and item.while_paused and not self._paused:
                # Capture stops, and the log was read on: here the rows would be stale. The dump
                # restarts with the next session, so its completion record must not come either.
                self._appends.clear()
                return
            with self._lock:
                self._put(item)

    def _store_idle_position(self, event: IdleAt) -> None:
        """Append a position from time to time without records, so that an idle database can remove
        log.

        It may be acknowledged only after it is durable: otherwise a restart would find the slot
        ahead of the event log and could not distinguish it from a gap.
        """
        now = time.monotonic()
        if event.resume.acknowledge <= self._resume.acknowledge or len(self._buffer):
            return
        options = self._options
        wait_s = options.idle_position_s if self._idle else options.settle_s
        if now - self._last_put_at < wait_s:
            return
        with self._lock:
            self._put(PositionItem(event.resume))
            self._resume = event.resume
        self._idle = True

    def _put(self, item: Item) -> None:
        self._idle, self._last_put_at = False, time.monotonic()
        self._buffer.put(item, self._while_full, self._last_put_at)

    def _while_full(self) -> None:
        self._writer.check()
        self._reader.keepalive()

    # ------------------------------------------------------------ for the coordinator (Log)

    def register(self, window: Window) -> None:
        with self._lock:
            self._windows.register(window)

    def deliver(self, window: Window, rows: ChunkRows, until: float) -> None:
        with acquired(self._lock, until):
            self._windows.deliver(window, rows)

    def discard(self, window: Window) -> None:
        with self._lock:
            self._windows.discard(window)

    def forget_table(self, table: TableName) -> None:
        with self._lock:
            self._windows.forget(table)

    def append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        """Queue a record for the loop's thread: only that one may wait for room in the buffer,
        since it keeps the reader's connection alive.
        """
        self._appends.append(ControlItem(value, done))

    def append_chunk(self, item: ChunkItem) -> None:
        """Queue rows that need no window: the log is paused there, or the table has no key."""
        self._appends.append(item)

    def pause_log(self) -> BlockingDumpPause:
        """Pause the log at the next boundary between transactions, until released."""
        self._log_pause = BlockingDumpPause()
        return self._log_pause

    @property
    def reached(self) -> int:
        """The position up to which all commits were read."""
        return self._reached

    def retain(self, table: TableName) -> None:
        with self._lock:
            self._windows.retain(table)

    def first_unseen(self, snapshot: Snapshot, table: TableName) -> int | None:
        unseen = snapshot.invisible_ranges(self._emitted.max_xid())
        return self._emitted.first_offset_of(unseen, table) if len(unseen) else None

    @property
    def unseen_known(self) -> bool:
        """Is it known which emitted transactions a current snapshot can't see?"""
        return self._windows.journal.complete

    def resolve_unseen(self, snapshot: Snapshot) -> None:
        highest = self._emitted.max_xid()
        changed = self._emitted.changed_by(snapshot.invisible_ranges(highest))
        with self._lock:
            self._windows.journal.seed(changed, highest)

    def resolve_keys(self, table: TableName, xids: Iterable[int]) -> None:
        wanted = set(xids)
        if not self._wait_until_durable():
            return  # records in the buffer can't be read back: the chunk asks again
        try:
            keys = self._windows.keys_of(self._emitted.records_of(ranges_of(wanted), table))
        except OffsetGoneError:
            return  # removed by retention, so not known: the chunk waits until all is visible
        if keys is None:
            return  # too many to keep: the chunk waits as well
        with self._lock:
            self._windows.seed_keys(table, wanted, keys)

    def _wait_until_durable(self) -> bool:
        """Wait until all that was emitted by now is in the event log; False after a time limit."""
        with self._lock:  # a batch is put and `_resume` set under it
            upto = self._resume.position, self._resume.ordinal
        deadline = time.monotonic() + DURABLE_WAIT_S
        while not self._stopped.is_set():
            durable = self._writer.durable
            if (durable.position, durable.ordinal) >= upto:
                return True
            if time.monotonic() >= deadline:
                break
            time.sleep(0.005)
        return False

    # ------------------------------------------------------------ maintenance

    def prune_journal(self, take_snapshot: Callable[[], Snapshot]) -> None:
        """Forget transactions that are visible by now, if many are remembered."""
        if len(self._windows.journal) > self._options.journal_prune_entries:
            snapshot = take_snapshot()
            with self._lock:
                self._windows.forget_visible(snapshot)

    def progress(self) -> CaptureProgress:
        writer = self._writer
        # In this order: all before `reached` was put, and stored as `resume`, earlier.
        reached = self._reached
        resume = self._resume
        durable = writer.durable
        return CaptureProgress(
            position=resume.position,
            covered=max(reached, durable.acknowledge) if durable == resume else durable.acknowledge,
            durable=durable,
            records=writer.records,
            segments=writer.segments,
            bytes=writer.bytes,
            append_s=writer.append_s,
            next_offset=writer.next_offset,
            last_commit_ts=writer.last_commit_ts,
            buffer_bytes=self._buffer.bytes,
            buffer_waited_s=self._buffer.waited_s,
            open_windows=self._windows.open_count,
            retained_bytes=self._windows.retained_bytes,
            unseen_transactions=len(self._windows.journal),
            held=self._log_pause is not None and self._log_pause.at is not None,
        )
