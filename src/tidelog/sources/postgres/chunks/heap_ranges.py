"""Reads a table without a key in ranges of row addresses (``ctid``), all under one snapshot.

A row version that a snapshot can see keeps its address as long as the snapshot is in use: neither
VACUUM nor page pruning removes it, and what rewrites the table (VACUUM FULL, CLUSTER, TRUNCATE) is
seen as another storage of the table. PostgreSQL 14 and later find such a range without reading the
pages before it (Tid Range Scan).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg

from tidelog.codecs.postgres.tuples import copy_text_rows
from tidelog.errors import ChunkVoidError
from tidelog.model.records import Snapshot, UInt8s
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.postgres.chunks.copy_out import CopyReader
from tidelog.sources.postgres.connect import quote_ident
from tidelog.sources.postgres.encodings import texts_of

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
        part, address = _address(request)
        parts = connection.execute(_PARTS.encode(), (schema.relation_id, part)).fetchall()
        data: UInt8s = np.empty(0, np.uint8)
        rows, exhausted = 0, True
        for place, (oid, namespace, name, pages) in enumerate(parts):
            begin, end = address if oid == part else 0, pages * _PAGE
            while begin < end and not rows:
                table = quote_ident(namespace, name)
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
        columns = ", ".join(quote_ident(column.name) for column in schema.columns)
        where = f"ctid >= '{_text(begin)}' AND ctid < '{_text(upto)}'"
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


def _address(request: ChunkRequest) -> tuple[int, int]:
    if request.after is None:
        return 0, 0
    try:
        part, address = request.after
        return int(part or ""), int(address or "")
    except ValueError:
        raise ChunkVoidError(
            f"reading {request.table}: it has no key any more; start the dump of this table again"
        ) from None


def _text(address: int) -> str:
    return f"({address // _PAGE},{address % _PAGE})"
