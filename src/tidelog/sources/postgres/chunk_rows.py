"""The rows of a chunk: its SELECT over a connection, and the result in the log's wire format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from tidelog.errors import ChunkError, ChunkVoidError
from tidelog.model.records import LogBatch, Snapshot, UInt8s
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunk_sql import ChunkSql, Key, operator_schemas
from tidelog.sources.postgres.copy_out import CopyReader
from tidelog.wire.tuples import absent_rows, copy_text_rows

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
        self._operators: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}

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
        key = schema.match_key
        sql = self._sql(connection, schema, key, partitioned)
        for bound in (request.after, request.upto):
            if bound is not None and len(bound) != len(key):
                raise ChunkVoidError(
                    f"reading a chunk of {schema.table}: the key that its rows are matched by "
                    "has changed since the dump began; start the dump of this table again"
                )
        query = sql.range(request.after, request.upto, request.limit_rows, request.where)
        data, count = self._copy.read(connection.pgconn, query)
        return ChunkRows(
            schema=schema,
            rows=_rows(data, schema),
            snapshot=snapshot,
            last_key=_last_key(data, schema, key) if count else None,
            exhausted=count < request.limit_rows,
        )

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
        data, _ = self._copy.read(connection.pgconn, sql.of_keys(keys, request.where))
        rows = _rows(data, schema)
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
        known = (schema.schema_id, key)
        if known not in self._operators:
            self._operators[known] = operator_schemas(connection, schema, key)
        return ChunkSql(schema, key, self._operators[known], partitioned)


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
