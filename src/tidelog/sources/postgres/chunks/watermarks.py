"""Places chunks in the log: the statements and positions of the three strategies.

=============  ==================================  =======================================
strategy       the watermarks are                  the rows follow the log
=============  ==================================  =======================================
``table``      updates of a one-row table          up to the high watermark
``message``    logical messages                    up to the high watermark
``snapshot``   none: nothing is written            up to a position read after the snapshot
=============  ==================================  =======================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from tidelog.sources.postgres.connect import lsn_value, quote_ident

Strategy = Literal["table", "message", "snapshot"]

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMN = "mark"
WATERMARK_PREFIX = "tidelog.watermark"  # of logical messages that are watermarks
MAX_WATERMARK_BYTES = 190  # a watermark has 37: longer messages are not watermarks

# XLogPageHeaderData and XLogLongPageHeaderData (access/xlog_internal.h), aligned to 8 bytes.
SHORT_PAGE_HEADER_BYTES = 24
LONG_PAGE_HEADER_BYTES = 40


def watermark_statement(strategy: Strategy, watermark_schema: str) -> bytes | None:
    """The statement that writes a watermark, with one parameter; None if none is written.

    The session must commit it without waiting for standbys (`connect.WRITES`).
    """
    if strategy == "snapshot":
        return None
    if strategy == "message":
        return f"SELECT pg_catalog.pg_logical_emit_message(true, '{WATERMARK_PREFIX}', %s)".encode()
    return (
        f"INSERT INTO {quote_ident(watermark_schema, WATERMARK_TABLE)} AS w "  # noqa: S608
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
