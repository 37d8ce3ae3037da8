"""The output buffer, and the thread that appends its items to the event log, in order.

The buffer is that of the DBLog paper: a queue from the log reader to the writer. It is bounded in
bytes: a slow disk slows the reader (back-pressure). Nothing is ever dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tidelog.errors import OutcomeUnknownError
from tidelog.model.records import ChunkMeta, LogBatch, Resume
from tidelog.system.peer_check import PeerCheck

# The output buffer.

Done = Callable[[int], None]  # called with the offset of the item's first record once durable


@dataclass(slots=True)
class ChunkItem:
    """Rows of a dump, such as those of a closed window; they become a segment of their own.
    ``while_paused``: they may be appended only while the log is paused at ``position``.
    """

    rows: LogBatch
    meta: ChunkMeta
    position: int
    done: Done
    while_paused: bool = False


@dataclass(slots=True)
class ControlItem:
    """A CONTROL record."""

    value: dict[str, Any]
    done: Done


@dataclass(slots=True)
class PositionItem:
    """A position to store although no record has it."""

    resume: Resume


Item = LogBatch | ChunkItem | ControlItem | PositionItem


def item_bytes(item: Item) -> int:
    """The item's size as counted against the buffer's limit."""
    rows = item.rows if isinstance(item, ChunkItem) else item
    if isinstance(rows, LogBatch):
        return rows.payload_bytes + 45 * len(rows)
    return 256


@dataclass(slots=True)
class OutputBuffer:
    """A bounded queue between the reader (one thread puts) and the writer (one thread takes)."""

    limit_bytes: int
    _items: deque[tuple[Item, float]] = field(default_factory=deque)
    _bytes: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _failure: BaseException | None = None
    _closed: bool = False
    waited_s: float = 0.0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def bytes(self) -> int:
        return self._bytes

    def put(self, item: Item, while_full: Callable[[], None], now: float) -> None:
        """Append an item; while there is no room, call ``while_full`` every 100 ms. Raises the
        writer's error if it failed.
        """
        size = item_bytes(item)
        with self._changed:
            while self._failure is None and self._bytes and self._bytes + size > self.limit_bytes:
                started = time.monotonic()
                self._changed.wait(0.1)
                self.waited_s += time.monotonic() - started
                self._changed.release()
                try:
                    while_full()
                finally:
                    self._changed.acquire()
            self.raise_failure()
            self._items.append((item, now))
            self._bytes += size
            self._changed.notify_all()

    def take(self, timeout_s: float) -> tuple[Item, float] | None:
        """Remove the next item; returns it and when it was put (monotonic); None: timeout."""
        with self._changed:
            if not self._items:
                self._changed.wait(timeout_s)
            if not self._items:
                return None
            return self._items.popleft()

    def take_controls(self) -> list[ControlItem]:
        """Remove the CONTROL records that are next; at most ``_CONTROLS`` of them."""
        taken: list[ControlItem] = []
        with self._changed:
            while self._items and len(taken) < _CONTROLS:
                item = self._items[0][0]
                if not isinstance(item, ControlItem):
                    break
                taken.append(item)
                self._items.popleft()
        return taken

    def release(self, size: int) -> None:
        """Free the room of ``size`` bytes that were taken earlier and are durable now."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


# The writer.


class Appended(Protocol):
    """A durable segment, as the event log returns it."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


class Appender(Protocol):
    """The event log's writer. Every call returns after the segment is durable, or raises
    AppendRaceLostError, LeaseLostError or StorageError with nothing half-visible.
    """

    @property
    def next_offset(self) -> int: ...
    def append_log(self, batches: Sequence[LogBatch], resume: Resume) -> Appended: ...
    def append_chunk(self, rows: LogBatch, chunk: ChunkMeta, position: int) -> Appended: ...
    def append_controls(self, messages: Sequence[dict[str, Any]]) -> tuple[Appended, Sequence[int]]:
        """Append a record for each message; returns also the records' offsets."""
        ...

    def append_position(self, resume: Resume) -> Appended: ...
    def idle(self) -> None:
        """Called when there is nothing to append. Takes no time, raises nothing."""


_LATE: Final = 20  # flush intervals: later changes are part of a backlog
_IN_BACKLOG: Final = 4
_IN_BACKLOG_S: Final = 1.0
"""In a backlog a segment takes this many flush intervals, but no longer than this: its costs, here
and for all readers, are shared by more rows."""

_POLL_S: Final = 0.05
_CONTROLS: Final = 100
"""CONTROL records that share a segment, at most."""


class WriterThread(threading.Thread):
    """Flushes when ``flush_bytes`` are waiting or the oldest record is ``flush_s`` old; in a
    backlog it may wait longer.

    ``durable``: the resume of what is in the event log; only that may be acknowledged. A failure is
    passed to the reader through the buffer.
    """

    def __init__(
        self,
        buffer: OutputBuffer,
        log: Appender,
        resume: Resume,
        flush_bytes: int,
        flush_s: float,
        answers: Callable[[], bool],
    ) -> None:
        """``answers``: does the event log's storage answer a short request? May block for ever."""
        super().__init__(name="tidelog-writer", daemon=True)
        self._buffer = buffer
        self._log = log
        self._flush_bytes = flush_bytes
        self._flush_s = flush_s
        self._stopping = threading.Event()
        self._reach = PeerCheck(answers)
        self._begun: float | None = None
        self.durable = resume
        self.records = 0
        self.segments = 0
        self.bytes = 0
        self.append_s = 0.0
        self.next_offset = log.next_offset
        self.last_commit_ts = 0

    def check(self) -> None:
        """Raise OutcomeUnknownError if an append does not end, and the storage does not answer
        either. The append may still succeed later, as that of a frozen process.
        """
        begun = self._begun
        silent_s = 0.0 if begun is None else time.monotonic() - begun
        if self._reach.is_lost(silent_s):
            raise OutcomeUnknownError(
                f"the event log has not answered for {silent_s:.0f} s; what is appended may be "
                "there, or come later"
            )

    def end(self, within_s: float) -> None:
        """Write what is in the buffer, then end; wait for it unless the log does not answer."""
        self._stopping.set()
        until = time.monotonic() + within_s
        with suppress(OutcomeUnknownError):
            while self.is_alive() and time.monotonic() < until:
                self.check()
                self.join(_POLL_S)

    def run(self) -> None:
        try:
            self._drain()
        except BaseException as failure:  # noqa: BLE001 - handed to the reader, which decides
            self._buffer.fail(failure)

    def _drain(self) -> None:
        pending: list[LogBatch] = []
        pending_bytes = 0
        oldest = due = 0.0
        while True:
            wait = 0.1
            if pending:
                wait = max(0.0, due - time.monotonic())
            if self._stopping.is_set():
                wait = 0.0
            taken = self._buffer.take(wait)
            if taken is not None:
                item, put_at = taken
                if isinstance(item, LogBatch):
                    if not pending:
                        oldest = put_at
                    due = oldest + self._age_s(item)
                    pending.append(item)
                    pending_bytes += item_bytes(item)
                    if pending_bytes < self._flush_bytes and (
                        time.monotonic() < due or len(self._buffer)
                    ):
                        continue
                    self._flush(pending, pending_bytes)
                    pending, pending_bytes = [], 0
                    continue
                if pending:
                    self._flush(pending, pending_bytes)
                    pending, pending_bytes = [], 0
                self._append(item)
            else:
                if pending:
                    self._flush(pending, pending_bytes)
                    pending, pending_bytes = [], 0
                elif self._stopping.is_set() and not len(self._buffer):
                    return
                else:
                    self._log.idle()

    def _age_s(self, newest: LogBatch) -> float:
        if newest.behind_s < _LATE * self._flush_s:
            return self._flush_s
        return max(self._flush_s, min(_IN_BACKLOG * self._flush_s, _IN_BACKLOG_S))

    def _flush(self, batches: list[LogBatch], size: int) -> None:
        began = self._begun = time.monotonic()
        appended = self._log.append_log(batches, batches[-1].resume)
        payload = sum(batch.payload_bytes for batch in batches)
        self._note_appended(appended, batches[-1].resume, began, payload)
        self.records += sum(len(batch) for batch in batches)
        self.last_commit_ts = int(batches[-1].commit_ts[-1])
        self._buffer.release(size)

    def _append(self, item: ChunkItem | ControlItem | PositionItem) -> None:
        size = item_bytes(item)
        began = self._begun = time.monotonic()
        if isinstance(item, PositionItem):
            self._note_appended(self._log.append_position(item.resume), item.resume, began, 0)
        elif isinstance(item, ChunkItem):
            appended = self._log.append_chunk(item.rows, item.meta, item.position)
            self._note_appended(appended, None, began, item.rows.payload_bytes)
            self.records += len(item.rows)
            item.done(appended.first)
        else:
            controls = [item, *self._buffer.take_controls()]
            appended, offsets = self._log.append_controls([each.value for each in controls])
            self._note_appended(appended, None, began, 0)
            for control, offset in zip(controls, offsets, strict=True):
                control.done(offset)
            size = sum(map(item_bytes, controls))
        self._buffer.release(size)

    def _note_appended(
        self, appended: Appended, resume: Resume | None, began: float, payload: int
    ) -> None:
        self._begun = None
        self.append_s += time.monotonic() - began
        self.segments += 1
        self.bytes += payload
        self.next_offset = appended.next
        if resume is not None:
            self.durable = resume
