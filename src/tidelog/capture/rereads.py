"""Which keys are to be read again; stored, so that they are read after a crash as well."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tidelog.capture.dump_state import Key
from tidelog.model.schema import TableSchema
from tidelog.ports import KeyExtractor, StateStore

REREAD_KEY = "dump-reread"
REREAD = "reread"  # what chunks of keys that are read again name as their dump


@dataclass(frozen=True, slots=True)
class Reread:
    """A table whose keys, of these columns, are to be read again."""

    table: str
    columns: tuple[str, ...]


class Rereads:
    """The keys to be read again, with the numbers of each one's requests.

    Thread-safe by a lock of its own, under which no other is taken: the engine's thread adds keys
    without waiting for the coordinator.
    """

    def __init__(self, keys: KeyExtractor, state: StateStore) -> None:
        self._keys = keys
        self._state = state
        self._lock = threading.Lock()
        # key → numbers of the oldest request that no read has answered, and of the newest
        self._wanted: dict[Reread, dict[Key, tuple[int, int]]] = {}
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

    def waiting(self, limit: int) -> tuple[int, dict[Reread, list[Key]]]:
        """The newest request's number, and up to ``limit`` keys of each table."""
        with self._lock:
            waiting = {spot: list(keys)[:limit] for spot, keys in self._wanted.items()}
            return self._number, waiting

    @property
    def number(self) -> int:
        """Of the newest request."""
        with self._lock:
            return self._number

    def any_of(self, table: str, upto: int | None = None) -> bool:
        """Is a request of the table, of those up to the number ``upto``, not answered yet?"""
        with self._lock:
            return any(
                upto is None or oldest <= upto
                for spot, keys in self._wanted.items()
                if spot.table == table
                for oldest, _ in keys.values()
            )

    def done(self, spot: Reread, keys: list[Key], number: int) -> None:
        """These keys were read after the request ``number``, and before any later one."""
        with self._lock:
            wanted = self._wanted.get(spot, {})
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

    def _store(self) -> None:
        value = [
            {"table": spot.table, "columns": spot.columns, "keys": [list(key) for key in keys]}
            for spot, keys in self._wanted.items()
        ]
        self._state.put(REREAD_KEY, value, None)
