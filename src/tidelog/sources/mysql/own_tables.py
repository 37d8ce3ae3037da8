"""Rows of the log that are for Tidelog itself: marks, and signals. They are never records."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tidelog.errors import ConfigError, DecodeError, SourceError
from tidelog.model.records import Kind
from tidelog.model.schema import TableName
from tidelog.ports import SignalSeen, WatermarkSeen
from tidelog.wire import binlog_types as types
from tidelog.wire.binlog_items import RowOf, TableMapSeen

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMNS = ("id", "mark")
SIGNAL_COLUMNS = ("id", "type", "data")

_INTEGERS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_BEFORE, _AFTER, _PARTIAL = 1, 2, 4  # bits of a payload's flags


class OwnTables:
    """Tells our own tables of the stream, and reads their rows.

    Args:
        watermark_schema: the database of the watermark table.
        signal_table: ``database.name`` of the table whose inserted rows are commands.
    """

    def __init__(self, watermark_schema: str, signal_table: str | None) -> None:
        self.namespace = watermark_schema
        self.watermark = TableName(watermark_schema, WATERMARK_TABLE)
        self.signals: TableName | None = None
        if signal_table is not None:
            try:
                self.signals = TableName.parse(signal_table)
            except ValueError as error:
                raise ConfigError(f"source.signal_table: {error}") from None
        self._maps: dict[int, TableMapSeen] = {}
        self._marks: set[int] = set()
        self._places: dict[int, list[int]] = {}

    def fold(self) -> None:
        """The server logs names in lower case."""
        self.namespace = self.namespace.lower()
        self.watermark = _folded(self.watermark)
        self.signals = None if self.signals is None else _folded(self.signals)

    def clear(self) -> None:
        """Table ids begin anew."""
        self._maps.clear()
        self._marks.clear()
        self._places.clear()

    def watches(self, table: TableName) -> bool:
        """Is it one of ours, whose rows `read` wants?"""
        return table in (self.watermark, self.signals)

    def bind(self, seen: TableMapSeen, names: Sequence[str] | None) -> None:
        """Rows of the table follow. ``names``: its columns, needed for the signal table.

        Raises SourceError if it lacks a column or has one that can't be read.
        """
        table = TableName(seen.database, seen.table)
        self._maps[seen.table_id] = seen
        if table == self.watermark:
            self._marks.add(seen.table_id)
            places = [len(WATERMARK_COLUMNS) - 1]
        else:
            self._marks.discard(seen.table_id)
            missing = [name for name in SIGNAL_COLUMNS if name not in (names or ())]
            if missing:
                raise SourceError(
                    f"{table} has no column {', '.join(missing)}: give it the columns id, type and "
                    "data"
                )
            places = [list(names or ()).index(name) for name in SIGNAL_COLUMNS]
        for i in range(max(places) + 1):
            if _width(seen.types[i], seen.metas[i]) is None:
                raise SourceError(
                    f"{table}: column {i + 1} must be an integer or a text (CHAR, VARCHAR, TEXT)"
                )
        self._places[seen.table_id] = places

    def read(self, row: RowOf) -> Iterator[WatermarkSeen | SignalSeen]:
        """What the row of one of our tables says; nothing if it is no mark and no signal."""
        if row.table_id in self._marks:
            if row.kind in (Kind.INSERT, Kind.UPDATE):
                (mark,) = self._texts(row)
                if mark is not None:
                    yield WatermarkSeen(mark, row.position, row.ordinal)
        elif row.kind is Kind.INSERT:
            signal_id, type_, data = self._texts(row)
            yield SignalSeen(signal_id or "", type_ or "", data, row.position, row.ordinal)

    def _texts(self, row: RowOf) -> list[str | None]:
        """The columns that are wanted of a row's new state as texts; None: NULL, or not there."""
        seen = self._maps[row.table_id]
        try:
            found = _new_image(row.payload, seen)
        except (struct.error, IndexError, ValueError) as error:
            raise DecodeError("a row of a table of Tidelog's own does not parse") from error
        return [
            found[place] if place < len(found) else None for place in self._places[row.table_id]
        ]


def _folded(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


def _new_image(payload: bytes, seen: TableMapSeen) -> list[str | None]:
    """The columns of an after image, up to the first that is neither number nor text."""
    flags, count = payload[1], int.from_bytes(payload[2:4], "little")
    at = 4
    if flags & _BEFORE:
        _, at = _image(payload, at, count, seen)
    if not flags & _AFTER:
        raise ValueError("image")
    return _image(payload, at, count, seen, partial=bool(flags & _PARTIAL))[0]


def _image(
    payload: bytes, at: int, count: int, seen: TableMapSeen, *, partial: bool = False
) -> tuple[list[str | None], int]:
    """``partial``: as MySQL writes all updates under ``binlog_row_value_options``, also those of
    tables without documents.
    """
    bitmap = payload[at : at + (count + 7) // 8]
    at += len(bitmap)
    if partial:
        at += 1 + ((seen.types.count(types.JSON) + 7) // 8 if payload[at] & 1 else 0)
    present = [i for i in range(count) if bitmap[i // 8] >> i % 8 & 1]
    nulls = payload[at : at + (len(present) + 7) // 8]
    at += len(nulls)
    found: list[str | None] = [None] * count
    for place, i in enumerate(present):
        if nulls[place // 8] >> place % 8 & 1:
            continue
        width = _width(seen.types[i], seen.metas[i])
        if width is None:
            if seen.types[i] != types.JSON:
                raise ValueError(f"type {seen.types[i]}")
            width = 4
        size = int.from_bytes(payload[at : at + width], "little")
        at += width
        if seen.types[i] in _INTEGERS:
            found[i] = str(size)
            continue
        found[i] = payload[at : at + size].decode("utf-8", "replace")
        at += size
    return found, at


def _width(type_code: int, meta: int) -> int | None:
    """Bytes of an integer, or of a text's length; None for other types."""
    if type_code in _INTEGERS:
        return _INTEGERS[type_code]
    kind, meta = types.resolve(type_code, meta)
    if kind == types.VARCHAR:
        return 1 if meta < 256 else 2
    if kind == types.STRING:
        return 1 if types.string_bytes(meta) < 256 else 2
    if kind == types.BLOB:
        return meta
    return None
