"""Opens state stores and elections by the scheme of ``state.url``, and wraps stores: prefetching,
metered, read-only, cached.

Another store is an object with the methods of `tidelog.ports.StateBackend`, registered as an entry
point of the group ``tidelog.state`` under the URL's scheme.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.kinds.adapters import STATES
from tidelog.kinds.sections import StateUrl
from tidelog.ports import Document, Election, FencedStore, PaidBackend, StateBackend, StateStore


def checked_url(url: str, base: Path) -> str:
    """Return the URL with relative paths below ``base``. Raises ValueError or ConfigError."""
    scheme = _scheme(url)
    if scheme not in STATES.names:
        raise ValueError(
            "expected sqlite:///path/to/state.db, or a URL of "
            f"{', '.join(name for name in STATES.names if name != 'sqlite')}"
        )
    return STATES.get(scheme).normalize_url(url, base)


def state_path(url: str | StateUrl) -> Path | None:
    """Return the file or directory of the store on this host; None: it is elsewhere."""
    return _backend(url).path(_text(url))


def state_exists(url: str | StateUrl) -> bool:
    """Return whether the store exists; creates none."""
    return _backend(url).exists(_text(url))


def open_state(url: str | StateUrl) -> StateStore:
    """Open the store; the caller closes it."""
    return _backend(url).store(_text(url))


def fenced(state: StateStore, name: str, epoch: int) -> StateStore:
    """Return a handle for the leader ``name`` of this epoch. If the store can
    (`tidelog.ports.FencedStore`), it refuses changes by an earlier leader.
    """
    return state.fenced(name, epoch) if isinstance(state, FencedStore) else state


def poll_interval_s(url: str | StateUrl) -> float:
    """Return the seconds between two polls for commands; 0: there is no limit. The leader also
    publishes its status no more often.
    """
    backend = _backend(url)
    return backend.poll_interval_s if isinstance(backend, PaidBackend) else 0.0


def pays_per_request(url: str | StateUrl) -> bool:
    """Return whether each request costs money."""
    return poll_interval_s(url) > 0


def open_election(
    url: str | StateUrl, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
) -> Election:
    """Open an election of ``name`` among the processes that share the store; the caller closes it.

    Args:
        url: the URL of the store.
        name: the name of the lease.
        holder: this process, for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal.
        first_epoch: the smallest epoch to use.
    """
    return _backend(url).election(_text(url), name, holder, ttl_s, first_epoch=first_epoch)


def _backend(url: str | StateUrl) -> StateBackend:
    return STATES.get(_scheme(_text(url)))


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _text(url: str | StateUrl) -> str:
    return url.reveal() if isinstance(url, StateUrl) else url


FRESH_S: Final = 5.0
"""How long `get` and `keys` return what was prefetched."""
_AT_ONCE: Final = 16


class PrefetchingStateStore:
    """Prefetches documents of ``state`` for a leader that starts.

    The documents of ``keys`` are requested at once; so is the list of keys, and the documents below
    one of ``folders`` when `keys` lists it. Only for the one process that changes them: for
    `FRESH_S`, `get` returns what was read, or raises its error once, until the document is changed
    through this store; likewise `keys` of ``folders``.
    """

    def __init__(self, state: StateStore, keys: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._state = state
        self._folders = frozenset(folders)
        self._lock = threading.Lock()
        self._expires_at = time.monotonic() + FRESH_S
        self._prefetched: dict[str, Future[Document | None]] = {}
        self._changed: set[str] = set()
        self._prefetched_keys: Future[list[str]] | None = None
        self._prefetch(keys, lists=bool(self._folders))

    def get(self, key: str) -> Document | None:
        with self._lock:
            prefetch = self._prefetched.get(key)
        if prefetch is None or time.monotonic() >= self._expires_at:
            return self._state.get(key)
        if prefetch.exception() is not None:
            self._take(key)
        return prefetch.result()

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self._discard(key)
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        with self._lock:
            prefetch = self._prefetched.get(key)
        fresh = prefetch is not None and time.monotonic() < self._expires_at
        if (
            prefetch is not None
            and fresh
            and prefetch.exception() is None
            and prefetch.result() is None
        ):
            return
        self._discard(key)
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        keys = self._known(prefix)
        if keys is None:
            keys = self._state.keys(prefix)
        if prefix in self._folders and time.monotonic() < self._expires_at:
            with self._lock:
                new = [key for key in keys if key not in self._prefetched.keys() | self._changed]
            self._prefetch(new)
        return keys

    def close(self) -> None:
        self._state.close()

    def _known(self, prefix: str) -> list[str] | None:
        """Return the prefetched keys of one of the folders; None: the store must list them."""
        with self._lock:
            listed = self._prefetched_keys
            changed = any(key.startswith(prefix) for key in self._changed)
        if listed is None or changed or prefix not in self._folders:
            return None
        if time.monotonic() >= self._expires_at or listed.exception() is not None:
            return None
        return [key for key in listed.result() if key.startswith(prefix)]

    def _prefetch(self, keys: Iterable[str], *, lists: bool = False) -> None:
        pool = ThreadPoolExecutor(_AT_ONCE, "tidelog-prefetch")
        with self._lock:
            if lists:
                self._prefetched_keys = pool.submit(self._state.keys, "")
            for key in keys:
                self._prefetched[key] = pool.submit(self._state.get, key)
        pool.shutdown(wait=False)

    def _take(self, key: str) -> Future[Document | None] | None:
        with self._lock:
            return self._prefetched.pop(key, None)

    def _discard(self, key: str) -> None:
        """Wait for the prefetch before a change: a leader's first `get` writes its epoch."""
        prefetch = self._take(key)
        with self._lock:
            self._changed.add(key)
        if prefetch is not None:
            prefetch.exception()


OPERATIONS: Final = ("get", "put", "delete", "keys")


class MeteredStateStore:
    """Counts and times the requests to ``state``. A conflict and a lost lease are answers; only a
    store that gives none is a failure.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._requests = dict.fromkeys(OPERATIONS, 0)
        self._seconds = dict.fromkeys(OPERATIONS, 0.0)
        self._failures = dict.fromkeys(OPERATIONS, 0)

    def summary(self) -> dict[str, Any]:
        """Return metrics: requests, seconds and failures, each by operation."""
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
    """The store at ``url``; empty while it does not exist, which each call checks. Only a change
    creates it. Thread-safe.
    """

    def __init__(self, url: str | StateUrl) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._store: StateStore | None = None

    @property
    def exists(self) -> bool:
        """Whether it exists, if known without a request that costs money. Raises StateError."""
        return self._open_if_exists() is not None

    def get(self, key: str) -> Document | None:
        store = self._open_if_exists()
        return None if store is None else store.get(key)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        return self._open_or_create().put(key, value, expected_version)

    def delete(self, key: str) -> None:
        store = self._open_if_exists()
        if store is not None:
            store.delete(key)

    def keys(self, prefix: str) -> list[str]:
        store = self._open_if_exists()
        return [] if store is None else store.keys(prefix)

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()

    def _open_if_exists(self) -> StateStore | None:
        with self._lock:
            # Where each request costs money, a store is nothing but its objects: opening it creates
            # nothing, and checking whether it exists is one more request.
            if self._store is None and (pays_per_request(self._url) or state_exists(self._url)):
                self._store = open_state(self._url)
            return self._store

    def _open_or_create(self) -> StateStore:
        with self._lock:
            if self._store is None:
                self._store = open_state(self._url)
            return self._store


class StateReadCache:
    """A read cache over ``state``: lists keys once and reads each document at most once. Changes go
    to ``state`` and not into the cache.
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
        """Do nothing: the caller who opened the store closes it."""
