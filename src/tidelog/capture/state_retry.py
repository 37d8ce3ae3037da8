"""Retries state-store calls until they succeed or the lease expires.

Documents of dumps and of the catalogue watch do not delay the log. If an unavailable store ended
the leadership, no other process could lead until it is back, and the log would not be read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import Document, StateStore

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
AGAIN_S: Final = 0.5


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
                if self._ended is None or self._ended.wait(AGAIN_S):
                    raise
                if not logged:
                    logger.info("dumps wait for the state store: %s", error)
                logged = True
                self._check()
