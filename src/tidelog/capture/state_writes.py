"""Writes of a leader to the state store.

A leader changes the store through `LeasedState`, and waits for it by `RetryingStateStore`. What is
decided under a lock is written after it, in order, by `DeferredWrites`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import Document, StateStore

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

STATE_RETRY_S: Final = 0.5


class LeasedState:
    """A state store that only the holder of a lease changes: a process that was frozen and wakes up
    late must not overwrite the current leader's state. The store itself rejects a write that was
    checked in time and arrives late, if it can (`tidelog.ports.FencedStore`).

    Args:
        state: the store; all may read it.
        check: `LeaseKeeper.check`.
    """

    def __init__(self, state: StateStore, check: Callable[[], None]) -> None:
        self._state = state
        self._check = check

    def get(self, key: str) -> Document | None:
        return self._state.get(key)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self._check()
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        self._check()
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        return self._state.keys(prefix)

    def close(self) -> None:
        """Does nothing: the store's opener closes it."""


class RetryingStateStore:
    """A `tidelog.ports.StateStore` that retries failed requests until the session ends. Before
    `retry_until` was called, and for puts that expect a version, it raises StateError at once.

    Args:
        state: the store.
        check: `tidelog.capture.leadership.LeaseKeeper.check`; no call lasts longer than the lease,
            reads included: the caller may hold a lock.
    """

    def __init__(self, state: StateStore, check: Callable[[], None]) -> None:
        self._check = check
        self.at_once = state
        """The same store, without retries."""
        self._ended: threading.Event | None = None

    def retry_until(self, ended: threading.Event) -> None:
        """From now on retry failed requests, until ``ended`` is set."""
        self._ended = ended

    def get(self, key: str) -> Document | None:
        return self._retry(lambda: self.at_once.get(key))

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        if expected_version is not None:  # an earlier attempt may have succeeded: a conflict
            return self.at_once.put(key, value, expected_version)
        return self._retry(lambda: self.at_once.put(key, value, None))

    def delete(self, key: str) -> None:
        self._retry(lambda: self.at_once.delete(key))

    def keys(self, prefix: str) -> list[str]:
        return self._retry(lambda: self.at_once.keys(prefix))

    def close(self) -> None:
        """Does nothing: the store's opener closes it."""

    def _retry(self, ask: Callable[[], _T]) -> _T:
        logged = False
        while True:
            try:
                return ask()
            except StateConflictError:
                raise
            except StateError as error:
                if self._ended is None or self._ended.wait(STATE_RETRY_S):
                    raise
                if not logged:
                    logger.info("dumps wait for the state store: %s", error)
                logged = True
                self._check()


class DeferredWrites:
    """A queue of pending writes to ``state``. Thread-safe.

    Values are whole documents, so the later of two decisions on one must be written later: all
    writes run in the order they were queued, by one thread at a time.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._changes: deque[tuple[str | None, Callable[[], object]]] = deque()
        self._asked = self._made = 0
        self._order = threading.Lock()
        self._flushing = threading.Lock()

    def put(self, key: str, value: Any) -> None:
        """Queue a write of ``value``, which must not change any more. It replaces a queued write of
        the same key that is last and has not begun.
        """
        self._queue(key, lambda: self._state.put(key, value, None))

    def delete(self, key: str) -> None:
        self.call(lambda: self._state.delete(key))

    def call(self, change: Callable[[], object]) -> None:
        """Queue a function: a change of several documents, or a report of earlier changes."""
        self._queue(None, change)

    def _queue(self, key: str | None, change: Callable[[], object]) -> None:
        with self._order:
            if key is not None and self._changes and self._changes[-1][0] == key:
                self._changes[-1] = (key, change)
            else:
                self._changes.append((key, change))
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
                with self._order:
                    _, change = self._changes[0]
                    self._changes[0] = (None, change)  # begun: nothing replaces it
                change()
                with self._order:
                    self._changes.popleft()
                self._made += 1
