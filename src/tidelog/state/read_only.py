"""A state store for who only looks: none is made for it."""

from __future__ import annotations

import threading
from typing import Any

from tidelog.kinds.sections import StateUrl
from tidelog.ports import Document, StateStore
from tidelog.state.opening import open_state, sparing, state_exists


class ReadOnlyStateStore:
    """The store at ``url``; empty while it does not exist, which is looked at again each time. Only
    who changes something makes it. Thread-safe.
    """

    def __init__(self, url: str | StateUrl) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._store: StateStore | None = None

    @property
    def exists(self) -> bool:
        """So far as that is known without a request that is paid for. Raises StateError."""
        return self._found() is not None

    def get(self, key: str) -> Document | None:
        store = self._found()
        return None if store is None else store.get(key)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        return self._made().put(key, value, expected_version)

    def delete(self, key: str) -> None:
        store = self._found()
        if store is not None:
            store.delete(key)

    def keys(self, prefix: str) -> list[str]:
        store = self._found()
        return [] if store is None else store.keys(prefix)

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()

    def _found(self) -> StateStore | None:
        with self._lock:
            # Where each request is paid for a store is no more than its objects: to open it makes
            # nothing, and to ask whether it exists is one request more.
            if self._store is None and (sparing(self._url) or state_exists(self._url)):
                self._store = open_state(self._url)
            return self._store

    def _made(self) -> StateStore:
        with self._lock:
            if self._store is None:
                self._store = open_state(self._url)
            return self._store
