"""Lists and describes a PostgreSQL database's tables, without any lock that writers wait for.

Whether the catalogue changed, and for which tables, is checked often and must be cheap. Every
catalogue row carries the transaction that wrote it (``xmin``), which neither VACUUM nor a rewrite
of the catalogue changes. So sums of hashes of ``xmin`` differ once a row was added, altered or
dropped: over whole catalogues (`catalogue_stamp`, one scan of each and one row of result), and by
table (`table_versions`). Both only show that something changed;
`tidelog.sources.postgres.catalogue.storage` finds out what it was and whether it matters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from tidelog.codecs.postgres.pgoutput import lsn_text
from tidelog.errors import UnsupportedTableError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, double_quoted
from tidelog.ports import Retention, SourceLoad, StateStore, TableShape, UnsupportedReason
from tidelog.sources.postgres.catalogue.publication_plan import members_of
from tidelog.sources.postgres.catalogue.schemas import (
    PostgresFoundTable,
    PostgresSchemaFinder,
    one_of,
)
from tidelog.sources.postgres.catalogue.storage import (
    FIRST_USER_OID,
    estimated_rows,
    rows_may_differ,
    storages_of,
)
from tidelog.sources.postgres.chunks.reader import chunk_errors
from tidelog.sources.postgres.connect import CATALOGUE_SETTINGS, Connection, connect, lsn_value
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.ranges import only_condition_errors

# Changes of the catalogue.


# Hashed as text: there is no cast from xid to a number, and age() moves with every transaction for
# rows that initdb wrote.
_XMIN = "pg_catalog.hashtextextended({alias}.xmin::text, {seed})"

# The catalogues that `tidelog.sources.postgres.catalogue.storage`, `publication` and `schemas`
# read.
_STAMPED = (
    "pg_class",
    "pg_attribute",
    "pg_attrdef",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_enum",
    "pg_publication",
    "pg_publication_rel",
    "pg_auth_members",  # a table may have become publishable by a new membership
    "pg_database",
)
_SUM = (
    "(SELECT count(*) || '.' || coalesce(sum({version}), 0) FROM pg_catalog.{catalogue} c {only})"
)
_NAMESPACES_SINCE = 150_000

_VERSIONS = """
WITH RECURSIVE captured AS (
  SELECT c.oid, n.nspname, c.relname,
    (pg_catalog.has_schema_privilege(n.oid, 'USAGE')
      AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))::int AS readable
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
    AND n.nspname <> ALL (%(hidden)s) AND n.nspname !~ '^pg_'
), tree AS (
  SELECT captured.oid AS root, captured.oid, 0::numeric AS inherits FROM captured
  UNION ALL
  SELECT tree.root, i.inhrelid, {inherits}::numeric
  FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
), columns AS (
  SELECT a.attrelid AS oid, sum({columns}) AS version,
    max(a.atttypid::int8) >= {first_user_oid} AS typed
  FROM pg_catalog.pg_attribute a WHERE a.attnum > 0 GROUP BY 1
), indexes AS (
  SELECT i.indrelid AS oid, sum({indexes}) AS version FROM pg_catalog.pg_index i GROUP BY 1
), defaults AS (
  SELECT d.adrelid AS oid, sum({defaults}) AS version FROM pg_catalog.pg_attrdef d GROUP BY 1
), members AS (
  SELECT r.prrelid AS oid, sum({members}) AS version
  FROM pg_catalog.pg_publication_rel r GROUP BY 1
), everywhere AS (
  SELECT coalesce(sum({publications}), 0) {namespaces} AS version
  FROM pg_catalog.pg_publication p
), used AS (
  SELECT a.atttypid AS oid FROM pg_catalog.pg_attribute a WHERE a.attnum > 0
  UNION SELECT b.typbasetype FROM pg_catalog.pg_type b
  UNION SELECT r.rngsubtype FROM pg_catalog.pg_range r
), composites AS (
  SELECT DISTINCT y.typrelid AS oid FROM pg_catalog.pg_type y
  WHERE y.typrelid <> 0
    AND (y.oid IN (SELECT oid FROM used) OR y.typarray IN (SELECT oid FROM used))
), types AS (
  SELECT (SELECT coalesce(sum({labels}), 0) FROM pg_catalog.pg_enum e)
    + (SELECT coalesce(sum(columns.version), 0) FROM columns JOIN composites USING (oid)) AS version
)
SELECT captured.nspname, captured.relname, concat_ws('.', captured.oid::text, captured.readable,
  sum({relations} + tree.inherits + coalesce(columns.version, 0)
    + coalesce(indexes.version, 0) + coalesce(defaults.version, 0) + coalesce(members.version, 0)),
  (SELECT version FROM everywhere),
  CASE WHEN bool_or(columns.typed) THEN (SELECT version FROM types) END)
FROM captured JOIN tree ON tree.root = captured.oid
JOIN pg_catalog.pg_class c ON c.oid = tree.oid
LEFT JOIN columns ON columns.oid = tree.oid LEFT JOIN indexes ON indexes.oid = tree.oid
LEFT JOIN defaults ON defaults.oid = tree.oid LEFT JOIN members ON members.oid = tree.oid
GROUP BY captured.oid, captured.nspname, captured.relname, captured.readable
"""
_OF_NAMESPACES = "+ (SELECT coalesce(sum({members}), 0) FROM pg_catalog.pg_publication_namespace s)"


def catalogue_stamp(connection: Connection) -> str:
    """A text that stays equal only while no row of these catalogues changes."""
    catalogues = list(_STAMPED)
    if connection.info.server_version >= _NAMESPACES_SINCE:
        catalogues.append("pg_publication_namespace")
    sums = ", ".join(
        _SUM.format(
            version=_xmin("c", 0),
            catalogue=name,
            only="WHERE c.attnum > 0" if name == "pg_attribute" else "",
        )
        for name in catalogues
    )
    row = connection.execute(f"SELECT concat_ws(' ', {sums})".encode()).fetchone()
    assert row is not None
    return str(row[0])


def table_versions(
    connection: Connection, patterns: Sequence[str], hidden_schemas: Sequence[str]
) -> dict[TableName, str]:
    """The permanent tables that match and are in none of the hidden schemas, sorted. Each has a
    text that stays equal only while its catalogue rows are the same.
    """
    query = _versions_query(connection.info.server_version)
    # A plan for the catalogues' usual size is good enough, and JIT compilation costs more than the
    # query.
    with connection.transaction():
        connection.execute(b"SET LOCAL jit = off")
        rows = connection.execute(query.encode(), {"hidden": list(hidden_schemas)}).fetchall()
    found = {TableName(namespace, name): str(version) for namespace, name, version in rows}
    return {name: found[name] for name in sorted(found) if matches(patterns, name)}


def _versions_query(server_version: int) -> str:
    parts: Mapping[str, str] = {
        name: _xmin(alias, seed)
        for seed, (name, alias) in enumerate(
            {
                "inherits": "i",
                "columns": "a",
                "indexes": "i",
                "defaults": "d",
                "members": "r",
                "publications": "p",
                "labels": "e",
                "relations": "c",
            }.items()
        )
    }
    namespaces = ""
    if server_version >= _NAMESPACES_SINCE:
        namespaces = _OF_NAMESPACES.format(members=_xmin("s", len(parts)))
    return _VERSIONS.format(**parts, namespaces=namespaces, first_user_oid=FIRST_USER_OID)


def _xmin(alias: str, seed: int) -> str:
    return _XMIN.format(alias=alias, seed=seed)


# The catalogue.

BLOCK_BYTES = 8192
_PREPARED_AFTER = 5  # executions of a query
_TABLES_AT_ONCE = 500

# Ordinary and partitioned tables; a partition belongs to its root and is never listed.
_TABLES = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> ALL (%s) AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""

_PARTITIONED = """
SELECT n.nspname, r.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = pg_catalog.pg_partition_root(c.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f') AND s.nspname = %s AND c.relname = %s
"""

# Commits in all databases of the server, which share its cores and disk; the replay lag of the
# slowest physical standby; NULL if there is none, or if the user may not see it (pg_monitor). A
# standby that has caught up on an idle source reports no lag; one that is behind and sends nothing
# (it normally does every 10 s, wal_receiver_status_interval) lags by that time. Then the log that
# the slot keeps, and what may be written until that is removed (NULL: no such limit).
_LOAD = """
SELECT (SELECT sum(xact_commit)::int8 FROM pg_catalog.pg_stat_database),
  (SELECT extract(epoch FROM max(greatest(
    coalesce(r.replay_lag, '0'),
    CASE WHEN r.replay_lsn < l.here
      THEN clock_timestamp() - r.reply_time - interval '15 s' END)))::float8
  FROM pg_catalog.pg_stat_replication r
  WHERE r.replay_lsn IS NOT NULL AND r.state <> 'backup' AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_replication_slots s
    WHERE s.active_pid = r.pid AND s.slot_type = 'logical')),
  l.flushed::text,
  pg_catalog.pg_wal_lsn_diff(l.here, s.restart_lsn)::int8,
  s.safe_wal_size
FROM (SELECT
    CASE WHEN recovers THEN pg_catalog.pg_last_wal_replay_lsn()
      ELSE pg_catalog.pg_current_wal_lsn() END AS here,
    CASE WHEN recovers THEN pg_catalog.pg_last_wal_replay_lsn()
      ELSE pg_catalog.pg_current_wal_flush_lsn() END AS flushed
  FROM pg_catalog.pg_is_in_recovery() AS recovers) l
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
"""


_PAGE: Final = 8192
"""Bytes of a page of WAL (``XLOG_BLCKSZ``). The server flushes whole pages, also where the last
record on them is not whole, and the rest seconds later if nothing is committed
(``XLogBackgroundFlush``).
"""
_RECORD: Final = 32 * _PAGE
"""Bytes up to which a record is common: those with whole pages of tables."""


_COLUMNS = """
SELECT n.nspname::text, c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
FROM unnest(%s::text[], %s::text[]) AS t(namespace, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = t.namespace
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY 1, 2
"""

_NAMES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[])
"""


class PostgresCatalogue:
    """`tidelog.ports.Catalogue`. Thread-safe: one connection, one call at a time.

    Args:
        dsn: connection string.
        own_schemas: namespaces that are never listed, e.g. that of the watermark table.
        metadata_tables: other tables that are never listed, as ``schema.name``: the signal table.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        published_by_others: list only tables of the finder's publications; otherwise Tidelog
            publishes the tables itself, and all are listed.
        slot: the slot whose retention `load` reports.
    """

    def __init__(
        self,
        dsn: str,
        *,
        own_schemas: Sequence[str] = ("tidelog",),
        metadata_tables: Sequence[str] = (),
        finder: PostgresSchemaFinder | None = None,
        published_by_others: bool = False,
        slot: str = "",
    ) -> None:
        self._dsn = dsn
        self._slot = slot
        self._metadata_tables = {TableName.parse(name) for name in metadata_tables}
        self._published_by_others = published_by_others
        self._hidden = ["information_schema", *own_schemas]
        self._finder = finder or PostgresSchemaFinder()
        self._publications = tuple(self._finder.publications)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """The tables that match, sorted; roots of partitioned tables, not their partitions."""
        with self._lock, translate_errors("listing tables"):
            connection = self._get_connection()
            return self._listed(connection, matching_tables(connection, patterns, self._hidden))

    def shape(self, table: TableName) -> TableShape | None:
        """The table's current shape; ``storage`` is for `rows_may_differ`. Raises
        UnsupportedTableError if the role may not read it, or ``source.keys`` does not fit it.
        """
        return one_of(self._shapes([table]), table)

    def shapes(
        self, tables: Sequence[TableName]
    ) -> dict[TableName, TableShape | UnsupportedReason]:
        """See `tidelog.ports.Catalogue`."""
        found: dict[TableName, TableShape | UnsupportedReason] = {}
        for first in range(0, len(tables), _TABLES_AT_ONCE):
            shapes = self._shapes(tables[first : first + _TABLES_AT_ONCE])
            for table, shape in shapes.items():
                found[table] = (
                    shape
                    if isinstance(shape, TableShape)
                    else UnsupportedReason(shape.reason, shape.remedy, only_dumps=shape.only_dumps)
                )
        return found

    def _shapes(
        self, tables: Sequence[TableName]
    ) -> dict[TableName, TableShape | UnsupportedTableError]:
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        with self._lock, translate_errors(f"looking up {tables[0]}{more}"):
            connection = self._get_connection()
            # Schema and storage must be of one moment.
            with connection.transaction(), _prepared(connection):
                isolation = b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                connection.execute(isolation, prepare=False)
                shapes = table_shapes(connection, self._finder, tables, self._publications)
                return shapes | _unreadable(connection, shapes)

    def columns(self, tables: Sequence[TableName]) -> dict[TableName, tuple[str, ...]]:
        """See `tidelog.ports.Catalogue`."""
        names = ([table.namespace for table in tables], [table.name for table in tables])
        with self._lock, translate_errors("listing columns"):
            rows = self._get_connection().execute(_COLUMNS.encode(), names).fetchall()
        return {TableName(namespace, name): tuple(columns) for namespace, name, columns in rows}

    def names(self, relation_ids: Sequence[int]) -> dict[int, TableName]:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("looking up names"):
            rows = self._get_connection().execute(_NAMES.encode(), (list(relation_ids),)).fetchall()
        return {number: TableName(namespace, name) for number, namespace, name in rows}

    def partitioned(self, table: TableName) -> TableName | None:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors(f"looking up {table}"):
            names = [table.namespace, table.name]
            row = self._get_connection().execute(_PARTITIONED, names).fetchone()
        return None if row is None else TableName(*row)

    def unseen(
        self, tables: Sequence[TableName], patterns: Sequence[str], state: StateStore
    ) -> dict[TableName, str]:
        """Nothing: every account sees all tables."""
        return {}

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("looking up estimates"):
            return estimated_rows(self._get_connection(), tables)

    def check_condition(self, table: TableName, condition: str) -> None:
        """See `tidelog.ports.Catalogue`."""
        name = double_quoted(table.namespace, table.name)
        with self._lock, only_condition_errors(), chunk_errors(str(table)):
            connection = self._get_connection()
            with connection.transaction():
                connection.execute("SET TRANSACTION READ ONLY")
                # The newline ends a comment. Planning looks up names and types; no row is read.
                connection.execute(f"SELECT FROM {name} WHERE ({condition}\n) LIMIT 0".encode())

    def stamp(self) -> str | None:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("reading the catalogue"):
            return catalogue_stamp(self._get_connection())

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("reading the catalogue"):
            connection = self._get_connection()
            found = table_versions(connection, patterns, self._hidden)
            listed = self._listed(connection, list(found))
            settings = self._finder.settings_version
            return {name: f"{found[name]}{settings}" for name in listed}

    def rows_may_differ(self, before: str, after: str) -> bool:
        """Return True if rows may differ between two of a table's storages without row events."""
        return rows_may_differ(before, after)

    def position(self) -> int:
        """The end of the source's log: all transactions that are committed by now are before it."""
        with self._lock, translate_errors("reading the source's position"):
            row = (
                self._get_connection()
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
        with self._lock, translate_errors("reading the server's load"):
            row = self._get_connection().execute(_LOAD.encode(), (self._slot,)).fetchone()
        assert row is not None
        commits, replica_lag_s, flushed, retained, spare = row
        end = lsn_value(flushed)
        if end % _PAGE == 0 and reached < end <= reached + _RECORD:
            end = reached  # the last record may not be whole, so that nobody can read it
        return SourceLoad(
            max(0, end - reached),
            end,
            lsn_text(reached),
            Retention(retained, spare),
            replica_lag_s,
            commits,
        )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _listed(
        self, connection: psycopg.Connection[tuple[Any, ...]], found: list[TableName]
    ) -> list[TableName]:
        """The tables without metadata tables; where others publish: the published ones."""
        if self._published_by_others:
            published = set().union(*members_of(connection, self._publications).values())
            found = [name for name in found if name in published]
        return [name for name in found if name not in self._metadata_tables]

    def _get_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._dsn, purpose="catalogue", settings=CATALOGUE_SETTINGS)
        return self._connection


@contextmanager
def _prepared(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Prepare the queries of a table's shape, which name catalogues only: planning them would take
    most of the time.
    """
    connection.prepare_threshold = _PREPARED_AFTER
    try:
        yield
    finally:
        connection.prepare_threshold = None


def matching_tables(
    connection: psycopg.Connection[tuple[Any, ...]],
    patterns: Sequence[str],
    hidden_schemas: Sequence[str],
) -> list[TableName]:
    """The permanent tables that match and are in none of the hidden schemas, sorted."""
    rows = connection.execute(_TABLES.encode(), (list(hidden_schemas),)).fetchall()
    names = (TableName(namespace, name) for namespace, name in rows)
    return sorted(name for name in names if matches(patterns, name))


def table_shape(
    connection: psycopg.Connection[tuple[Any, ...]], finder: PostgresSchemaFinder, table: TableName
) -> TableShape | None:
    """The table's shape as the connection's transaction sees it; None if it does not exist. Raises
    UnsupportedTableError if ``source.keys`` does not fit it.
    """
    return one_of(table_shapes(connection, finder, [table]), table)


def table_shapes(
    connection: psycopg.Connection[tuple[Any, ...]],
    finder: PostgresSchemaFinder,
    tables: Sequence[TableName],
    publications: Sequence[str] = (),
) -> dict[TableName, TableShape | UnsupportedTableError]:
    """Those of the tables that exist, as `table_shape` or with its error; by a few queries."""
    found = finder.find_all(connection, tables)
    fitting = [
        f.schema for f in found.values() if isinstance(f, PostgresFoundTable) and not f.unfit
    ]
    storages = storages_of(connection, fitting, publications)
    shapes: dict[TableName, TableShape | UnsupportedTableError] = {}
    for table, one in found.items():
        if isinstance(one, UnsupportedTableError):
            shapes[table] = one
        elif one.unfit is not None:
            shapes[table] = UnsupportedTableError(table, one.unfit, only_dumps=True)
        else:
            storage = storages[one.schema.relation_id]
            shapes[table] = TableShape(
                schema=one.schema,
                storage=storage.text,
                estimated_rows=storage.estimated_rows,
                estimated_bytes=storage.pages * BLOCK_BYTES,
            )
    return shapes


def _unreadable(
    connection: psycopg.Connection[tuple[Any, ...]],
    shapes: Mapping[TableName, TableShape | UnsupportedTableError],
) -> dict[TableName, UnsupportedTableError]:
    """An error, with the grants, for each of the tables that the role may not read."""
    named = {
        shape.schema.relation_id: table
        for table, shape in shapes.items()
        if isinstance(shape, TableShape)
    }
    rows = connection.execute(
        b"SELECT oid::int8, has_schema_privilege(relnamespace, 'USAGE'), "
        b"has_table_privilege(oid, 'SELECT') "
        b"FROM pg_catalog.pg_class WHERE oid = ANY (%s::int8[]::oid[])",
        (list(named),),
    ).fetchall()
    user = double_quoted(connection.info.user)
    found = {}
    for oid, usage, select in rows:
        schema, name = (
            double_quoted(named[oid].namespace),
            double_quoted(named[oid].namespace, named[oid].name),
        )
        grants = [
            *([] if usage else [f"GRANT USAGE ON SCHEMA {schema} TO {user};"]),
            *([] if select else [f"GRANT SELECT ON {name} TO {user};"]),
        ]
        if grants:
            found[named[oid]] = UnsupportedTableError(
                named[oid],
                "the role may not read it, so it can't dump it",
                " ".join(grants),
                only_dumps=True,
            )
    return found
