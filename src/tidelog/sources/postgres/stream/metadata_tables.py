"""Reads log rows that are meant for Tidelog itself: watermarks and signals. They are never records.

Others may write to these tables too, and change their columns. The log is read again at every
start, so nothing in it may stop capture: a missing column reads as NULL.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence

from tidelog.codecs.postgres.pgoutput import RelationSeen, WatchedRow
from tidelog.errors import DecodeError
from tidelog.model.records import Kind
from tidelog.model.schema import TableName
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen, WatermarkSeen
from tidelog.sources.postgres.catalogue.metadata_tables import SIGNAL_COLUMNS
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.chunks.watermarks import MAX_WATERMARK_BYTES, WATERMARK_COLUMN

logger = logging.getLogger(__name__)

_CUT_BYTES = MAX_SIGNAL_BYTES + 1  # enough to notice that a text is too long


class PostgresMetadataTables:
    """Finds the metadata tables in the stream, and reads their rows.

    Args:
        publications: the names of the tables.
    """

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._watermarks: dict[int, int | None] = {}  # the column's index by relation
        self._signals: dict[int, list[int | None]] = {}

    def bind(self, seen: RelationSeen) -> bool:
        """Return True for a table whose rows `read` needs."""
        table = TableName(seen.namespace, seen.name)
        names = [name for _, name, _, _ in seen.columns]
        self._watermarks.pop(seen.relation_id, None)
        self._signals.pop(seen.relation_id, None)
        if table == self._publications.watermark:
            if self._publications.strategy != "table":
                return False
            (self._watermarks[seen.relation_id],) = _places(
                table, names, [WATERMARK_COLUMN], "drop the table; it is created again"
            )
            return True
        if table == self._publications.signals:
            self._signals[seen.relation_id] = _places(
                table, names, SIGNAL_COLUMNS, "give it the columns id, type and data"
            )
            return True
        return False

    def read(self, row: WatchedRow) -> Iterator[WatermarkSeen | SignalSeen]:
        """The watermark or signal in a row; nothing if the row holds neither."""
        if row.relation_id in self._watermarks and row.kind in (Kind.INSERT, Kind.UPDATE):
            (watermark,) = _columns(row.payload, [self._watermarks[row.relation_id]])
            if watermark is not None and len(watermark) <= MAX_WATERMARK_BYTES:
                yield WatermarkSeen(watermark, row.position, row.ordinal)
        elif row.relation_id in self._signals and row.kind is Kind.INSERT:
            signal_id, type_, data = _columns(row.payload, self._signals[row.relation_id])
            yield SignalSeen(signal_id or "", type_ or "", data, row.position, row.ordinal)


def _places(
    table: TableName, names: list[str], wanted: Sequence[str], advice: str
) -> list[int | None]:
    missing = [name for name in wanted if name not in names]
    if missing:
        logger.warning("%s has no column %s: %s", table, ", ".join(missing), advice)
    return [names.index(name) if name in names else None for name in wanted]


def _columns(payload: bytes, places: Sequence[int | None]) -> list[str | None]:
    texts = _new_texts(payload)
    return [None if place is None else texts[place] for place in places]


def _new_texts(payload: bytes) -> list[str | None]:
    """The new tuple of an insert or update as text; None for NULL or an unchanged value."""
    try:
        at = 5
        if payload[at : at + 1] in (b"K", b"O"):
            _, at = _texts(payload, at + 1)
        if payload[at : at + 1] != b"N":
            raise ValueError("tuple tag")
        return _texts(payload, at + 1)[0]
    except (struct.error, ValueError) as error:
        raise DecodeError("a row of one of Tidelog's own tables does not parse") from error


def _texts(payload: bytes, at: int) -> tuple[list[str | None], int]:
    (count,) = struct.unpack_from("!h", payload, at)
    at += 2
    found: list[str | None] = []
    for _ in range(count):
        if payload[at : at + 1] in (b"n", b"u"):
            found.append(None)
            at += 1
        else:
            (length,) = struct.unpack_from("!i", payload, at + 1)
            kept = payload[at + 5 : at + 5 + min(length, _CUT_BYTES)]
            found.append(kept.decode("utf-8", "surrogateescape"))
            at += 5 + length
    return found, at
