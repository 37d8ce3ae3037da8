"""Changes of the state store that are decided under a lock and made without it, in their order.

Whoever decides holds the lock for as long as it takes to change what is in memory. The store may
take seconds, or be away: only who needs the change durable waits for it (`DeferredWrites.flush`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tidelog.ports import StateStore


class DeferredWrites:
    """Changes of ``state`` that are still to be made. Thread-safe.

    What is stored are whole documents: of two decisions on one of them the later must be written
    later, so all changes are made in the order they were asked for, by one thread at a time.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._changes: deque[Callable[[], object]] = deque()
        self._asked = self._made = 0
        self._order = threading.Lock()
        self._flushing = threading.Lock()

    def put(self, key: str, value: Any) -> None:
        """Store ``value``, which nobody changes any more."""
        self.call(lambda: self._state.put(key, value, None))

    def delete(self, key: str) -> None:
        self.call(lambda: self._state.delete(key))

    def call(self, change: Callable[[], object]) -> None:
        """Make a change that is more than one document's, or tell what was changed before."""
        with self._order:
            self._changes.append(change)
            self._asked += 1

    def flush(self) -> None:
        """All that was asked for before this call is durable when it returns. No lock under which
        anything is decided may be held: the store is waited for.

        Raises:
            TidelogError: of the store. The change that failed, and those behind it, are not made:
                a later call begins with it.
        """
        upto = self._asked
        if self._made >= upto:
            return
        with self._flushing:
            while self._made < upto:
                self._changes[0]()
                self._changes.popleft()
                self._made += 1
