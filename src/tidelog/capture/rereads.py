"""Which keys are to be read again; stored, so that they are read after a crash as well."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import islice

from tidelog.capture.dump_state import Key
from tidelog.model.schema import TableSchema
from tidelog.ports import KeyExtractor, StateStore

REREAD_KEY = "dump-reread"
REREAD = "reread"  # what chunks of keys that are read again name as their dump
AGAIN_S = 10.0
"""After so long one of the keys that could not be read is tried again."""


@dataclass(frozen=True, slots=True)
class Reread:
    """A table whose keys, of these columns, are to be read again."""

    table: str
    columns: tuple[str, ...]


@dataclass(slots=True)
class Aside:
    """Keys that could not be read, each one alone; the one tried longest ago comes first."""

    keys: dict[Key, None] = field(default_factory=dict)
    again_at: float = 0.0


class Rereads:
    """The keys to be read again, with the numbers of each one's requests.

    A key that can't be read stays, put aside, so that it holds up no other.

    Thread-safe by a lock of its own, under which no other is taken: the engine's thread adds keys
    without waiting for the coordinator.
    """

    def __init__(self, keys: KeyExtractor, state: StateStore) -> None:
        self._keys = keys
        self._state = state
        self._lock = threading.Lock()
        # key → numbers of the oldest request that no read has answered, and of the newest
        self._wanted: dict[Reread, dict[Key, tuple[int, int]]] = {}
        self._aside: dict[Reread, Aside] = {}
        self._number = 0

    def load(self) -> None:
        stored = self._state.get(REREAD_KEY)
        if stored is None:
            return
        with self._lock:
            self._wanted = {
                Reread(entry["table"], tuple(entry["columns"])): {
                    tuple(key): (0, 0) for key in entry["keys"]
                }
                for entry in stored.value
            }

    def add(self, schema: TableSchema, keys: list[bytes]) -> None:
        """Ask for these match keys; stored when this returns."""
        with self._lock:
            spot = Reread(str(schema.table), schema.match_key)
            wanted = self._wanted.setdefault(spot, {})
            before = len(wanted)
            self._number += 1
            for encoded in keys:
                key = self._keys.texts(encoded, schema)
                oldest, _ = wanted.get(key, (self._number, 0))
                wanted[key] = (oldest, self._number)
            if len(wanted) != before:
                self._store()

    def waiting(self, limit: int, now: float) -> tuple[int, dict[Reread, list[Key]]]:
        """The newest request's number, and up to ``limit`` keys of each table; one that was put
        aside comes alone.
        """
        with self._lock:
            waiting: dict[Reread, list[Key]] = {}
            for spot, keys in self._wanted.items():
                aside = self._aside.get(spot, Aside())
                if aside.keys and now >= aside.again_at:
                    waiting[spot] = [next(iter(aside.keys))]
                else:
                    waiting[spot] = list(islice((k for k in keys if k not in aside.keys), limit))
            return self._number, waiting

    @property
    def number(self) -> int:
        """Of the newest request."""
        with self._lock:
            return self._number

    @property
    def wanted(self) -> bool:
        """Does a key wait?"""
        with self._lock:
            return bool(self._wanted)

    def any_of(self, table: str, upto: int | None = None) -> bool:
        """Is a request of the table, of those up to the number ``upto``, not answered yet? Those
        that can't be are `unread`.
        """
        with self._lock:
            return any(
                upto is None or oldest <= upto
                for spot, keys in self._wanted.items()
                if spot.table == table
                for key, (oldest, _) in keys.items()
                if spot not in self._aside or key not in self._aside[spot].keys
            )

    def unread(self, table: str, since: int) -> int:
        """How many keys of the table that were asked for after the request ``since`` can't be
        read.
        """
        with self._lock:
            return sum(
                self._wanted[spot][key][1] > since
                for spot, aside in self._aside.items()
                if spot.table == table
                for key in aside.keys
            )

    def put_aside(self, spot: Reread, key: Key) -> None:
        """The key could not be read: the others come first."""
        with self._lock:
            if key in self._wanted.get(spot, {}):
                aside = self._aside.setdefault(spot, Aside())
                aside.keys.pop(key, None)
                aside.keys[key] = None
                aside.again_at = time.monotonic() + AGAIN_S

    def done(self, spot: Reread, keys: list[Key], number: int) -> None:
        """These keys were read after the request ``number``, and before any later one."""
        with self._lock:
            wanted = self._wanted.get(spot, {})
            if spot in self._aside and any(key in self._aside[spot].keys for key in keys):
                del self._aside[spot]  # what was in the way may be gone for the others, too
            for key in keys:
                # One that was asked for again since may have changed behind what was read.
                _, newest = wanted.get(key, (0, 0))
                if newest <= number:
                    wanted.pop(key, None)
                else:
                    wanted[key] = (number + 1, newest)
            if not wanted:
                self._wanted.pop(spot, None)
            self._store()

    def dumped(self, table: str, since: int) -> None:
        """All rows of the table were read after the request ``since``: of the keys that can't be
        read, those asked for by then are not missing any more.
        """
        with self._lock:
            for spot in [spot for spot in self._aside if spot.table == table]:
                wanted, aside = self._wanted[spot], self._aside[spot]
                for key in [key for key in aside.keys if wanted[key][1] <= since]:
                    del wanted[key], aside.keys[key]
                if not aside.keys:
                    del self._aside[spot]
                if not wanted:
                    del self._wanted[spot]
                self._store()

    def _store(self) -> None:
        value = [
            {"table": spot.table, "columns": spot.columns, "keys": [list(key) for key in keys]}
            for spot, keys in self._wanted.items()
        ]
        self._state.put(REREAD_KEY, value, None)
