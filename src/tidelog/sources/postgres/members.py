"""Which tables publications hold now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from tidelog.model.schema import TableName

# Not by pg_publication_tables, which locks each table: it would wait for DDL on any of them.
_MEMBERS = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_catalog.pg_publication p
LEFT JOIN LATERAL (
  SELECT r.prrelid AS oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
  {namespaces}
  UNION SELECT t.oid FROM pg_catalog.pg_class t
  WHERE p.puballtables AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
) AS member ON true
LEFT JOIN pg_catalog.pg_class c ON c.oid = member.oid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%s)
"""
_MEMBERS_BY_NAMESPACE = """
  UNION SELECT t.oid FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid
  WHERE s.pnpubid = p.oid AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
"""


def members_of(
    connection: psycopg.Connection[tuple[Any, ...]], publications: Sequence[str]
) -> dict[str, set[TableName]]:
    """Tables by publication; only publications that exist."""
    namespaces = _MEMBERS_BY_NAMESPACE if connection.info.server_version >= 150000 else ""
    query = _MEMBERS.format(namespaces=namespaces)
    rows = connection.execute(query.encode(), (list(publications),)).fetchall()
    members: dict[str, set[TableName]] = {name: set() for name, _, _ in rows}
    for name, namespace, table in rows:
        if table is not None:
            members[name].add(TableName(namespace, table))
    return members
