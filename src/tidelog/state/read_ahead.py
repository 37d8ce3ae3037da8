"""Documents that are asked for all at once, where one after the other would take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from tidelog.ports import Document, StateStore

FRESH_S: Final = 5.0
"""So long what came is what the next `get` gives."""
_AT_ONCE: Final = 16


class ReadAhead:
    """A state store as ``state`` is, whose documents of ``keys`` are asked for when this is made,
    and those below one of ``folders`` once they are listed.

    The first `get` of each, within `FRESH_S`, gives what came, or raises what was raised. After it,
    or after a change of the document through this store, the store is asked again.
    """

    def __init__(self, state: StateStore, keys: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._state = state
        self._folders = frozenset(folders)
        self._lock = threading.Lock()
        self._until = time.monotonic() + FRESH_S
        self._ahead: dict[str, Future[Document | None]] = {}
        self._ask(keys)

    def get(self, key: str) -> Document | None:
        ahead = self._taken(key)
        if ahead is None or time.monotonic() >= self._until:
            return self._state.get(key)
        return ahead.result()

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self._settle(key)
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        self._settle(key)
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        found = self._state.keys(prefix)
        if prefix in self._folders and time.monotonic() < self._until:
            self._ask(found)
        return found

    def close(self) -> None:
        self._state.close()

    def _ask(self, keys: Iterable[str]) -> None:
        pool = ThreadPoolExecutor(_AT_ONCE, "tidelog-read-ahead")
        with self._lock:
            for key in keys:
                self._ahead[key] = pool.submit(self._state.get, key)
        pool.shutdown(wait=False)

    def _taken(self, key: str) -> Future[Document | None] | None:
        with self._lock:
            return self._ahead.pop(key, None)

    def _settle(self, key: str) -> None:
        """Before it is changed: what a leader's first `get` marks as its own must not follow."""
        ahead = self._taken(key)
        if ahead is not None:
            ahead.exception()
