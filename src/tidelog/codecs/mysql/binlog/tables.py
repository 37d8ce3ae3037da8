"""The tables of a scan, in the arrays that its kernel reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.types import OLD_FRACTIONS, value_lengths
from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, UInt8s


class ScannedTables:
    """The table maps of a stream, in the arrays that `scan_kernel.scan` reads."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.ids: Int64s = np.empty(0, dtype=np.int64)
        self.numbers: Int64s = np.empty(0, dtype=np.int64)
        self.tables: Int64s = np.zeros((16, kernel.TABLE_SLOTS), dtype=np.int64)
        self.walks: Int32s = np.zeros((256, 4), dtype=np.int32)
        self.steps: Int32s = np.zeros((256, 2), dtype=np.int32)
        self.maps: UInt8s = np.zeros(4096, dtype=np.uint8)
        self._used = [0, 0, 0, 0]
        self._notices = False
        self._seen: dict[int, tuple[int, TableMapSeen]] = {}

    def refresh_known(self, seen: TableMapSeen, body: bytes) -> bool:
        """Return True if the table is bound and has not changed; its new map is stored then."""
        known = self._seen.get(seen.table_id)
        if known is None or _shape(known[1]) != _shape(seen):
            return False
        row = self.tables[known[0]]
        start, end = int(row[kernel.MAP_START]), int(row[kernel.MAP_END])
        if end - start == len(body):
            self.maps[start:end] = np.frombuffer(body, dtype=np.uint8)
        else:
            row[kernel.MAP_START : kernel.MAP_END + 1] = self._append_map(body)
        return True

    def add(
        self, seen: TableMapSeen, body: bytes, old_digits: Mapping[int, int] | None = None
    ) -> None:
        """Add a table, whose rows are dropped until it is bound. ``old_digits``: see
        `BinlogScanner.bind`; None: not known yet.
        """
        walks: list[tuple[int, int]] = []
        columns = -1
        if seen.has_readable_rows:
            digits = old_digits or {}
            walks = [
                value_lengths(code, meta, digits.get(i, 0))
                for i, (code, meta) in enumerate(zip(seen.types, seen.metas, strict=True))
            ]
            columns = len(walks)
        loose = old_digits is None and any(code in OLD_FRACTIONS for code in seen.types)
        steps = []
        passed = 0
        for prefix, fixed in walks:
            if prefix:
                steps.append((passed, prefix))
                passed = 0
            else:
                passed += fixed
        self._forget(seen.table_id)
        number = self._used[0]
        self.tables = _room(self.tables, number + 1)
        self.walks = _room(self.walks, self._used[1] + len(walks))
        self.steps = _room(self.steps, self._used[2] + len(steps))
        first_walk, first_step = self._used[1], self._used[2]
        if walks:
            self.walks[first_walk : first_walk + len(walks), :2] = walks
            self.walks[first_walk : first_walk + len(walks), 2] = 0
            self.walks[first_walk : first_walk + len(walks), 3] = [
                kernel.IS_JSON if code == types.JSON else 0 for code in seen.types
            ]
        if steps:
            self.steps[first_step : first_step + len(steps)] = steps
        start, end = self._append_map(body)
        self._used[:3] = number + 1, first_walk + len(walks), first_step + len(steps)
        json_columns = seen.types.count(types.JSON)
        self.tables[number] = (
            0, columns, json_columns, first_walk, first_step, len(steps), passed, start, end,
            -1, 0, 0, loose, 0,
        )  # fmt: skip
        self._seen[seen.table_id] = number, seen
        at = int(np.searchsorted(self.ids, seen.table_id))
        self.ids = np.insert(self.ids, at, seen.table_id)
        self.numbers = np.insert(self.numbers, at, number)

    def bind(
        self,
        table_id: int,
        schema_id: int,
        old_digits: Mapping[int, int],
        left_out: Collection[int],
    ) -> None:
        """Set the schema of a table's rows. Raises KeyError for an unknown table, DecodeError if
        its rows can't be read.
        """
        number, seen = self._seen[table_id]
        if old_digits:
            start, end = self.tables[number, [kernel.MAP_START, kernel.MAP_END]].tolist()
            self.add(seen, self.maps[start:end].tobytes(), old_digits)
            number, seen = self._seen[table_id]
        if schema_id and seen.unknown is not None:
            raise DecodeError(
                f"binlog: {seen.database}.{seen.table} has a column of the type {seen.unknown}, "
                "which is not known"
            )
        if schema_id > 0 and seen.malformed is not None:
            raise DecodeError(
                f"binlog: {seen.malformed} of {seen.database}.{seen.table} is malformed"
            )
        self.tables[number, kernel.SCHEMA] = schema_id
        self.tables[number, kernel.LEFT_OUT] = len(left_out)
        first = int(self.tables[number, kernel.FIRST_COLUMN])
        for place in range(max(0, int(self.tables[number, kernel.COLUMNS]))):
            flags = int(self.walks[first + place, 3]) & ~kernel.IS_LEFT_OUT
            self.walks[first + place, 3] = flags | (kernel.IS_LEFT_OUT if place in left_out else 0)

    def notice(self, table_id: int, *, deletes: bool, columns: Collection[int]) -> None:
        """Notice deletes, and updates of these columns, by index. KeyError as `bind`."""
        row = self.tables[self._seen[table_id][0]]
        row[kernel.NOTICE] = deletes * kernel.DELETED | bool(columns) * kernel.REKEYED
        first = int(row[kernel.FIRST_COLUMN])
        for column in range(int(row[kernel.COLUMNS])):
            self.walks[first + column, 2] = column in columns
        self._notices = True

    def take_noticed(self) -> Iterator[tuple[TableMapSeen, int]]:
        """The tables with noticed changes since the last call, and the kinds of changes."""
        if not self._notices or not self.tables[:, kernel.NOTICED].any():
            return
        for number, seen in list(self._seen.values()):
            what = int(self.tables[number, kernel.NOTICED])
            self.tables[number, kernel.NOTICED] = 0
            if what:
                yield seen, what

    def changed_tables(self, group_start: int) -> tuple[tuple[str, str], ...]:
        """The (database, table) pairs of captured tables with rows in the group."""
        return tuple(
            sorted(
                {
                    (seen.database, seen.table)
                    for number, seen in self._seen.values()
                    if self.tables[number, kernel.CHANGED_BY] == group_start
                }
            )
        )

    def __len__(self) -> int:
        return len(self._seen)

    def _forget(self, table_id: int) -> None:
        if self._seen.pop(table_id, None) is not None:
            at = int(np.searchsorted(self.ids, table_id))
            self.ids = np.delete(self.ids, at)
            self.numbers = np.delete(self.numbers, at)

    def _append_map(self, body: bytes) -> tuple[int, int]:
        start = self._used[3]
        end = start + len(body)
        self.maps = _room(self.maps, end)
        self.maps[start:end] = np.frombuffer(body, dtype=np.uint8)
        self._used[3] = end
        return start, end


def _shape(seen: TableMapSeen) -> tuple[object, ...]:
    return (
        seen.database, seen.table, seen.types, seen.metas, seen.nullable, seen.metadata,
        seen.malformed, seen.has_readable_rows,
    )  # fmt: skip


def _room(array: np.ndarray, count: int) -> np.ndarray:
    """The array, or a longer copy of it."""
    if count <= len(array):
        return array
    longer = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
