"""What tables a PostgreSQL database has, without taking any lock that writers wait for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.ports import SourceLoad, TableShape
from tidelog.sources.postgres.connect import connect, lsn_value, translated
from tidelog.sources.postgres.members import members_of
from tidelog.sources.postgres.schemas import SchemaFinder
from tidelog.sources.postgres.storage import rows_may_differ, storage_of

BLOCK_BYTES = 8192

# Ordinary and partitioned tables; a partition is part of its root and never a table of its own.
_TABLES = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> ALL (%s) AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""

# What is committed in all databases of the server, which share its cores and disk; and how far the
# furthest physical standby is behind in replaying; NULL if there is none, or if the
# user may not see (pg_monitor). One that has caught up on an idle source reports no lag; one that
# is behind and says nothing (it does so every 10 s, wal_receiver_status_interval) has that much.
_LOAD = """
SELECT (SELECT sum(xact_commit)::int8 FROM pg_catalog.pg_stat_database),
  extract(epoch FROM max(greatest(
  coalesce(r.replay_lag, '0'),
  CASE WHEN r.replay_lsn < (CASE WHEN pg_catalog.pg_is_in_recovery()
      THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END)
    THEN clock_timestamp() - r.reply_time - interval '15 s' END)))::float8
FROM pg_catalog.pg_stat_replication r
WHERE r.replay_lsn IS NOT NULL AND r.state <> 'backup' AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_replication_slots s
  WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
"""


class PostgresCatalogue:
    """`tidelog.ports.Catalogue`. Thread-safe: one connection, one call at a time.

    Args:
        dsn: connection string.
        own_schemas: namespaces that are never listed, e.g. that of the watermark table.
        own_tables: further tables, as ``schema.name``, that are never listed: the signal table.
        keys, publications: see `SchemaFinder`.
        published_by: publications; tables that none of them holds are not listed. None: all are
            listed, for Tidelog publishes them itself.
    """

    def __init__(
        self,
        dsn: str,
        *,
        own_schemas: Sequence[str] = ("tidelog",),
        own_tables: Sequence[str] = (),
        keys: Mapping[str, Sequence[str]] | None = None,
        publications: Sequence[str] = (),
        published_by: Sequence[str] | None = None,
    ) -> None:
        self._dsn = dsn
        self._own_tables = {TableName.parse(name) for name in own_tables}
        self._published_by = None if published_by is None else tuple(published_by)
        self._hidden = ["information_schema", *own_schemas]
        self._finder = SchemaFinder(keys, publications)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """Tables that match, sorted; roots of partitioned tables, not their partitions."""
        with self._lock, translated("listing tables"):
            connection = self._connected()
            found = matching_tables(connection, patterns, self._hidden)
            if self._published_by is not None:
                published = set().union(*members_of(connection, self._published_by).values())
                found = [name for name in found if name in published]
            return [name for name in found if name not in self._own_tables]

    def shape(self, table: TableName) -> TableShape | None:
        """The table as it is now; ``storage`` is for `rows_may_differ`."""
        with self._lock, translated(f"looking up {table}"):
            connection = self._connected()
            # Schema and storage must be of one moment.
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return table_shape(connection, self._finder, table, self._published_by or ())

    def rows_may_differ(self, before: str, after: str) -> bool:
        """May rows have changed without row events between two of a table's storages?"""
        return rows_may_differ(before, after)

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

    def load(self, reached: int) -> SourceLoad:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translated("asking for the replicas' lag"):
            row = self._connected().execute(_LOAD.encode()).fetchone()
        assert row is not None
        commits, lag_s = row
        return SourceLoad(max(0, self.position() - reached), lag_s, commits)

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
    connection: psycopg.Connection[tuple[Any, ...]],
    finder: SchemaFinder,
    table: TableName,
    published_by: Sequence[str] = (),
) -> TableShape | None:
    """The table as the connection's transaction sees it; None if it sees none."""
    found = finder.find(connection, table)
    if found is None:
        return None
    storage = storage_of(
        connection, found.schema.relation_id, published_by, found.schema.column_names
    )
    return TableShape(
        schema=found.schema,
        storage=storage.text,
        estimated_rows=storage.estimated_rows,
        estimated_bytes=storage.pages * BLOCK_BYTES,
    )
