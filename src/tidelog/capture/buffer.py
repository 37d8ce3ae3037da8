"""The output buffer of the DBLog paper: a queue from the log reader to the writer.

It is bounded in bytes: a slow disk slows the reader (back-pressure). Nothing is ever dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidelog.model.records import ChunkMeta, LogBatch, Resume

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
        """Append an item; while there is no room, call ``while_full`` every 100 ms.

        Raises the writer's error if it failed.
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
        """Remove and return the next item and when it was put (monotonic seconds); None after
        ``timeout_s``.
        """
        with self._changed:
            if not self._items:
                self._changed.wait(timeout_s)
            if not self._items:
                return None
            return self._items.popleft()

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
