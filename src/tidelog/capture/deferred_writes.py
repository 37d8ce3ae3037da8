"""State-store writes that are decided under a lock and executed later without it, in order.

A caller holds the lock only while it changes memory. The store may take seconds or be down: only a
caller that needs the change durable waits for it (`DeferredWrites.flush`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tidelog.ports import StateStore


class DeferredWrites:
    """A queue of pending writes to ``state``. Thread-safe.

    Values are whole documents, so the later of two decisions on one must be written later: all
    writes run in the order they were queued, by one thread at a time.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._changes: deque[Callable[[], object]] = deque()
        self._asked = self._made = 0
        self._order = threading.Lock()
        self._flushing = threading.Lock()

    def put(self, key: str, value: Any) -> None:
        """Queue a write of ``value``, which must not change any more."""
        self.call(lambda: self._state.put(key, value, None))

    def delete(self, key: str) -> None:
        self.call(lambda: self._state.delete(key))

    def call(self, change: Callable[[], object]) -> None:
        """Queue a function: a change of several documents, or a report of earlier changes."""
        with self._order:
            self._changes.append(change)
            self._asked += 1

    def flush(self) -> None:
        """Wait until all that was queued before this call is durable. The caller must hold no lock
        under which anything is decided: this waits for the store.

        Raises:
            TidelogError: of the store. The write that failed and those after it stay queued: a
                later call starts with it.
        """
        upto = self._asked
        if self._made >= upto:
            return
        with self._flushing:
            while self._made < upto:
                self._changes[0]()
                self._changes.popleft()
                self._made += 1
