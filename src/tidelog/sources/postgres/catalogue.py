"""What tables a PostgreSQL database has, without taking any lock that writers wait for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from tidelog.model.schema import TableName
from tidelog.ports import TableShape
from tidelog.sources.postgres.connect import connect, lsn_value, translated
from tidelog.sources.postgres.patterns import matches
from tidelog.sources.postgres.schemas import SchemaFinder

BLOCK_BYTES = 8192

# Ordinary and partitioned tables; a partition is part of its root and never a table of its own.
_TABLES = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> ALL (%s) AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""

# The leaves of a table, itself if it has no partitions. attmissingval is what ADD COLUMN with a
# default stores instead of rewriting rows.
_STORAGE = """
WITH RECURSIVE tree AS (
  SELECT %s::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT c.oid::int8, c.relkind::text, c.relfilenode::int8,
  (SELECT coalesce(string_agg(a.attnum || '=' || md5(a.attmissingval::text), ',' ORDER BY a.attnum),
     '') FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.atthasmissing AND NOT a.attisdropped AND a.attgenerated = ''),
  c.reltuples::float8, c.relpages::int8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
ORDER BY c.oid
"""


class PostgresCatalogue:
    """`tidelog.ports.Catalogue`. Thread-safe: one connection, one call at a time.

    Args:
        dsn: connection string.
        own_schemas: namespaces that are never listed, e.g. that of the watermark table.
        keys: surrogate keys by table pattern, see `SchemaFinder`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        own_schemas: Sequence[str] = ("tidelog",),
        keys: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._dsn = dsn
        self._hidden = ["information_schema", *own_schemas]
        self._finder = SchemaFinder(keys)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """Tables that match, sorted; roots of partitioned tables, not their partitions."""
        with self._lock, translated("listing tables"):
            return matching_tables(self._connected(), patterns, self._hidden)

    def shape(self, table: TableName) -> TableShape | None:
        """The table as it is now. ``storage`` also changes with VACUUM FULL and CLUSTER."""
        with self._lock, translated(f"looking up {table}"):
            connection = self._connected()
            # Schema and storage must be of one moment.
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return table_shape(connection, self._finder, table)

    def position(self) -> int:
        """The end of the source's log: all that is committed by now lies before it."""
        with self._lock, translated("asking for the source's position"):
            row = (
                self._connected()
                .execute(
                    "SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() "
                    "THEN pg_catalog.pg_last_wal_replay_lsn() "
                    "ELSE pg_catalog.pg_current_wal_flush_lsn() END)::text"
                )
                .fetchone()
            )
        assert row is not None
        return lsn_value(row[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._dsn, purpose="catalogue")
        return self._connection


def matching_tables(
    connection: psycopg.Connection[tuple[Any, ...]],
    patterns: Sequence[str],
    hidden_schemas: Sequence[str],
) -> list[TableName]:
    """Permanent tables that match and are in none of the hidden schemas, sorted."""
    rows = connection.execute(_TABLES.encode(), (list(hidden_schemas),)).fetchall()
    names = (TableName(namespace, name) for namespace, name in rows)
    return sorted(name for name in names if matches(patterns, name))


def table_shape(
    connection: psycopg.Connection[tuple[Any, ...]], finder: SchemaFinder, table: TableName
) -> TableShape | None:
    """The table as the connection's transaction sees it; None if it sees none."""
    found = finder.find(connection, table)
    if found is None:
        return None
    rows = connection.execute(_STORAGE.encode(), (found.schema.relation_id,)).fetchall()
    parts = [(oid, kind, filenode, missing) for oid, kind, filenode, missing, *_ in rows]
    leaves = [row for row in rows if row[1] != "p"]
    return TableShape(
        schema=found.schema,
        storage=hashlib.sha256(repr(parts).encode()).hexdigest()[:32],
        estimated_rows=int(sum(max(row[4], 0.0) for row in leaves)),
        estimated_bytes=sum(row[5] for row in leaves) * BLOCK_BYTES,
    )
