"""Waits for a state store that is away. Only the lease limits how long.

What dumps and the catalogue's watch store stands in the way of no record. If they ended the
leadership when the store does not answer, nobody could lead before it does, and the log would stand
still with them.
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
    """`tidelog.ports.StateStore` over ``state``. Each request that fails is made again `until` the
    session has ended. Before that is told, and of puts that expect a version, StateError is raised.

    Args:
        state: what is kept.
        check: `tidelog.capture.leadership.LeaseKeeper.check`; nobody waits for longer than the
            lease lasts, for reads either: a lock may be held meanwhile.
    """

    def __init__(self, state: StateStore, check: Callable[[], None]) -> None:
        self._check = check
        self.at_once = state
        """The same, for what need not wait."""
        self._ended: threading.Event | None = None

    def until(self, ended: threading.Event) -> None:
        """From now on wait for the store, until the session has ``ended``."""
        self._ended = ended

    def get(self, key: str) -> Document | None:
        return self._insist(lambda: self.at_once.get(key))

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        if expected_version is not None:  # an earlier attempt of ours would be a conflict
            return self.at_once.put(key, value, expected_version)
        return self._insist(lambda: self.at_once.put(key, value, None))

    def delete(self, key: str) -> None:
        self._insist(lambda: self.at_once.delete(key))

    def keys(self, prefix: str) -> list[str]:
        return self._insist(lambda: self.at_once.keys(prefix))

    def close(self) -> None:
        """Whoever opened the store closes it."""

    def _insist(self, ask: Callable[[], _T]) -> _T:
        told = False
        while True:
            try:
                return ask()
            except StateConflictError:
                raise
            except StateError as error:
                if self._ended is None or self._ended.wait(AGAIN_S):
                    raise
                if not told:
                    logger.info("dumps wait for the state store: %s", error)
                told = True
                self._check()
