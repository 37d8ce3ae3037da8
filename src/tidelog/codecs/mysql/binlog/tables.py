"""Table maps of a binlog: their parser, and the tables that a scan has seen, for its kernel.

Format: MySQL source documentation, ``Table_map_event``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tidelog.codecs.mysql import types as column_types
from tidelog.codecs.mysql.binlog import scan_kernel as kernel
from tidelog.codecs.mysql.binlog.events import Fields
from tidelog.codecs.mysql.binlog.items import TableMapSeen, TableMetadata
from tidelog.codecs.mysql.binlog.layout import KNOWN_TYPES, OLD_FRACTIONS, walk
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, Int64s, UInt8s

MAX_COLUMNS = 4096

_BIT, _NEWDECIMAL, _ENUM, _SET, _STRING, _JSON, _GEOMETRY = 16, 246, 247, 248, 254, 245, 255
_METAS = {4: 1, 5: 1, 17: 1, 18: 1, 19: 1, 252: 1, 245: 1, 255: 1, 242: 1, 140: 1}
_METAS |= {15: 2, 253: 2, 141: 2, _BIT: 2, _NEWDECIMAL: 2, _STRING: 2, _ENUM: 2, _SET: 2}
_BIG_ENDIAN = frozenset({_STRING, _NEWDECIMAL, _ENUM, _SET})


def parse_table_map(body: bytes, position: int, flavor: Flavor) -> TableMapSeen:
    """A Table_map_event's body."""
    fields = Fields(body)
    table_id = fields.integer(6)
    fields.take(2)
    database = _name(fields)
    table = _name(fields)
    columns = fields.packed()
    if columns > MAX_COLUMNS:
        raise ValueError("columns")
    types = fields.take(columns)
    packed = Fields(fields.take(fields.packed()))
    nullable = fields.take((columns + 7) // 8)
    unknown = next((code for code in types if code not in KNOWN_TYPES), None)
    if unknown is not None:  # so nobody knows how much of the metadata is its own
        none = (0,) * columns
        return TableMapSeen(
            table_id, database, table, types, none, nullable, TableMetadata(), position, unknown
        )
    metas = _metas(types, packed)
    metadata = _metadata(types, metas, fields, flavor)
    return TableMapSeen(table_id, database, table, types, metas, nullable, metadata, position)


def _name(fields: Fields) -> str:
    name = fields.take(fields.integer(1)).decode("utf-8")
    if fields.integer(1) != 0:
        raise ValueError("name")
    return name


def _metas(types: bytes, fields: Fields) -> tuple[int, ...]:
    metas = tuple(
        int.from_bytes(fields.take(_METAS.get(code, 0)), "big" if code in _BIG_ENDIAN else "little")
        for code in types
    )
    if fields.left():
        raise ValueError("metadata")
    return metas


def _metadata(
    types: bytes, metas: tuple[int, ...], fields: Fields, flavor: Flavor
) -> TableMetadata:
    """The optional metadata: type, length and value fields (``binlog_row_metadata``)."""
    real = [
        metas[i] >> 8 if code == _STRING and metas[i] >> 8 in (_ENUM, _SET) else code
        for i, code in enumerate(types)
    ]
    texts = [i for i, code in enumerate(real) if code in column_types.CHARSETS[flavor]]
    labelled = [i for i, code in enumerate(real) if code in (_ENUM, _SET)]
    unsigned = names = visible = None
    collations: dict[int, int] = {}
    labels: dict[int, tuple[bytes, ...]] = {}
    geometries: dict[int, int] = {}
    key: tuple[tuple[int, int], ...] | None = None
    while fields.left():
        kind = fields.integer(1)
        value = Fields(fields.take(fields.packed()))
        if kind == 1:
            numeric = [i for i, code in enumerate(real) if code in column_types.SIGNEDNESS[flavor]]
            unsigned = _flags(value.rest(), numeric, len(types))
        elif kind in (2, 10):
            collations |= _default_collations(value, texts if kind == 2 else labelled)
        elif kind in (3, 11):
            collations |= dict(zip(texts if kind == 3 else labelled, _integers(value), strict=True))
        elif kind == 4:
            names = tuple(value.take(value.packed()).decode("utf-8") for _ in range(len(types)))
        elif kind in (5, 6):
            code = _SET if kind == 5 else _ENUM
            for i in (i for i in labelled if real[i] == code):
                labels[i] = tuple(
                    value.take(value.packed()) for _ in range(_bounded(value.packed()))
                )
        elif kind == 7:
            geometry = [i for i, code in enumerate(real) if code == _GEOMETRY]
            geometries = dict(zip(geometry, _integers(value), strict=False))
        elif kind == 8:
            key = tuple((column, 0) for column in _integers(value))
        elif kind == 9:
            flat = _integers(value)
            key = tuple(zip(flat[::2], flat[1::2], strict=True))
        elif kind == 12:
            visible = _flags(value.rest(), list(range(len(types))), len(types))
    if key is not None and any(column >= len(types) for column, _ in key):
        raise ValueError("primary key")
    every = range(len(types))
    return TableMetadata(
        unsigned=unsigned,
        collations=tuple(collations.get(i) for i in every) if collations else None,
        names=names,
        labels=tuple(labels.get(i) for i in every) if labels else None,
        geometry_types=tuple(geometries.get(i) for i in every) if geometries else None,
        primary_key=key,
        visible=visible,
    )


def _flags(bits: bytes, columns: list[int], count: int) -> tuple[bool, ...]:
    """A bit for each of ``columns``, the first in the highest bit; False for the others."""
    flags = [False] * count
    for i, column in enumerate(columns):
        flags[column] = bool(bits[i // 8] >> 7 - i % 8 & 1)
    return tuple(flags)


def _integers(fields: Fields) -> list[int]:
    integers = []
    while fields.left():
        integers.append(fields.packed())
    return integers


def _default_collations(fields: Fields, columns: list[int]) -> dict[int, int]:
    """The most frequent collation, then (index among ``columns``, collation) of the others."""
    default = fields.packed()
    collations = dict.fromkeys(columns, default)
    while fields.left():
        index = fields.packed()
        collations[columns[index]] = fields.packed()
    return collations


def _bounded(count: int) -> int:
    if count > 0xFFFF:
        raise ValueError("labels")
    return count


class ScannedTables:
    """The table maps of a stream, in the arrays that `binlog_scan_kernel.scan` reads."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.ids: Int64s = np.empty(0, dtype=np.int64)
        self.numbers: Int64s = np.empty(0, dtype=np.int64)
        self.tables: Int64s = np.zeros((16, kernel.TABLE_SLOTS), dtype=np.int64)
        self.walks: Int32s = np.zeros((256, 3), dtype=np.int32)
        self.steps: Int32s = np.zeros((256, 2), dtype=np.int32)
        self.maps: UInt8s = np.zeros(4096, dtype=np.uint8)
        self._used = [0, 0, 0, 0]
        self._notices = False
        self._seen: dict[int, tuple[int, TableMapSeen]] = {}

    def knows(self, seen: TableMapSeen, body: bytes) -> bool:
        """Is the table bound, and does it look the same? Then its map is taken over."""
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
        """A table whose rows are dropped until it is bound. Raises ValueError: metadata that its
        types can't have. ``old_digits``: see `BinlogScanner.bind`; None: not known yet.
        """
        walks: list[tuple[int, int]] = []
        columns = -1
        if seen.unknown is None:
            digits = old_digits or {}
            walks = [
                walk(code, meta, digits.get(i, 0))
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
        if steps:
            self.steps[first_step : first_step + len(steps)] = steps
        start, end = self._append_map(body)
        self._used[:3] = number + 1, first_walk + len(walks), first_step + len(steps)
        json_columns = seen.types.count(_JSON)
        self.tables[number] = (
            0, columns, json_columns, first_walk, first_step, len(steps), passed, start, end,
            -1, 0, 0, loose,
        )  # fmt: skip
        self._seen[seen.table_id] = number, seen
        at = int(np.searchsorted(self.ids, seen.table_id))
        self.ids = np.insert(self.ids, at, seen.table_id)
        self.numbers = np.insert(self.numbers, at, number)

    def bind(self, table_id: int, schema_id: int, old_digits: Mapping[int, int]) -> None:
        """KeyError: no such table was seen; DecodeError: its rows can't be taken."""
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
        self.tables[number, kernel.SCHEMA] = schema_id

    def notice(self, table_id: int, *, deletes: bool, columns: Collection[int]) -> None:
        """Notice deletes, and updates of these columns, by index. KeyError as `bind`."""
        row = self.tables[self._seen[table_id][0]]
        row[kernel.NOTICE] = deletes * kernel.DELETED | bool(columns) * kernel.REKEYED
        first = int(row[kernel.FIRST_COLUMN])
        for column in range(int(row[kernel.COLUMNS])):
            self.walks[first + column, 2] = column in columns
        self._notices = True

    def noticed(self) -> Iterator[tuple[TableMapSeen, int]]:
        """The tables of which something was noticed since the last call, and what."""
        if not self._notices or not self.tables[:, kernel.NOTICED].any():
            return
        for number, seen in list(self._seen.values()):
            what = int(self.tables[number, kernel.NOTICED])
            self.tables[number, kernel.NOTICED] = 0
            if what:
                yield seen, what

    def touched(self, group_start: int) -> tuple[tuple[str, str], ...]:
        """The (database, table)s with rows of ours in the group."""
        return tuple(
            sorted(
                {
                    (seen.database, seen.table)
                    for number, seen in self._seen.values()
                    if self.tables[number, kernel.TOUCHED] == group_start
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
    return (seen.database, seen.table, seen.types, seen.metas, seen.nullable, seen.metadata)


def _room(array: np.ndarray, count: int) -> np.ndarray:
    """The array, or a longer copy of it."""
    if count <= len(array):
        return array
    longer = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
