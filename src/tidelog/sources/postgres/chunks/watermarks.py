"""Places chunks in the log: the statements and positions of the three strategies, and snapshots.

============= ================================== ======================================= strategy
the watermarks are the rows follow the log ============= ==================================
======================================= ``table`` updates of a one-row table up to the high
watermark ``message`` logical messages up to the high watermark ``snapshot`` none: nothing is
written up to a position read after the snapshot ============= ==================================
=======================================

A snapshot is the text of ``pg_current_snapshot()``: ``xmin:xmax:xip,xip,…``. On a standby that text
does not list the transactions that are open on the primary (`StandbySnapshot`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import psycopg

from tidelog.model.records import Bools, Int64s, XidRanges, ranges_of
from tidelog.model.schema import double_quoted
from tidelog.sources.postgres.connect import lsn_value

Strategy = Literal["table", "message", "snapshot"]

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMN = "mark"
WATERMARK_PREFIX = "tidelog.watermark"  # of logical messages that are watermarks
MAX_WATERMARK_BYTES = 190  # a watermark has 37: longer messages are not watermarks

# XLogPageHeaderData and XLogLongPageHeaderData (access/xlog_internal.h), aligned to 8 bytes.
SHORT_PAGE_HEADER_BYTES = 24
LONG_PAGE_HEADER_BYTES = 40


def watermark_statement(strategy: Strategy, watermark_schema: str) -> bytes | None:
    """The statement that writes a watermark, with one parameter; None if none is written. The
    session must commit it without waiting for standbys (`connect.WRITES`).
    """
    if strategy == "snapshot":
        return None
    if strategy == "message":
        return f"SELECT pg_catalog.pg_logical_emit_message(true, '{WATERMARK_PREFIX}', %s)".encode()
    return (
        f"INSERT INTO {double_quoted(watermark_schema, WATERMARK_TABLE)} AS w "  # noqa: S608
        f"(id, {WATERMARK_COLUMN}) VALUES (1, %s) "
        f"ON CONFLICT (id) DO UPDATE SET {WATERMARK_COLUMN} = excluded.{WATERMARK_COLUMN}"
    ).encode()


@dataclass(frozen=True, slots=True)
class WalLayout:
    """Sizes of the server's log files, in bytes."""

    page_bytes: int
    segment_bytes: int

    @classmethod
    def of(cls, connection: psycopg.Connection[tuple[Any, ...]]) -> WalLayout:
        row = connection.execute(
            b"SELECT max(setting) FILTER (WHERE name = 'wal_block_size')::int8, "
            b"max(setting) FILTER (WHERE name = 'wal_segment_size')::int8 "
            b"FROM pg_catalog.pg_settings WHERE name IN ('wal_block_size', 'wal_segment_size')"
        ).fetchone()
        assert row is not None
        return cls(*row)

    def end_of_records(self, insert_position: int) -> int:
        """The end of the last record if the next one would begin at ``insert_position``.

        The next record begins after a page's header, but the log is flushed, and keepalives count,
        only up to the end of the last record: on an idle source nothing would ever reach the
        position. Directly after a header, only the header can be in between.
        """
        at_segment = insert_position % self.segment_bytes
        if at_segment == LONG_PAGE_HEADER_BYTES:
            return insert_position - LONG_PAGE_HEADER_BYTES
        at_page = insert_position % self.page_bytes
        if at_page == SHORT_PAGE_HEADER_BYTES and at_segment != SHORT_PAGE_HEADER_BYTES:
            return insert_position - SHORT_PAGE_HEADER_BYTES
        return insert_position


def emission_point(connection: psycopg.Connection[tuple[Any, ...]], layout: WalLayout) -> int:
    """A position such that all transactions visible in the connection's snapshot committed before
    it.

    Call it in the transaction of the snapshot, after the snapshot was taken: a commit is in the log
    before it is visible. It is the *insert* position, as commits with ``synchronous_commit = off``
    are visible before they are flushed.
    """
    row = connection.execute(
        b"SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() "
        b"THEN pg_catalog.pg_last_wal_replay_lsn() "
        b"ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text, pg_catalog.pg_is_in_recovery()"
    ).fetchone()
    assert row is not None
    position = lsn_value(row[0])
    # On a standby all visible transactions were replayed, and the position is the end of a record.
    return position if row[1] else layout.end_of_records(position)


# Snapshots.

# SHOW takes no snapshot (PostgreSQL's analyze_requires_snapshot), so it reports the server's state
# before: a promotion in between makes a primary's snapshot count as a standby's, never the reverse.
# age() counts from the next transaction id: xmax is only one more than the greatest ended one.
TAKE_SNAPSHOT = (
    "SHOW in_hot_standby;"
    "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.age('3'::xid)::int8 + 3"
)


@dataclass(frozen=True, slots=True, eq=False)
class PgSnapshot:
    """The transactions that a statement could see, in 64-bit transaction ids.

    ``xip`` holds the transactions in progress, sorted, all of them in ``[xmin, xmax)``. Others may
    be in progress from ``xmax`` on, below ``next_xid``, which was read after the snapshot; 0 if it
    is not known.
    """

    xmin: int
    xmax: int
    xip: Int64s
    next_xid: int = 0

    @classmethod
    def from_text(cls, text: str, next_xid_32: int | None = None) -> PgSnapshot:
        """Parse a snapshot. ``next_xid_32``: the next transaction id, modulo 2³²."""
        xmin, xmax, in_progress = text.split(":")
        xip = np.array([int(xid) for xid in in_progress.split(",") if xid], dtype=np.int64)
        xip.sort()
        next_xid = 0
        if next_xid_32 is not None:
            next_xid = int(xmax) + (next_xid_32 - int(xmax)) % (1 << 32)
        # A slot's snapshot is built from the log, and its xmax may be below its xmin: xmin alone
        # counts what committed in the first steps of building it (PostgreSQL's snapbuild.c).
        return cls(int(xmin), max(int(xmin), int(xmax)), xip, next_xid)

    def visible(self, xid: Int64s) -> Bools:
        """bool[n]: like ``pg_visible_in_snapshot``, for transactions that are committed in the log;
        xid 0 (no transaction) is visible.
        """
        old: Bools = xid < self.xmin
        if not len(self.xip):
            return xid < self.xmax
        place = np.minimum(np.searchsorted(self.xip, xid), len(self.xip) - 1)
        running = self.xip[place] == xid
        seen: Bools = old | ((xid < self.xmax) & ~running)
        return seen

    def invisible_ranges(self, upto_xid: int) -> XidRanges:
        """The transactions in progress, and those begun after the snapshot, to ``upto_xid``."""
        running = ranges_of(self.xip[self.xip <= upto_xid].tolist())
        return np.concatenate([running, _from(self.xmax, upto_xid)])

    def follows(self, earlier: PgSnapshot) -> bool:
        """Return True if all transactions have ended that had begun when ``earlier`` was taken."""
        return self.xmin >= max(earlier.xmax, earlier.next_xid)

    def to_text(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(str(xid) for xid in self.xip)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PgSnapshot) and self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())


class StandbySnapshot(PgSnapshot):
    """The transactions that a statement on a standby certainly saw: those below ``xmin``.

    A standby's snapshot knows the primary's open transactions, but ``pg_current_snapshot()`` does
    not list them: ``xip`` is empty, and ``pg_visible_in_snapshot`` counts an open transaction as
    visible. ``xmin`` is the oldest of them. Later transactions may be visible or not; they count as
    invisible, so that their records supersede a chunk's row, which then adds nothing new.
    """

    __slots__ = ()

    def visible(self, xid: Int64s) -> Bools:
        """bool[n]: True if the transaction ended before all that were open on the primary began."""
        seen: Bools = xid < self.xmin
        return seen

    def invisible_ranges(self, upto_xid: int) -> XidRanges:
        """All from the oldest open one on: many, while an old transaction is open."""
        return _from(self.xmin, upto_xid)

    def to_text(self) -> str:
        return f"standby:{self.xmin}:{self.xmax}"


def _from(first: int, last: int) -> XidRanges:
    ranges = [[first, last + 1]] if first <= last else []
    return np.array(ranges, np.int64).reshape(-1, 2)


def read_snapshot(cursor: psycopg.Cursor[tuple[Any, ...]]) -> PgSnapshot:
    """The snapshot from statements that end with `TAKE_SNAPSHOT`."""
    rows: list[tuple[Any, ...]] = []
    while True:
        if cursor.description is not None:
            rows += cursor.fetchall()
        if not cursor.nextset():
            break
    (in_hot_standby,), (text, next_xid_32) = rows[-2:]
    kind = StandbySnapshot if in_hot_standby == "on" else PgSnapshot
    return kind.from_text(text, next_xid_32)
