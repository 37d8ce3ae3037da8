"""Detects cheaply whether the catalogue changed, and for which tables, as it is checked often.

Every catalogue row carries the transaction that wrote it (``xmin``), which neither VACUUM nor a
rewrite of the catalogue changes. So sums of hashes of ``xmin`` differ once a row was added, altered
or dropped: over whole catalogues (`stamp`, one scan of each and one row of result), and by table
(`versions`). Both only show that something changed; `tidelog.sources.postgres.catalogue.storage`
finds out what it was and whether it matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.sources.postgres.catalogue.storage import FIRST_USER_OID

Connection = psycopg.Connection[tuple[Any, ...]]

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
), composites AS (
  SELECT DISTINCT y.typrelid AS oid FROM pg_catalog.pg_type y
  WHERE y.typrelid <> 0 AND (y.oid IN (SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE a.attnum > 0 UNION ALL SELECT b.typbasetype FROM pg_catalog.pg_type b)
    OR y.typarray IN (SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attnum > 0))
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


def stamp(connection: Connection) -> str:
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


def versions(
    connection: Connection, patterns: Sequence[str], hidden_schemas: Sequence[str]
) -> dict[TableName, str]:
    """The permanent tables that match and are in none of the hidden schemas, sorted.

    Each has a text that stays equal only while its catalogue rows are the same.
    """
    query = _query(connection.info.server_version)
    # A plan for the catalogues' usual size is good enough, and JIT compilation costs more than the
    # query.
    with connection.transaction():
        connection.execute(b"SET LOCAL jit = off")
        rows = connection.execute(query.encode(), {"hidden": list(hidden_schemas)}).fetchall()
    found = {TableName(namespace, name): str(version) for namespace, name, version in rows}
    return {name: found[name] for name in sorted(found) if matches(patterns, name)}


def _query(server_version: int) -> str:
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
