"""A source whose state is known, row by row, from what was written to it."""

from __future__ import annotations

import random

from tests.support.build_log import BuiltLog

Rows = dict[int, str]
KEYS = 60


class Source:
    """One table ``public.t`` (id, v) in an event log. Every value that it writes is greater than
    all before, so a copy that goes back in time is seen by the value.
    """

    def __init__(self, built: BuiltLog) -> None:
        self.built = built
        self.rows: Rows = {}
        self.changes: list[tuple[str, int, str | None]] = []
        """As format ``flat`` has them."""
        self._rng = random.Random(30)
        self._last = 0
        self._columns = {"id": "int64", "v": "text"}
        self._table = built.table("public.t", self._columns)

    def write(self, count: int, keys: int = KEYS) -> None:
        """So many random changes."""
        for _ in range(count):
            key = self._rng.randrange(keys)
            if key in self.rows and self._rng.random() < 0.2:
                self.built.delete(self._table, str(key))
                del self.rows[key]
                self.changes.append(("d", key, None))
            else:
                self._put(key)
        self.built.flush()

    def insert(self, count: int) -> None:
        """So many keys more."""
        first = max([KEYS, *self.rows]) + 1
        for key in range(first, first + count):
            self._put(key)
        self.built.flush()

    def _put(self, key: int) -> None:
        self._last += 1
        values = [
            str(key) if name == "id" else str(self._last) if name == "v" else None
            for name in self._columns
        ]
        known = key in self.rows
        (self.built.update if known else self.built.insert)(self._table, *values)
        self.rows[key] = str(self._last)
        self.changes.append(("u" if known else "c", key, self.rows[key]))

    def alter(self, **columns: str) -> None:
        """The table's columns beside ``id`` from now on, name → type."""
        self._columns = {"id": "int64", **columns}
        self._table = self.built.table("public.t", self._columns)

    def grow_beyond(self, number: int) -> None:
        """Of the values."""
        self._last = number

    def dump(self) -> None:
        """All of the table, as it is."""
        first = self.built.dump_started("public.t").first
        self.built.chunk(self._table, [(str(key), value) for key, value in self.rows.items()])
        self.built.dump_completed("public.t", first)
        self.changes += [("r", key, value) for key, value in self.rows.items()]
