"""The rows of a chunk: its SELECT over a connection, and the result in the log's wire format."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from tidelog.errors import ChunkError, ChunkRefusedError, ChunkVoidError
from tidelog.model.records import LogBatch, Snapshot, UInt8s
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunk_sql import ChunkSql, operator_schemas
from tidelog.sources.postgres.copy_out import CopyReader
from tidelog.sources.postgres.key_sql import Key
from tidelog.wire.tuples import absent_rows, copy_text_rows

# A few thousand keys of a large table are looked up, whatever the planner thinks of its cache.
_BY_INDEX = (
    b"SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; "
    b"SET LOCAL enable_mergejoin = off"
)

# A chunk that is spread is read in slices of about a millisecond of the server's work.
SLICE_ROWS = 1_000
SLICE_BYTES = 256 << 10
LEAST_SLICE_ROWS = 50

_NOTHING: UInt8s = np.empty(0, dtype=np.uint8)

_UNESCAPED = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}


class ChunkSelect:
    """Reads ranges and keys of tables within transactions of the caller's. Used by one thread."""

    def __init__(self) -> None:
        self._copy = CopyReader()
        self._operators: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}

    def range(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
        snapshot: Snapshot,
    ) -> ChunkRows:
        # Not by the primary key where another key matches rows: an update that moves a row from an
        # unread range to a read one, and lacks columns, would not show that its key moved.
        key = _bounded_key(request, schema)
        sql = self._sql(connection, schema, key, partitioned)
        data, count, rested_s = self._range(connection, request, schema, key, sql)
        chunk = ChunkRows(
            schema=schema,
            rows=_rows(data, schema),
            snapshot=snapshot,
            last_key=_last_key(data, schema, key) if count else None,
            exhausted=count < request.limit_rows,
            rested_s=rested_s,
        )
        ambiguous = _share_a_key(data, [schema.column_index(name) for name in key], schema)
        if not ambiguous and chunk.last_key is not None and None in chunk.last_key:
            _, alike = self._copy.read(connection.pgconn, sql.same_key(chunk.last_key, 2))
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
        sql: ChunkSql,
    ) -> tuple[UInt8s, int, float]:
        """COPY's text, the number of rows, and how long it rested between slices.

        Slices are statements of one transaction, under its snapshot: together they are the rows of
        one statement. Where two rows may share a key, they would not be: there is but one slice.
        """
        spread = request.spread_s > 0 and not _may_hold_null(
            schema, [schema.column_index(name) for name in key]
        )
        data, count, rested_s, after = _NOTHING, 0, 0.0, request.after
        limit = min(SLICE_ROWS, request.limit_rows) if spread else request.limit_rows
        begun = time.monotonic()
        while True:
            query = sql.range(after, request.upto, limit, request.where)
            data, rows = self._copy.read(connection.pgconn, query, len(data))
            count += rows
            if rows < limit or count == request.limit_rows:
                return data, count, rested_s
            after = _last_key(data, schema, key)
            due = request.spread_s * count / request.limit_rows - (time.monotonic() - begun)
            if due > 0:
                time.sleep(due)
                rested_s += due
            by_bytes = SLICE_BYTES * count // len(data)
            limit = min(
                max(LEAST_SLICE_ROWS, min(SLICE_ROWS, by_bytes)), request.limit_rows - count
            )

    def boundary(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
    ) -> Key | None:
        """The key of the range's ``limit_rows``-th row; None if it has fewer. ``schema`` may be
        without a number.
        """
        key = _bounded_key(request, schema)
        sql = self._sql(connection, schema, key, partitioned)
        query = sql.boundary(request.after, request.upto, request.limit_rows, request.where)
        data, count = self._copy.read(connection.pgconn, query)
        return _fields(data.tobytes()[:-1]) if count else None

    def keys(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        request: ChunkRequest,
        schema: TableSchema,
        partitioned: bool,
        snapshot: Snapshot,
    ) -> ChunkRows:
        columns = request.key_columns or schema.key
        if not set(columns) <= set(schema.column_names):
            raise ChunkError(
                f"reading keys of {schema.table}: it has no columns {', '.join(columns)} (any more)"
            )
        sql = self._sql(connection, schema, columns, partitioned)
        keys = list(dict.fromkeys(request.keys or ()))
        if any(len(key) != len(sql.key) for key in keys):
            raise ChunkError(
                f"reading keys of {schema.table}: a key has another number of values than the "
                f"columns it stands for: {', '.join(sql.key)}"
            )
        if not keys:
            return ChunkRows(schema, absent_rows([], schema), snapshot, None, True)
        connection.execute(_BY_INDEX)
        data, count = self._copy.read(connection.pgconn, sql.of_keys(keys, request.where))
        rows = _rows(data, schema)
        unique = columns in (schema.key, schema.match_key) and not any(None in key for key in keys)
        if unique and count == len(keys):
            return ChunkRows(schema, rows, snapshot, None, True)
        data, _ = self._copy.read(connection.pgconn, sql.absent_keys(keys))
        lines = data.tobytes().split(b"\n")[:-1]
        absent = absent_rows([_fields(line) for line in lines], schema, columns if lines else None)
        return ChunkRows(schema, _joined(rows, absent), snapshot, None, True)

    def _sql(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        schema: TableSchema,
        key: tuple[str, ...],
        partitioned: bool,
    ) -> ChunkSql:
        if not key:
            raise ChunkError(
                f"{schema.table} has no primary key and can't be dumped: add one, or name a "
                "unique key of it in source.keys"
            )
        known = (schema.fingerprint, key)
        if known not in self._operators:
            self._operators[known] = operator_schemas(connection, schema, key)
        return ChunkSql(schema, key, self._operators[known], partitioned)


def _bounded_key(request: ChunkRequest, schema: TableSchema) -> tuple[str, ...]:
    """The columns that the request's bounds are of; raises ChunkVoidError if they no longer are."""
    key = schema.match_key
    lengths = {len(bound) for bound in (request.after, request.upto) if bound is not None}
    if request.key_columns not in (None, key) or not lengths <= {len(key)}:
        raise ChunkVoidError(
            f"reading a chunk of {schema.table}: the key that its rows are matched by "
            "has changed since the dump began; start the dump of this table again"
        )
    return key


def _share_a_key(data: UInt8s, places: Sequence[int], schema: TableSchema) -> bool:
    """Do two rows in key order have one key, in a key that may hold NULL? No other key can."""
    if not _may_hold_null(schema, places):
        return False
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


def _may_hold_null(schema: TableSchema, places: Sequence[int]) -> bool:
    return any(schema.columns[place].nullable for place in places)


def _rows(data: UInt8s, schema: TableSchema) -> LogBatch:
    return copy_text_rows(data, schema.relation_id, schema.schema_id, len(schema.columns))


def _last_key(data: UInt8s, schema: TableSchema, key: Sequence[str]) -> Key:
    """The key of the last row; a newline inside a value is escaped in COPY's text format."""
    tail = 4096
    while True:
        end = data[max(0, len(data) - tail) :].tobytes()
        at = end.rfind(b"\n", 0, len(end) - 1)
        if at >= 0 or tail >= len(data):
            break
        tail *= 16
    fields = _fields(end[at + 1 : -1])
    return tuple(fields[schema.column_index(name)] for name in key)


def _fields(line: bytes) -> Key:
    """One row of COPY's text format (manual, "COPY", File Formats)."""
    return tuple(None if field == rb"\N" else _unescape(field) for field in line.split(b"\t"))


def _unescape(field: bytes) -> str:
    if b"\\" in field:
        field = re.sub(
            rb"\\(.)", lambda match: _UNESCAPED.get(match[1], match[1]), field, flags=re.DOTALL
        )
    return field.decode("utf-8", "surrogateescape")


def _joined(first: LogBatch, second: LogBatch) -> LogBatch:
    """Both batches' records in one."""
    if not len(second):
        return first
    shifted = second.payload_offsets[1:] + first.payload_offsets[-1]
    return LogBatch(
        kind=np.concatenate([first.kind, second.kind]),
        schema_id=np.concatenate([first.schema_id, second.schema_id]),
        position=np.concatenate([first.position, second.position]),
        ordinal=np.concatenate([first.ordinal, second.ordinal]),
        xid=np.concatenate([first.xid, second.xid]),
        commit_ts=np.concatenate([first.commit_ts, second.commit_ts]),
        payload_offsets=np.concatenate([first.payload_offsets, shifted]),
        payload=np.concatenate([first.payload, second.payload]),
        resume=first.resume,
    )
