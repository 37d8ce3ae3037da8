"""The rows of a chunk: its SELECTs over a connection, and their result in dump rows."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import numpy as np

from tidelog.errors import ChunkError, ChunkRefusedError, ChunkVoidError
from tidelog.model.records import LogBatch, Snapshot
from tidelog.model.schema import Column, TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.mysql.chunk_sql import ChunkSql, KeyIndex, key_index
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.key_sql import Key, bytes_value
from tidelog.sources.mysql.result_rows import RowReader
from tidelog.wire import binlog_types as types
from tidelog.wire import bytes_keys
from tidelog.wire.charsets import BINARY_COLLATION, charset_of
from tidelog.wire.tuples import absent_rows

# A chunk that is spread is read in slices of about a millisecond of the server's work.
SLICE_ROWS = 1_000
SLICE_BYTES = 256 << 10
LEAST_SLICE_ROWS = 50

KEYS_AT_ONCE = (
    500  # MariaDB makes a join of 1000 values and more (in_predicate_conversion_threshold)
)


class ChunkSelect:
    """Reads ranges and keys of tables within transactions of the caller's. Used by one thread."""

    def __init__(self) -> None:
        self._rows = RowReader()
        self._indexes: dict[tuple[str, tuple[str, ...]], KeyIndex] = {}

    def forget(self) -> None:
        """Look indexes up again: one may be gone."""
        self._indexes.clear()

    def range(
        self,
        connection: Connection,
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        key = _bounded_key(request, schema)
        sql = self._sql(connection, schema, key)
        rows, rested_s = self._range(connection, request, schema, sql)
        count = len(rows)
        chunk = ChunkRows(
            schema=schema,
            rows=rows,
            snapshot=snapshot,
            last_key=_key_of(rows, count - 1, schema, key) if count else None,
            exhausted=count < request.limit_rows,
            rested_s=rested_s,
        )
        if chunk.last_key is not None and _may_hold_null(schema, key):
            self._check_ambiguity(connection, request, sql, chunk.last_key)
        return chunk

    def boundary(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema
    ) -> Key | None:
        """The key of the range's ``limit_rows``-th row; None if it has fewer. ``schema`` may be
        without a number.
        """
        key = _bounded_key(request, schema)
        sql = self._sql(connection, schema, key)
        query = sql.boundary(request.after, request.upto, request.limit_rows, request.where)
        found = self._rows.read(connection, query, sql.key_schema)
        return _key_of(found, 0, sql.key_schema, key) if len(found) else None

    def keys(
        self,
        connection: Connection,
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        columns = request.key_columns or schema.key
        if not set(columns) <= set(schema.column_names):
            raise ChunkError(
                f"reading keys of {schema.table}: it has no columns {', '.join(columns)} (any more)"
            )
        sql = self._sql(connection, schema, columns)
        keys = list(dict.fromkeys(request.keys or ()))
        if any(len(key) != len(columns) for key in keys):
            raise ChunkError(
                f"reading keys of {schema.table}: a key has another number of values than the "
                f"columns it stands for: {', '.join(columns)}"
            )
        absent = self._unspeakable(connection, schema, columns, keys)
        keys = [key for key in keys if key not in absent]
        found: list[LogBatch] = []
        for at in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[at : at + KEYS_AT_ONCE]
            found.append(self._rows.read(connection, sql.of_keys(some, request.where), schema))
            unique = sql.index.unique and not any(None in key for key in some)
            if not unique or len(found[-1]) < len(some):
                present = {int(row[0]) for row in connection.rows(sql.present_keys(some))}
                absent |= {key for place, key in enumerate(some) if place not in present}
        missing = [key for key in dict.fromkeys(request.keys or ()) if key in absent]
        known = [_cells_of(key, schema, columns) for key in missing]
        found.append(absent_rows(known, schema, columns if missing else None))
        rows = _joined(found)
        if len(found) > 2:  # a row may have two spellings of its key, in two batches
            rows = _distinct(rows)
        return ChunkRows(schema, rows, snapshot, None, True)

    def _range(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema, sql: ChunkSql
    ) -> tuple[LogBatch, float]:
        """The rows, and how long it rested between slices.

        Slices are statements of one transaction, under its snapshot: together they are the rows of
        one statement. Where two rows may share a key, they would not be: there is but one slice.
        """
        spread = request.spread_s > 0 and not _may_hold_null(schema, sql.key)
        limit = min(SLICE_ROWS, request.limit_rows) if spread else request.limit_rows
        slices: list[LogBatch] = []
        count, size, rested_s, after = 0, 0, 0.0, request.after
        begun = time.monotonic()
        while True:
            query = sql.range(after, request.upto, limit, request.where)
            rows = self._rows.read(connection, query, schema)
            slices.append(rows)
            count += len(rows)
            size += rows.payload_bytes
            if len(rows) < limit or count == request.limit_rows:
                return _joined(slices), rested_s
            after = _key_of(rows, len(rows) - 1, schema, sql.key)
            due = request.spread_s * count / request.limit_rows - (time.monotonic() - begun)
            if due > 0:
                time.sleep(due)
                rested_s += due
            by_bytes = SLICE_BYTES * count // max(size, 1)
            limit = min(
                max(LEAST_SLICE_ROWS, min(SLICE_ROWS, by_bytes)), request.limit_rows - count
            )

    def _check_ambiguity(
        self, connection: Connection, request: ChunkRequest, sql: ChunkSql, last: Key
    ) -> None:
        if connection.rows(sql.shared_keys(request.after, last)):
            raise ChunkRefusedError(
                f"reading a chunk of {sql.schema.table}: rows share a key that holds NULL, and "
                "can't be told apart: name NOT NULL columns in source.keys"
            )

    def _unspeakable(
        self,
        connection: Connection,
        schema: TableSchema,
        columns: Sequence[str],
        keys: Sequence[Key],
    ) -> set[Key]:
        """Keys with characters that a column's character set does not have: no row has such a key,
        and comparing with them is an error.
        """
        found: set[Key] = set()
        for place, name in enumerate(columns):
            column = schema.columns[schema.column_index(name)]
            collation = types.collation(column)
            charset = charset_of(collation)
            if column.type_id not in types.CHARACTER or collation in (0, BINARY_COLLATION):
                continue
            if charset is None or charset == "utf8mb4":
                continue
            texts = [key[place] for key in keys]
            odd = list(dict.fromkeys(t for t in texts if t is not None and not t.isascii()))
            for at in range(0, len(odd), KEYS_AT_ONCE):
                some = odd[at : at + KEYS_AT_ONCE]
                tests = ", ".join(_survives(text, charset) for text in some)
                row = connection.row(f"SELECT {tests}")
                lost = {text for text, kept in zip(some, row or (), strict=True) if not kept}
                found |= {key for key in keys if key[place] in lost}
        return found

    def _sql(self, connection: Connection, schema: TableSchema, key: tuple[str, ...]) -> ChunkSql:
        if not key:
            raise ChunkError(
                f"{schema.table} has no primary key and can't be dumped: add one, or name a "
                "unique key of it in source.keys"
            )
        known = (schema.fingerprint, key)
        if known not in self._indexes:
            self._indexes[known] = key_index(connection, schema.table, key)
        return ChunkSql(schema, key, self._indexes[known])


def _cells_of(key: Key, schema: TableSchema, columns: Sequence[str]) -> Key:
    """The texts of a row's cells: of bytes, the bytes, with their padding."""
    return tuple(
        text
        if text is None or column.logical != bytes_keys.LOGICAL
        else bytes_value(column, text).decode("utf-8", "surrogateescape")
        for column, text in zip(
            (schema.columns[schema.column_index(name)] for name in columns), key, strict=True
        )
    )


def _survives(text: str, charset: str) -> str:
    value = f"_utf8mb4 X'{text.encode().hex()}'"
    converted = f"CONVERT(CONVERT({value} USING {charset}) USING utf8mb4)"
    return f"{converted} = {value} COLLATE utf8mb4_bin"


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


def _may_hold_null(schema: TableSchema, key: Sequence[str]) -> bool:
    return any(schema.columns[schema.column_index(name)].nullable for name in key)


def _key_of(rows: LogBatch, place: int, schema: TableSchema, key: Sequence[str]) -> Key:
    texts = cells(rows, place)
    return tuple(_key_text(schema.columns[at], texts[at]) for at in map(schema.column_index, key))


def _key_text(column: Column, text: str | None) -> str | None:
    if text is None or column.logical != bytes_keys.LOGICAL:
        return text
    return bytes_keys.text_of(text.encode("utf-8", "surrogateescape"))


def cells(rows: LogBatch, place: int) -> list[str | None]:
    """One dump row's texts."""
    start, end = rows.payload_offsets[place], rows.payload_offsets[place + 1]
    data = rows.payload[start:end].tobytes()
    texts: list[str | None] = []
    at = 8  # behind tag, relation, tuple tag and the number of columns
    while at < len(data):
        tag = data[at : at + 1]
        at += 1
        if tag == b"n":
            texts.append(None)
            continue
        (size,) = struct.unpack_from("!I", data, at)
        at += 4
        texts.append(data[at : at + size].decode("utf-8", "surrogateescape"))
        at += size
    return texts


def _distinct(rows: LogBatch) -> LogBatch:
    """Without the second one of equal rows."""
    bounds = rows.payload_offsets.tolist()
    data = rows.payload.tobytes()
    seen: set[bytes] = set()
    keep = np.ones(len(rows), np.bool_)
    for place in range(len(rows)):
        payload = data[bounds[place] : bounds[place + 1]]
        keep[place] = payload not in seen
        seen.add(payload)
    return rows if keep.all() else rows.filter(keep)


def _joined(batches: Sequence[LogBatch]) -> LogBatch:
    """All batches' records in one."""
    some = [batch for batch in batches if len(batch)] or [batches[0]]
    if len(some) == 1:
        return some[0]
    ends = np.cumsum([batch.payload_bytes for batch in some])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ChunkError(
            f"a chunk's rows take {int(ends[-1]) >> 20} MiB, more than a segment can hold: "
            "lower dump.chunk_rows"
        )
    offsets = [some[0].payload_offsets]
    for before, batch in zip(ends, some[1:], strict=False):
        offsets.append(batch.payload_offsets[1:] + np.int32(before))
    return LogBatch(
        kind=np.concatenate([batch.kind for batch in some]),
        schema_id=np.concatenate([batch.schema_id for batch in some]),
        position=np.concatenate([batch.position for batch in some]),
        ordinal=np.concatenate([batch.ordinal for batch in some]),
        xid=np.concatenate([batch.xid for batch in some]),
        commit_ts=np.concatenate([batch.commit_ts for batch in some]),
        payload_offsets=np.concatenate(offsets),
        payload=np.concatenate([batch.payload for batch in some]),
        resume=some[0].resume,
    )
