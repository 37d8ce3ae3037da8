"""Texts that may go wrong, which `tidelog check` tells: columns whose texts follow other objects'
names.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.sources.findings import Finding
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.preflight.report import Connection

# By the element's type, for arrays. A regclass is stored as an oid and written as a name.
_NAMING = """
SELECT a.attrelid::int8, string_agg(a.attname, ', ' ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type e ON e.oid = coalesce(nullif(t.typelem, 0), t.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = e.typnamespace AND n.nspname = 'pg_catalog'
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
  AND (e.typname LIKE 'reg%%' OR e.typname = 'aclitem')
GROUP BY 1
"""


def naming_columns(connection: Connection, publications: Publications) -> Iterator[Finding]:
    """Has a captured table columns of ``regclass`` and the like?"""
    tables = {table.relation_id: table.table for table in publications.captured(connection)}
    rows = connection.execute(_NAMING.encode(), (list(tables),)).fetchall()
    for relation_id, columns in sorted(rows):
        yield Finding(
            f"table {tables[relation_id]}",
            "warn",
            f"values of {columns} are names of other objects: when one is renamed, the copies of "
            "rows that were read before keep the old name, and nothing tells",
            "after a rename dump the table again, or store the name as text",
        )
