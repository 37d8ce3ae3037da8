"""Runs a chunk's SELECTs, and converts their results to the log's wire format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg

from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.codecs.postgres.tuples import absent_rows, concatenate, copy_text_rows
from tidelog.errors import ChunkError, ChunkRefusedError
from tidelog.model.records import LogBatch, Snapshot, UInt8s
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunks.copy_out import CopyReader
from tidelog.sources.postgres.chunks.heap_ranges import HeapRanges
from tidelog.sources.postgres.chunks.key_sql import Key
from tidelog.sources.postgres.chunks.sql import PostgresChunkSql, operator_schemas
from tidelog.sources.postgres.encodings import texts_of
from tidelog.sources.ranges import KeySteps, Slices, bounded_key, given_keys, may_hold_null

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
                "be told apart: name NOT NULL columns in source.keys, or make their index UNIQUE "
                "NULLS NOT DISTINCT"
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
    """Return True if two rows in key order share a key that may hold NULL; no other key can be
    shared.
    """
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
