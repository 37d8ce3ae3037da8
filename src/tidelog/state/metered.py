"""A state store whose requests are counted and timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import Document, StateStore

OPERATIONS: Final = ("get", "put", "delete", "keys")


class MeteredStateStore:
    """A state store as ``state`` is.

    A conflict, and a lease that was lost, are answers; what fails is a store that gives none.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._requests = dict.fromkeys(OPERATIONS, 0)
        self._seconds = dict.fromkeys(OPERATIONS, 0.0)
        self._failures = dict.fromkeys(OPERATIONS, 0)

    def summary(self) -> dict[str, Any]:
        """For metrics: requests, seconds that they took, and failures, each by operation."""
        with self._lock:
            return {
                "requests": dict(self._requests),
                "seconds": dict(self._seconds),
                "failures": dict(self._failures),
            }

    def get(self, key: str) -> Document | None:
        with self._measured("get"):
            return self._state.get(key)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        with self._measured("put"):
            return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        with self._measured("delete"):
            self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        with self._measured("keys"):
            return self._state.keys(prefix)

    def close(self) -> None:
        self._state.close()

    @contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        began, failed = time.monotonic(), False
        try:
            yield
        except StateError as error:
            failed = not isinstance(error, StateConflictError)
            raise
        finally:
            took_s = time.monotonic() - began
            with self._lock:
                self._requests[operation] += 1
                self._seconds[operation] += took_s
                self._failures[operation] += failed
