"""Runs a chunk's SELECTs, and converts their results to the log's wire format.

A table without a key is read in ranges of row addresses (``ctid``), all under one snapshot. A row
version that a snapshot can see keeps its address as long as the snapshot is in use: neither VACUUM
nor page pruning removes it, and what rewrites the table (VACUUM FULL, CLUSTER, TRUNCATE) is seen as
another storage of the table. PostgreSQL 14 and later find such a range without reading the pages
before it (Tid Range Scan).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psycopg
from psycopg import pq

from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.codecs.postgres.tuples import absent_rows, concatenate, copy_text_rows
from tidelog.errors import ChunkError, ChunkRefusedError, ChunkVoidError
from tidelog.model.records import Int64s, LogBatch, Snapshot, UInt8s
from tidelog.model.schema import TableName, TableSchema, double_quoted
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.chunks.sql import Key, PostgresChunkSql, operator_schemas
from tidelog.sources.postgres.encodings import encoded, texts_of
from tidelog.sources.postgres.stream import replication
from tidelog.sources.ranges import KeySteps, Slices, bounded_key, given_keys, may_hold_null

# HOT PATH of dumps (benchmarks/bench_dumps.py). The data of ``COPY … TO STDOUT`` in one buffer.

QUERY_CANCELED = b"57014"
BUFFER_BYTES = 4 << 20  # the buffer's size, except after larger results
DISCARD_BYTES = 1 << 20


class CopyReader:
    """Runs COPY statements over one connection at a time, reusing its buffer."""

    def __init__(self) -> None:
        self._buffer: UInt8s = np.empty(BUFFER_BYTES, dtype=np.uint8)
        self._functions = replication.find_libpq_functions()
        self.cut = False
        """True if the last statement was ended at its limit; its transaction then needs a
        savepoint.
        """

    def read(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        query: str,
        keep: int = 0,
        limit_bytes: int = 0,
    ) -> tuple[UInt8s, int]:
        """Run a COPY; returns its bytes, valid until the next `read`, and the number of rows.

        The first ``keep`` bytes of the last result precede them. They are in the session's
        encoding.

        A statement whose rows take more than ``limit_bytes``, including the kept ones, is ended
        before the first row that exceeds it, but not before the first row (`cut`); 0: no limit.

        Raises psycopg's error for a server error, or if the server sends nothing for too long
        (`async_results.Session`). ``query`` is a single statement: the extended protocol refuses
        more, so a condition can't smuggle in a second one.
        """
        pgconn, silence_s = connection.pgconn, async_results.silence_s(connection)
        result = async_results.run_query(pgconn, encoded(pgconn, query), timeout_s=silence_s)
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        if not keep and len(self._buffer) > BUFFER_BYTES:
            self._buffer = np.empty(BUFFER_BYTES, dtype=np.uint8)
        self.cut = False
        used, rows = self._drain(pgconn, keep, limit_bytes, silence_s)
        for last in list(async_results.results(pgconn, async_results.END_S)):
            if last.status != pq.ExecStatus.FATAL_ERROR:
                continue
            state = last.error_field(pq.DiagnosticField.SQLSTATE)
            if not (self.cut and state == QUERY_CANCELED):
                raise psycopg.errors.error_from_result(last)
        return self._buffer[:used], rows

    def _drain(
        self, pgconn: pq.abc.PGconn, keep: int, limit: int, silence_s: float | None
    ) -> tuple[int, int]:
        functions = self._functions
        address = pgconn.pgconn_ptr  # type: ignore[attr-defined]
        if functions is None or address is None:
            return self._drain_in_python(pgconn, keep, limit, silence_s)
        state: Int64s = np.zeros(replication.STATE_SIZE, dtype=np.int64)
        state[replication.BYTES] = keep
        replication.wait_for_socket(state, pgconn.socket)
        silence_ms = 0 if silence_s is None else max(1, round(silence_s * 1000))
        buffer, used, rows = self._limited(limit), 0, 0
        while True:
            outcome = replication.drain_copy(
                functions.consume_input,
                functions.get_copy_data,
                functions.free_memory,
                functions.poll,
                address,
                buffer,
                state,
                silence_ms,
            )
            if outcome == replication.DRAINED:
                async_results.close_silent(pgconn)
            if outcome != replication.GROW:
                break
            if not self.cut:
                used, rows = int(state[replication.BYTES]), int(state[replication.MESSAGES])
                needed = int(state[replication.PENDING_LENGTH])
                if not limit or not used or used + needed <= limit:
                    self._grow(used, needed, limit)
                    buffer = self._limited(limit, used + needed)
                    continue
                self._cancel(pgconn)
                buffer = np.empty(max(DISCARD_BYTES, needed), dtype=np.uint8)
            elif len(buffer) < state[replication.PENDING_LENGTH]:
                buffer = np.empty(int(state[replication.PENDING_LENGTH]), dtype=np.uint8)
            state[replication.BYTES] = 0  # later rows are dropped
        if self.cut:
            return used, rows
        return int(state[replication.BYTES]), int(state[replication.MESSAGES])

    def _limited(self, limit: int, least: int = 0) -> UInt8s:
        return self._buffer[: max(limit, least)] if limit else self._buffer

    def _cancel(self, pgconn: pq.abc.PGconn) -> None:
        """Ask the server to stop sending. If the request fails, the remaining rows are dropped."""
        self.cut = True
        with suppress(psycopg.Error):
            async_results.cancel(pgconn)

    def _drain_in_python(
        self, pgconn: pq.abc.PGconn, keep: int, limit: int, silence_s: float | None
    ) -> tuple[int, int]:
        used, rows = keep, 0
        for row in _copied_rows(pgconn, silence_s):
            if self.cut:
                continue
            if limit and used and used + len(row) > limit:
                self._cancel(pgconn)
                continue
            if used + len(row) > len(self._buffer):
                self._grow(used, len(row), limit)
            self._buffer[used : used + len(row)] = np.frombuffer(row, dtype=np.uint8)
            used += len(row)
            rows += 1
        return used, rows

    def _grow(self, used: int, needed: int, limit: int) -> None:
        doubled = 2 * len(self._buffer)
        size = max(min(doubled, limit) if limit else doubled, used + needed)
        if size <= len(self._buffer):
            return
        grown = np.empty(size, dtype=np.uint8)
        grown[:used] = self._buffer[:used]
        self._buffer = grown


def _copied_rows(pgconn: pq.abc.PGconn, silence_s: float | None) -> Iterator[bytes]:
    reads, moved = 0, time.monotonic()
    while True:
        length, data = pgconn.get_copy_data(1)
        if length < 0:
            return
        if length:
            yield bytes(data)
            reads, moved = 0, time.monotonic()
        elif reads < async_results.READS:
            pgconn.consume_input()
            reads += 1
        else:
            reads = 0
            if async_results.wait_readable(pgconn):
                moved = time.monotonic()
            elif silence_s is not None and time.monotonic() - moved > silence_s:
                async_results.close_silent(pgconn)


# Tables without a key.

# Only a Tid Range Scan reads a range without the rest of the table. Set until the rollback.
_BEGIN = b"""
SAVEPOINT tidelog_rows; SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off;
SET LOCAL enable_bitmapscan = off; SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""
_END = b"ROLLBACK TO SAVEPOINT tidelog_rows; RELEASE SAVEPOINT tidelog_rows"

# The parts of a table that hold rows: itself, or the leaves of a partitioned table; their pages.
_PARTS = """
WITH RECURSIVE tree AS (
  SELECT %s::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT c.oid::int8, n.nspname::text, c.relname::text,
  pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind = 'r'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= %s::int8 ORDER BY c.oid
"""

_PAGE = 1 << 16
"""An address as a number: the page's number times this, plus the row's number in the page."""
_FIRST_PAGES = 1
_MOST_PAGES = 8192
_GROWTH = 4


class HeapRanges:
    """Reads a table in the order of its rows' addresses, within the caller's transactions. Used by
    one thread.
    """

    def __init__(self, copy: CopyReader) -> None:
        self._copy = copy
        self._step = _FIRST_PAGES * _PAGE

    def range(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        """Read the rows behind ``request.after``, which is the `last_key` of the read before: (oid
        of the part, address). Of about ``limit_rows`` rows and at most ``limit_bytes``, but at
        least one row unless no row follows.
        """
        part, address = _address_of(request)
        parts = connection.execute(_PARTS.encode(), (schema.relation_id, part)).fetchall()
        data: UInt8s = np.empty(0, np.uint8)
        rows, exhausted = 0, True
        for place, (oid, namespace, name, pages) in enumerate(parts):
            begin, end = address if oid == part else 0, pages * _PAGE
            while begin < end and not rows:
                table = double_quoted(namespace, name)
                upto = min(begin + self._step, end)
                data, rows = self._rows(connection, request, schema, table, begin, upto)
                if self._copy.cut:  # one address has one row, which is read whatever its size
                    self._step, rows = max(1, (upto - begin) // 2), 0
                    continue
                begin = upto
                self._resize(request, rows, len(data))
            if rows:
                part, address = oid, begin
                exhausted = begin >= end and place + 1 == len(parts)
                break
        texts = texts_of(connection.pgconn)
        text = data if texts is None else texts.to_utf8(data)
        return ChunkRows(
            schema=schema,
            rows=copy_text_rows(text, schema.relation_id, schema.schema_id, len(schema.columns)),
            snapshot=snapshot,
            last_key=(str(part), str(address)) if rows else None,
            exhausted=exhausted,
        )

    def _rows(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        table: str,
        begin: int,
        upto: int,
    ) -> tuple[UInt8s, int]:
        """COPY's text and the number of rows; a `cut` result is to be dropped."""
        columns = ", ".join(double_quoted(column.name) for column in schema.columns)
        where = f"ctid >= '{_address_text(begin)}' AND ctid < '{_address_text(upto)}'"
        if request.where:
            where += f" AND ({request.where}\n)"  # the newline ends a comment
        query = f"COPY (SELECT {columns} FROM ONLY {table} WHERE {where}) TO STDOUT"  # noqa: S608
        connection.execute(_BEGIN)
        found = self._copy.read(connection, query, limit_bytes=request.limit_bytes)
        connection.execute(_END)
        return found

    def _resize(self, request: ChunkRequest, rows: int, size: int) -> None:
        """Set the size of the next range, so that it has as many rows as are asked for."""
        used = max(
            rows / request.limit_rows,
            size / request.limit_bytes if request.limit_bytes else 0.0,
            1 / _GROWTH,
        )
        self._step = max(1, min(int(self._step / used), _MOST_PAGES * _PAGE))


def _address_of(request: ChunkRequest) -> tuple[int, int]:
    if request.after is None:
        return 0, 0
    try:
        part, address = request.after
        return int(part or ""), int(address or "")
    except ValueError:
        raise ChunkVoidError(
            f"reading {request.table}: it has no key any more; start the dump of this table again"
        ) from None


def _address_text(address: int) -> str:
    return f"({address // _PAGE},{address % _PAGE})"


# Ranges and keys of tables.

# Forces index lookups for a few thousand keys of a large table, whatever the planner estimates.
_BY_INDEX = (
    b"SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; "
    b"SET LOCAL enable_mergejoin = off"
)

_NOTHING: UInt8s = np.empty(0, dtype=np.uint8)

_UNESCAPED = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}


class PostgresChunkSelect:
    """Reads ranges and keys of tables within the caller's transactions. Used by one thread."""

    def __init__(self) -> None:
        self._copy = CopyReader()
        self._heap = HeapRanges(self._copy)
        self._widths: dict[TableName, float] = {}  # bytes per row of the last read
        self._operators: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}

    def range(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
        snapshot: Snapshot,
    ) -> ChunkRows:
        if schema.keyless and request.key_columns is None:
            return self._heap.range(connection, request, schema, snapshot)
        # Not by the primary key where another key matches rows: an update with missing columns that
        # moves a row from an unread range to a read one would not show that its key moved.
        key = bounded_key(request, schema)
        sql = self._sql(connection, schema, key, partitioned)
        data, count, rested_s, cut = self._range(connection, request, schema, key, sql)
        chunk = ChunkRows(
            schema=schema,
            rows=_rows(data, schema),
            snapshot=snapshot,
            last_key=_last_key(data, schema, key) if count else None,
            exhausted=count < request.limit_rows and not cut,
            rested_s=rested_s,
        )
        ambiguous = _has_shared_key(data, key, schema)
        if not ambiguous and chunk.last_key is not None and None in chunk.last_key:
            _, alike = self._copy.read(connection, sql.same_key(chunk.last_key, 2))
            ambiguous = alike > 1
        if ambiguous:
            raise ChunkRefusedError(
                f"reading a chunk of {schema.table}: rows share a key that holds NULL, and can't "
                "be distinguished: name NOT NULL columns in source.keys, or make their index "
                "UNIQUE NULLS NOT DISTINCT"
            )
        return chunk

    def _range(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        key: tuple[str, ...],
        sql: PostgresChunkSql,
    ) -> tuple[UInt8s, int, float, bool]:
        """COPY's text, the number of rows, the seconds of pauses between slices, and whether the
        limit of bytes cut rows off.
        """
        slices = Slices(request, schema, key)
        data, after, limit_bytes = _NOTHING, request.after, request.limit_bytes
        while True:
            query = sql.range(after, request.upto, slices.limit, request.where)
            with self._limited(connection, limit_bytes):
                data, rows = self._copy.read(connection, query, len(data), limit_bytes)
            more = slices.more(rows, len(data))
            texts = texts_of(connection.pgconn)
            if self._copy.cut or not more:
                self._widths[schema.table] = len(data) / max(slices.count, 1)
                data = data if texts is None else texts.to_utf8(data)
                return data, slices.count, slices.rested_s, self._copy.cut
            after = _last_key(data, schema, key, texts)

    @contextmanager
    def _limited(
        self, connection: psycopg.Connection[tuple[Any, ...]], limit_bytes: int
    ) -> Iterator[None]:
        """Keep the transaction and its lock when a COPY is cancelled at its limit."""
        if not limit_bytes:
            yield
            return
        connection.execute(b"SAVEPOINT tidelog_rows")
        yield
        if self._copy.cut:
            connection.execute(b"ROLLBACK TO SAVEPOINT tidelog_rows")
        connection.execute(b"RELEASE SAVEPOINT tidelog_rows")

    def boundary(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
    ) -> Key | None:
        """The key of the range's ``limit_rows``-th row; None if it has fewer. ``schema`` may have
        no number.
        """
        key = bounded_key(request, schema)
        sql = self._sql(connection, schema, key, partitioned)
        query = sql.boundary(request.after, request.upto, request.limit_rows, request.where)
        data, count = self._copy.read(connection, query)
        return _fields(data.tobytes()[:-1], texts_of(connection.pgconn)) if count else None

    def keys(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
        snapshot: Snapshot,
    ) -> ChunkRows:
        columns, keys = given_keys(request, schema)
        sql = self._sql(connection, schema, columns, partitioned)
        if not keys:
            return ChunkRows(schema, absent_rows([], schema), snapshot, None, True)
        connection.execute(_BY_INDEX)
        steps = KeySteps(request, self._widths.get(schema.table, 0.0))
        found: list[LogBatch] = []
        while (step := steps.next()) is not None:
            rows = self._of_keys(connection, step, schema, sql, steps.room)
            if rows is not None:
                found += rows
                steps.count_step(sum(part.payload_bytes for part in rows))
            elif not steps.note_overflow():
                break
        self._widths[schema.table] = steps.row_bytes
        return ChunkRows(schema, concatenate(found), snapshot, None, True, keys_read=steps.read)

    def _of_keys(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        sql: PostgresChunkSql,
        limit_bytes: int,
    ) -> list[LogBatch] | None:
        """The rows and the absent keys; None if the rows exceed the limit of bytes."""
        columns, keys = given_keys(request, schema)
        texts = texts_of(connection.pgconn)
        query = sql.of_keys(keys, request.where)
        with self._limited(connection, limit_bytes):
            data, count = self._copy.read(connection, query, limit_bytes=limit_bytes)
        if self._copy.cut:
            return None
        rows = _rows(data if texts is None else texts.to_utf8(data), schema)
        unique = columns in (schema.key, schema.match_key) and not any(None in key for key in keys)
        if unique and count == len(keys):
            return [rows]
        data, _ = self._copy.read(connection, sql.absent_keys(keys))
        lines = data.tobytes().split(b"\n")[:-1]
        absent = absent_rows(
            [_fields(line, texts) for line in lines], schema, columns if lines else None
        )
        return [rows, absent]

    def _sql(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        schema: TableSchema,
        key: tuple[str, ...],
        partitioned: bool,
    ) -> PostgresChunkSql:
        if not key:
            raise ChunkError(
                f"{schema.table} has no primary key and can't be dumped: add one, or name a "
                "unique key of it in source.keys"
            )
        known = (schema.fingerprint, key)
        if known not in self._operators:
            self._operators[known] = operator_schemas(connection, schema, key)
        return PostgresChunkSql(schema, key, self._operators[known], partitioned)


def _has_shared_key(data: UInt8s, names: Sequence[str], schema: TableSchema) -> bool:
    """Return True if two rows in key order share a key; only one that holds NULL can be."""
    if not may_hold_null(schema, names):
        return False
    places = [schema.column_index(name) for name in names]
    text = data.tobytes()
    before: list[bytes] = []
    for line in text.split(b"\n")[:-1] if rb"\N" in text else ():
        if rb"\N" in line:
            fields = line.split(b"\t")
            key = [fields[place] for place in places]
            if rb"\N" in key and key == before:
                return True
            before = key
    return False


def _rows(data: UInt8s, schema: TableSchema) -> LogBatch:
    return copy_text_rows(data, schema.relation_id, schema.schema_id, len(schema.columns))


def _last_key(
    data: UInt8s, schema: TableSchema, key: Sequence[str], texts: ServerText | None = None
) -> Key:
    """The key of the last row; COPY's text format escapes a newline inside a value."""
    tail = 4096
    while True:
        end = data[max(0, len(data) - tail) :].tobytes()
        at = end.rfind(b"\n", 0, len(end) - 1)
        if at >= 0 or tail >= len(data):
            break
        tail *= 16
    fields = _fields(end[at + 1 : -1], texts)
    return tuple(fields[schema.column_index(name)] for name in key)


def _fields(line: bytes, texts: ServerText | None = None) -> Key:
    """Parse one row of COPY's text format (manual, "COPY", File Formats)."""
    return tuple(
        None if field == rb"\N" else _unescape(field, texts) for field in line.split(b"\t")
    )


def _unescape(field: bytes, texts: ServerText | None) -> str:
    if b"\\" in field:
        field = re.sub(
            rb"\\(.)", lambda match: _UNESCAPED.get(match[1], match[1]), field, flags=re.DOTALL
        )
    return field.decode("utf-8", "surrogateescape") if texts is None else texts.decode(field)
