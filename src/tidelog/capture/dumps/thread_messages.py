"""How the dumps' thread, the engine's and those that command it leave each other work.

The engine's thread holds its own lock while it calls the coordinator. So it only posts decisions,
and the coordinator calls the engine only once it has let its own lock go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tidelog.capture.buffer import ChunkItem
from tidelog.capture.limits.log_pause import LogPause
from tidelog.capture.windows.windows import Window
from tidelog.errors import ChunkBusyError
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRows


class DumpLog(Protocol):
    """What the coordinator needs of the engine; all of it thread-safe."""

    def register(self, window: Window) -> None: ...
    def deliver(self, window: Window, rows: ChunkRows, until: float) -> None:
        """Raises ChunkBusyError if the log's thread is busy beyond ``until`` (monotonic)."""
        ...

    def discard(self, window: Window) -> None: ...
    def forget_table(self, table: TableName) -> None: ...
    def append_control(self, value: dict[str, Any], done: Callable[[int], None]) -> None:
        """Append behind all that was emitted."""
        ...

    def first_unseen(self, snapshot: Snapshot, table: TableName) -> int | None:
        """The lowest offset of a durable record of ``table`` that the snapshot can't see."""
        ...

    @property
    def decided(self) -> bool:
        """Is it known which emitted transactions a snapshot of now can't see?"""
        ...

    @property
    def reached(self) -> int:
        """All that was committed before this position has come."""
        ...

    def retain(self, table: TableName) -> None:
        """Hold the keys of the table's records from now on."""
        ...

    def resolve_unseen(self, snapshot: Snapshot) -> None:
        """Look the snapshot's unseen transactions up in the event log."""
        ...

    def pause_log(self) -> LogPause:
        """Pause the log between two transactions."""
        ...

    def append_chunk(self, item: ChunkItem) -> None:
        """Append rows that need no window, because the log is paused."""
        ...

    def resolve_keys(self, table: TableName, xids: Iterable[int]) -> None:
        """Read the keys that ``xids`` changed back from the event log."""
        ...


@contextmanager
def acquired(lock: threading.Lock | threading.RLock, until: float) -> Iterator[None]:
    """Hold ``lock``. Raises ChunkBusyError if it can't be had before ``until`` (monotonic)."""
    if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
        raise ChunkBusyError("reading a chunk: capture was busy for too long; it is read again")
    try:
        yield
    finally:
        lock.release()


class Actions:
    """The coordinator's lock, decisions that are left to be made under it, and their effects.

    A decision takes the lock and only changes what is in memory. What asks the source or the state
    store, reads the event log, waits or calls the engine is an effect: it runs once the lock was
    let go, on the coordinator's thread, and `post`s what it found to a further decision (ADR 24).

    Args:
        flush: makes durable what decisions changed; called before their effects.
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
    def engine(self) -> DumpLog:
        assert self._log is not None, "recover() comes first"
        return self._log

    def post(self, decision: Callable[[], None]) -> None:
        """Have it made by the coordinator's thread, under the lock; from any thread."""
        self._inbox.put(decision)

    def wake(self) -> None:
        self.planning.set()
        self.post(lambda: None)

    @contextmanager
    def commanded(self) -> Iterator[None]:
        """Decide under the lock. It is durable before whoever commanded it is answered."""
        with self.lock:
            yield
        self._flush()
        self.wake()

    def take(self, wait_s: float) -> None:
        """Decide what the other threads left to decide; wait for the first of it."""
        try:
            # No more than is there now: the turn has other work as well.
            for _ in range(max(1, self._inbox.qsize())):
                decision = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
                wait_s = 0.0
                with self.lock:
                    decision()
        except Empty:
            pass

    def effect(self, effect: Callable[[], None], delay_s: float = 0.0) -> None:
        """Have it done once the lock, which is held, was let go; in the order of these calls, but
        for those that are due later.
        """
        self._effects.append((time.monotonic() + delay_s if delay_s else 0.0, effect))

    def run_effects(self) -> None:
        """Make durable what was decided, and do it, if it is due. Our lock must not be held now:
        effects may take long, and the engine's thread holds its own lock while it calls us.
        """
        now = time.monotonic()
        with self.lock:
            due = [effect for at, effect in self._effects if at <= now]
            self._effects = [(at, effect) for at, effect in self._effects if at > now]
        self._flush()
        for effect in due:
            effect()
