"""Reads log rows that are meant for Tidelog itself: watermarks and signals. They are never records.

Others may write to these tables too, and change their columns. The log is read again at every
start, so nothing in it may stop capture: a column that is missing, or has an unsupported type,
reads as NULL.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen, WatchedBinlogRow
from tidelog.errors import ConfigError
from tidelog.model.records import Kind
from tidelog.model.schema import TableName
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen, WatermarkSeen

logger = logging.getLogger(__name__)

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMNS = ("id", "mark")
SIGNAL_COLUMNS = ("id", "type", "data")

_INTEGERS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_BEFORE, _AFTER, _PARTIAL = 1, 2, 4  # bits of a payload's flags
_MAX_WATERMARK_BYTES = 190  # the column's size: Tidelog writes nothing longer
_CUT_BYTES = MAX_SIGNAL_BYTES + 1  # enough to notice that a text is too long


class MySqlMetadataTables:
    """Finds the metadata tables in the stream, and reads their rows.

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
        self._watermarks: set[int] = set()
        self._places: dict[int, list[int | None]] = {}

    def fold(self) -> None:
        """Compare names in lower case, as the server logs them."""
        self.namespace = self.namespace.lower()
        self.watermark = _lower_case(self.watermark)
        self.signals = None if self.signals is None else _lower_case(self.signals)

    def clear(self) -> None:
        """Forget all table ids: the server starts to number tables again."""
        self._maps.clear()
        self._watermarks.clear()
        self._places.clear()

    def watches(self, table: TableName) -> bool:
        """Return True for a table whose rows `read` needs."""
        return table in (self.watermark, self.signals)

    def bind(self, seen: TableMapSeen, names: Sequence[str] | None) -> None:
        """Prepare for rows of the table. ``names``: its columns, needed for the signal table."""
        table = TableName(seen.database, seen.table)
        self._maps[seen.table_id] = seen
        if table == self.watermark:
            self._watermarks.add(seen.table_id)
            wanted: Sequence[str] = WATERMARK_COLUMNS[1:]
            columns: Sequence[str] = WATERMARK_COLUMNS
        else:
            self._watermarks.discard(seen.table_id)
            wanted, columns = SIGNAL_COLUMNS, names or ()
        # Columns after one of unknown width can't be located.
        readable = next(
            (i for i in range(len(seen.types)) if _width(seen.types[i], seen.metas[i]) is None),
            len(seen.types),
        )
        found = {name: place for place, name in enumerate(columns[:readable])}
        places = [found.get(name) for name in wanted]
        missing = [name for name in wanted if name not in found]
        if missing and self._places.get(seen.table_id) != places:
            logger.warning(
                "%s has no column %s that can be read: it and those before it must be integers or "
                "texts (CHAR, VARCHAR, TEXT)",
                table,
                ", ".join(missing),
            )
        self._places[seen.table_id] = places

    def read(self, row: WatchedBinlogRow) -> Iterator[WatermarkSeen | SignalSeen]:
        """The watermark or signal in a row; nothing if the row holds neither."""
        if row.table_id in self._watermarks:
            if row.kind in (Kind.INSERT, Kind.UPDATE):
                (watermark,) = self._texts(row)
                if watermark is not None and len(watermark) <= _MAX_WATERMARK_BYTES:
                    yield WatermarkSeen(watermark, row.position, row.ordinal)
        elif row.kind is Kind.INSERT:
            signal_id, type_, data = self._texts(row)
            yield SignalSeen(signal_id or "", type_ or "", data, row.position, row.ordinal)

    def _texts(self, row: WatchedBinlogRow) -> list[str | None]:
        """The wanted columns of a row's new state as text; None for NULL or a missing column."""
        seen, places = self._maps[row.table_id], self._places[row.table_id]
        known = [place for place in places if place is not None]
        if not known:
            return [None] * len(places)
        try:
            found = _new_image(row.payload, seen, max(known) + 1)
        except (struct.error, IndexError, ValueError):
            logger.warning("a row of %s.%s does not parse", seen.database, seen.table)
            return [None] * len(places)
        return [
            found[place] if place is not None and place < len(found) else None for place in places
        ]


def _lower_case(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


def _new_image(payload: bytes, seen: TableMapSeen, wanted: int) -> list[str | None]:
    """The first ``wanted`` columns of an after image."""
    flags, count = payload[1], int.from_bytes(payload[2:4], "little")
    at = 4
    if flags & _BEFORE:
        _, at = _image(payload, at, count, seen, count)
    if not flags & _AFTER:
        raise ValueError("image")
    return _image(payload, at, count, seen, wanted, partial=bool(flags & _PARTIAL))[0]


def _image(
    payload: bytes, at: int, count: int, seen: TableMapSeen, wanted: int, *, partial: bool = False
) -> tuple[list[str | None], int]:
    """Read one row image; returns its texts and the offset after it.

    ``partial``: True for updates under ``binlog_row_value_options``, where MySQL writes all updates
    in this form, also those of tables without documents.
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
        if i >= wanted:
            break
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
        found[i] = payload[at : at + min(size, _CUT_BYTES)].decode("utf-8", "replace")
        at += size
    return found, at


def _width(type_code: int, meta: int) -> int | None:
    """The bytes of an integer, or of a text's length; None for other types."""
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
