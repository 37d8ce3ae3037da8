"""Documents that are asked for all at once, where one after the other would take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from tidelog.ports import Document, StateStore

FRESH_S: Final = 5.0
"""So long what came is what `get` gives, and what was listed is what `keys` gives."""
_AT_ONCE: Final = 16


class PrefetchingStateStore:
    """A state store as ``state`` is, whose documents of ``keys`` are asked for when this is made,
    and those below one of ``folders`` once they are listed; that is done then, too.

    It is for who alone changes them. Within `FRESH_S` `get` gives what came, or raises once what
    was raised, until the document is changed through this store; so do `keys` of ``folders``.
    """

    def __init__(self, state: StateStore, keys: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._state = state
        self._folders = frozenset(folders)
        self._lock = threading.Lock()
        self._until = time.monotonic() + FRESH_S
        self._ahead: dict[str, Future[Document | None]] = {}
        self._changed: set[str] = set()
        self._listed: Future[list[str]] | None = None
        self._ask(keys, lists=bool(self._folders))

    def get(self, key: str) -> Document | None:
        with self._lock:
            ahead = self._ahead.get(key)
        if ahead is None or time.monotonic() >= self._until:
            return self._state.get(key)
        if ahead.exception() is not None:
            self._taken(key)
        return ahead.result()

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self._settle(key)
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        with self._lock:
            ahead = self._ahead.get(key)
        fresh = ahead is not None and time.monotonic() < self._until
        if ahead is not None and fresh and ahead.exception() is None and ahead.result() is None:
            return
        self._settle(key)
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        found = self._known(prefix)
        if found is None:
            found = self._state.keys(prefix)
        if prefix in self._folders and time.monotonic() < self._until:
            with self._lock:
                new = [key for key in found if key not in self._ahead.keys() | self._changed]
            self._ask(new)
        return found

    def close(self) -> None:
        self._state.close()

    def _known(self, prefix: str) -> list[str] | None:
        """What was listed below one of the folders; None: it has to be listed."""
        with self._lock:
            listed = self._listed
            changed = any(key.startswith(prefix) for key in self._changed)
        if listed is None or changed or prefix not in self._folders:
            return None
        if time.monotonic() >= self._until or listed.exception() is not None:
            return None
        return [key for key in listed.result() if key.startswith(prefix)]

    def _ask(self, keys: Iterable[str], *, lists: bool = False) -> None:
        pool = ThreadPoolExecutor(_AT_ONCE, "tidelog-read-ahead")
        with self._lock:
            if lists:
                self._listed = pool.submit(self._state.keys, "")
            for key in keys:
                self._ahead[key] = pool.submit(self._state.get, key)
        pool.shutdown(wait=False)

    def _taken(self, key: str) -> Future[Document | None] | None:
        with self._lock:
            return self._ahead.pop(key, None)

    def _settle(self, key: str) -> None:
        """Before it is changed: what a leader's first `get` marks as its own must not follow."""
        ahead = self._taken(key)
        with self._lock:
            self._changed.add(key)
        if ahead is not None:
            ahead.exception()
