"""Reads rows of tables by SELECT: chunks between watermarks, whole tables, digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.model.records import LogBatch, Snapshot
from tidelog.model.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """One SELECT: either a range ``after < key`` limited to ``limit_rows``, or ``keys``.

    Bounds are texts of the columns of `TableSchema.match_key`. ``key_columns`` names the columns of
    the bounds: if the table's match key has changed, the read raises ChunkVoidError. ``keys`` are
    of ``key_columns``, in that order; None: of `TableSchema.key`.

    ``limit_bytes``: the rows returned take about this much, but are at least one; 0: no limit.
    Larger rows end a range early, as ``limit_rows`` does, or leave the last keys unread.

    ``spread_s``: load the source lightly. A reader that can do so reads the range in slices and
    rests between them, so that the range takes about this many seconds.

    ``where_names``: the columns in ``where``, if its author may have fewer rights than capture;
    then only the database's own code may run for it. None: ``where`` comes from capture's operator.
    """

    table: TableName
    after: tuple[str | None, ...] | None = None
    upto: tuple[str | None, ...] | None = None
    limit_rows: int = 10_000
    keys: tuple[tuple[str | None, ...], ...] | None = None
    where: str | None = None
    where_names: tuple[str, ...] | None = None
    key_columns: tuple[str, ...] | None = None
    spread_s: float = 0.0
    limit_bytes: int = 0


@dataclass(slots=True)
class ChunkRows:
    """The result of a chunk's SELECT, in key order, in the log's own wire format.

    ``rows`` has kind DUMP_ROW (and ABSENT for requested keys that are not in the table), position
    and xid 0; ``last_key`` is the greatest key read, ``exhausted`` is true if no row follows it.

    ``emit_at``: with a strategy without watermarks, a position of the source's log at or after
    every transaction that is visible in ``snapshot``; the rows are emitted there. None: they are
    emitted at the high watermark. ``rested_s``: the seconds of rests during the read.
    ``keys_read``: how many of the requested keys were read, from the first on; None: all.
    """

    schema: TableSchema
    rows: LogBatch
    snapshot: Snapshot
    last_key: tuple[str | None, ...] | None
    exhausted: bool
    emit_at: int | None = None
    rested_s: float = 0.0
    keys_read: int | None = None


class ChunkReader(Protocol):
    """Reads chunks between watermarks over its own connections. Used by one thread at a time.

    The order is fixed: write low; begin, lock against DDL, snapshot, read; return the rows; write
    high *while the lock is still held* (so that no DDL is between snapshot and high); end. A
    strategy without watermarks returns rows with ``emit_at`` instead.
    """

    def write_watermark(self, watermark: str) -> None:
        """Write ``watermark`` (a text that is never used again) into the source's log.

        Returns once it is committed. Does nothing with a strategy without watermarks.
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """Read under a new snapshot. The DDL lock is held until `release`. Raises ChunkError."""
        ...

    def release(self) -> None:
        """End the reading transaction. Must be called after every `read`, also after an error."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """Return the key of every ``limit_rows``-th row of the range, at most ``count`` keys.

        Reads the key's index alone. For planning: it needs no window and keeps no lock.
        """
        ...

    def current_snapshot(self) -> Snapshot:
        """Return a snapshot of now. Transactions that it sees need not be remembered any longer."""
        ...

    def close(self) -> None:
        """Close for good; from another thread, it ends a read, which then raises.

        The reading thread closes the reader as well.
        """
        ...


class BlockingReader(Protocol):
    """Reads whole tables under one snapshot, taken exactly at a position of the log.

    Used by one thread. Order: `begin`; any number of `read` (ranges only); `close`, always. A table
    without a key is read from its first row on: each request's ``after`` is the `last_key` of the
    read before.
    """

    def begin(self, timeout_s: float) -> int:
        """Take the snapshot; return its position: exactly the commits before it are visible.

        Raises ChunkError if open transactions prevent it for ``timeout_s`` seconds.
        """
        ...

    def read(self, request: ChunkRequest) -> ChunkRows:
        """As `ChunkReader.read`, always under the one snapshot; ``emit_at`` is its position."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a set of rows: their number, and the sum of 60 bits of each row's MD5."""

    rows: int
    total: int


class DigestReader(Protocol):
    """Computes digests of rows inside the source, so that no row travels. Used by one thread.

    A row's number is the first 15 hexadecimal digits of the MD5 of its text in UTF-8: the texts of
    its columns in order, each followed by a comma; ``~`` for NULL. The text of a column depends on
    its logical type:

    * ``bool``: ``true``, ``false``; integers and decimals: digits, with all of the scale's
    * ``float32``, ``float64``: the IEEE 754 bits as a signed integer, of NaN the canonical ones
    * ``date``: days, ``timestamp`` and ``timestamptz``: microseconds since 1970
    * ``binary``, ``bytes``: lower-case hexadecimal digits
    * ``text``: its length in bytes, a colon, itself

    It is the text of the value that the column decodes to: what decodes to NULL is NULL.
    """

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        """Return why the source can't compute the text of these columns; None: it can."""
        ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """As `ChunkReader.boundaries`."""
        ...

    def digest(self, request: ChunkRequest, schema: TableSchema, columns: Sequence[str]) -> Digest:
        """Return the digest of a range's rows, by one SELECT under its own snapshot.

        Raises ChunkError.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return a snapshot that every later SELECT sees at least. Raises ChunkError."""
        ...

    def position(self) -> int:
        """Return a source position at or after every transaction that a SELECT could see now."""
        ...

    def close(self) -> None: ...
