"""Passes work between the dumps' thread, the loop's thread and the threads that send commands.

The loop's thread holds its own lock while it calls the coordinator. So it only posts decisions,
and the coordinator calls the loop only after it has released its own lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tidelog.capture.pauses import BlockingDumpPause
from tidelog.capture.windows import Window
from tidelog.capture.writer_thread import ChunkItem
from tidelog.errors import ChunkBusyError
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRows


class DumpLog(Protocol):
    """The part of the loop that the coordinator uses; thread-safe."""

    def register(self, window: Window) -> None: ...
    def deliver(self, window: Window, rows: ChunkRows, until: float) -> None:
        """Deliver the rows of a window. Raises ChunkBusyError if the log's thread stays busy until
        ``until`` (monotonic).
        """
        ...

    def discard(self, window: Window) -> None: ...
    def forget_table(self, table: TableName) -> None: ...
    def append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        """Append after all that was emitted."""
        ...

    def first_unseen(self, snapshot: Snapshot, table: TableName) -> int | None:
        """The lowest offset of a durable record of ``table`` that the snapshot can't see."""
        ...

    @property
    def unseen_known(self) -> bool:
        """Is it known which emitted transactions a current snapshot can't see?"""
        ...

    @property
    def reached(self) -> int:
        """The position up to which all commits were read."""
        ...

    def retain(self, table: TableName) -> None:
        """Retain the keys of the table's records from now on."""
        ...

    def resolve_unseen(self, snapshot: Snapshot) -> None:
        """Search the event log for the transactions that the snapshot can't see."""
        ...

    def pause_log(self) -> BlockingDumpPause:
        """Pause the log between two transactions."""
        ...

    def append_chunk(self, item: ChunkItem) -> None:
        """Append rows that need no window: the log is paused, or their table has no key."""
        ...

    def resolve_keys(self, table: TableName, xids: Iterable[int]) -> None:
        """Read the keys that ``xids`` changed back from the event log."""
        ...


@contextmanager
def acquired(lock: threading.Lock | threading.RLock, until: float) -> Iterator[None]:
    """Hold ``lock``. Raises ChunkBusyError if it can't be acquired before ``until`` (monotonic)."""
    if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
        raise ChunkBusyError("reading a chunk: capture was busy for too long; it is read again")
    try:
        yield
    finally:
        lock.release()


class DecisionQueue:
    """The coordinator's lock, the queue of decisions made under it, and their effects.

    A decision takes the lock and only changes memory. An effect calls the source, the state store
    or the loop, reads the event log or waits: it runs without the lock, on the coordinator's
    thread, and `post`s its result to a further decision (ADR 24).

    Args:
        flush: makes the decisions' changes durable; called before their effects.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self.lock = threading.RLock()
        self._log: DumpLog | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._effects: list[tuple[float, Callable[[], None]]] = []
        self.planning = threading.Event()
        """Set when there may be something to plan."""

    def connect(self, log: DumpLog) -> None:
        self._log = log

    @property
    def loop(self) -> DumpLog:
        assert self._log is not None, "recover() comes first"
        return self._log

    def post(self, decision: Callable[[], None]) -> None:
        """Queue a decision for the coordinator's thread, which makes it under the lock."""
        self._inbox.put(decision)

    def wake(self) -> None:
        self.planning.set()
        self.post(lambda: None)

    @contextmanager
    def commanded(self) -> Iterator[None]:
        """Decide under the lock; on exit it is durable, so the command can be answered."""
        with self.lock:
            yield
        self._flush()
        self.wake()

    def run_decisions(self, wait_s: float) -> None:
        """Make the queued decisions; wait up to ``wait_s`` for the first."""
        try:
            # Only those queued by now: the loop has other work as well.
            for _ in range(max(1, self._inbox.qsize())):
                decision = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
                wait_s = 0.0
                with self.lock:
                    decision()
        except Empty:
            pass

    def effect(self, effect: Callable[[], None], delay_s: float = 0.0) -> None:
        """Queue an effect that runs after the lock, held now, was released; in the order of calls,
        except delayed ones.
        """
        self._effects.append((time.monotonic() + delay_s if delay_s else 0.0, effect))

    def run_effects(self) -> None:
        """Make decisions durable and run due effects. Call it without the lock: effects may take
        long, and the loop's thread holds its own lock while it calls the coordinator.
        """
        now = time.monotonic()
        with self.lock:
            due = [effect for at, effect in self._effects if at <= now]
            self._effects = [(at, effect) for at, effect in self._effects if at > now]
        self._flush()
        for effect in due:
            effect()
