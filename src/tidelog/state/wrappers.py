"""State stores over another one: cached, read-only, metered, prefetching."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.kinds.sections import StateUrl
from tidelog.ports import Document, StateStore
from tidelog.state.opening import open_state, sparing, state_exists

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


class StateReadCache:
    """A state store as ``state`` is when this is made: it is listed once, each document is read
    once, and none that the list lacks. What is changed through this goes to ``state`` alone.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._names = state.keys("")
        self._known = frozenset(self._names)
        self._read: dict[str, Document | None] = {}

    def get(self, key: str) -> Document | None:
        if key not in self._known:
            return None
        if key not in self._read:
            self._read[key] = self._state.get(key)
        return self._read[key]

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        return [name for name in self._names if name.startswith(prefix)]

    def close(self) -> None:
        """Whoever opened the store closes it."""
