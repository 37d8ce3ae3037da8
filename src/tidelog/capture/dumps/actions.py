"""How the dumps' thread, the engine's and those that command it leave each other work.

The engine's thread holds its own lock while it calls the coordinator. So it only posts actions, and
the coordinator calls the engine only once it has let its own lock go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tidelog.capture.buffer import ChunkItem
from tidelog.capture.log_pause import LogPause
from tidelog.capture.windows.windows import Window
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRows


class DumpLog(Protocol):
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


class Actions:
    """The coordinator's lock, what is left to do under it, and what to tell the engine after."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._log: DumpLog | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._calls: list[Callable[[], None]] = []
        self.planning = threading.Event()
        """Set when there may be something to plan."""

    def connect(self, log: DumpLog) -> None:
        self._log = log

    @property
    def engine(self) -> DumpLog:
        assert self._log is not None, "recover() comes first"
        return self._log

    def post(self, action: Callable[[], None]) -> None:
        """Have it done by the coordinator's thread, under the lock; from any thread."""
        self._inbox.put(action)

    def wake(self) -> None:
        self.planning.set()
        self.post(lambda: None)

    def take(self, wait_s: float) -> None:
        """Do what the other threads left to do; wait for the first of it."""
        try:
            # No more than is there now: an action may put itself back, to be tried again.
            for _ in range(max(1, self._inbox.qsize())):
                action = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
                wait_s = 0.0
                with self.lock:
                    action()
        except Empty:
            pass

    def call_later(self, call: Callable[[], None]) -> None:
        """Call the engine once the lock, which is held, was let go."""
        self._calls.append(call)

    def tell_engine(self) -> None:
        """Call the engine for what was decided under our lock, which must not be held now: the
        engine's thread holds its own lock while it calls us.
        """
        with self.lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()
