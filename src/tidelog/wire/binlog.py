"""The binlog stream of MySQL and MariaDB → records of the event log, sans-IO."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.model.records import Int64s, LogBatch, Resume, UInt8s
from tidelog.wire.binlog_items import (
    Alter,
    AsOf,
    FormatSeen,
    GtidsSeen,
    GtidSource,
    GtidStateSeen,
    MariaDbSource,
    MySqlSource,
    QuerySeen,
    RolledBackSeen,
    RotateSeen,
    RowOf,
    TableMapSeen,
    TableMetadata,
    XaSeen,
    XaState,
)
from tidelog.wire.flavor import Flavor

__all__ = [
    "START",
    "Alter",
    "AsOf",
    "BinlogScanner",
    "FormatSeen",
    "GtidSource",
    "GtidStateSeen",
    "GtidsSeen",
    "MariaDbSource",
    "MySqlSource",
    "QuerySeen",
    "RolledBackSeen",
    "RotateSeen",
    "RowOf",
    "Scanned",
    "TableMapSeen",
    "TableMetadata",
    "XaSeen",
    "XaState",
]

START = Resume(acknowledge=0, position=0, ordinal=-1)
"""Resume of a log that holds nothing yet."""

Scanned = (
    LogBatch
    | TableMapSeen
    | RowOf
    | QuerySeen
    | GtidsSeen
    | XaSeen
    | RotateSeen
    | FormatSeen
    | GtidStateSeen
    | RolledBackSeen
)


class BinlogScanner:
    """Scans one stream. Not thread-safe; of no use after an error.

    Args:
        flavor: which server writes the log.
        resume: records up to its ``(position, ordinal)`` are skipped; None: nothing is.
        checksum: events end in a CRC32 until a format description says otherwise.
        file_number: of the file that the stream begins in.
        offset: in it, where the stream begins: a group boundary.
        as_of: yield the rows of prepared XA groups, as of the group that committed them.
    """

    def __init__(
        self,
        flavor: Flavor,
        resume: Resume | None = None,
        *,
        checksum: bool,
        file_number: int,
        offset: int,
        as_of: AsOf | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def resume(self) -> Resume:
        """Where a restart goes on once everything yielded so far is durable."""
        raise NotImplementedError

    @property
    def in_transaction(self) -> bool:
        """Is a group of events open?"""
        raise NotImplementedError

    @property
    def position(self) -> int:
        """The packed end of what was scanned."""
        raise NotImplementedError

    @property
    def oldest_prepared(self) -> int | None:
        """Where the oldest XA transaction begins that is prepared and not decided; None: none."""
        raise NotImplementedError

    def bind(self, table_id: int, schema_id: int, *, watch: bool = False) -> None:
        """Say what becomes of a table's rows: their schema version, 0 to drop them.

        Must answer each `TableMapSeen` before the next item is taken.
        ``watch``: yield each row as a `RowOf` instead.
        """
        raise NotImplementedError

    def forget_tables(self) -> None:
        """Ask anew (`TableMapSeen`) for every table, e.g. after DDL."""
        raise NotImplementedError

    def truncate(self, schema_id: int) -> LogBatch | None:
        """The record of a TRUNCATE, to be called while its `QuerySeen` is the last item taken.
        None if it is durable.
        """
        raise NotImplementedError

    def skip_to(self, position: int, ordinal: int) -> None:
        """Records up to here were taken elsewhere (those of a committed XA transaction)."""
        raise NotImplementedError

    def feed(self, data: UInt8s, offsets: Int64s) -> Iterator[Scanned]:
        """Scan whole events back to back (19-byte header … checksum); take all items before the
        next feed. ``offsets`` int64[n + 1]: event ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

        Raises:
            DecodeError: the stream is no binlog; what precedes the fault is yielded first.
            GapError: the server logged an incident: it lost events.
        """
        raise NotImplementedError
