"""Checks which names a condition may use if its author has fewer rights than capture.

The condition's grammar calls only PostgreSQL's own functions, and with an empty search_path its
operators are those of pg_catalog. The remaining risk are values: a type that a role created brings
that role's casts, and PostgreSQL runs them implicitly where an operator needs another type
(``CREATE CAST … AS IMPLICIT``). The table's own name, used as a column, is its whole row: such a
type.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest

# By column, whether each of its types is PostgreSQL's own, was created by a superuser or by this
# role, or is an enum, a domain or an array of such types without a cast. (The server ignores a
# domain's own casts, and its checks run when a row is written.)
_COLUMNS = """
WITH RECURSIVE parts AS (
  SELECT a.attname, a.atttypid AS oid
  FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped
  UNION
  SELECT parts.attname,
    CASE WHEN y.typtype = 'd' THEN y.typbasetype ELSE y.typelem END
  FROM parts JOIN pg_catalog.pg_type y ON y.oid = parts.oid
  WHERE y.typtype = 'd' OR y.typcategory = 'A'
)
SELECT parts.attname, bool_and(y.oid < 16384 OR o.rolsuper OR o.rolname = current_user
  OR (y.typtype IN ('d', 'e') OR y.typcategory = 'A') AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_cast c WHERE c.castsource = y.oid OR c.casttarget = y.oid))
FROM parts JOIN pg_catalog.pg_type y ON y.oid = parts.oid
JOIN pg_catalog.pg_roles o ON o.oid = y.typowner
GROUP BY 1
"""


def require_plain(
    connection: psycopg.Connection[tuple[Any, ...]], schema: TableSchema, request: ChunkRequest
) -> None:
    """Check the names of the condition; does nothing if ``request.where_names`` is None.

    Raises:
        ChunkRefusedError: the condition uses a name that may run another role's code; the message
            says which.
    """
    if not request.where_names:
        return
    rows = connection.execute(_COLUMNS.encode(), (schema.relation_id,)).fetchall()
    columns: dict[str, bool] = dict(rows)
    for name in request.where_names:
        quoted = name.startswith('"')
        column = name[1:-1].replace('""', '"') if quoted else name.lower()
        if not quoted and not name.isascii():
            _refuse(schema, f"names {name} without double quotes, which servers read differently")
        if column not in columns:
            _refuse(schema, f"names {name}, which is no column of the table")
        if not columns[column]:
            _refuse(
                schema, f"names {name}, whose type may run functions of the role that created it"
            )


def _refuse(schema: TableSchema, why: str) -> None:
    raise ChunkRefusedError(
        f"reading {schema.table}: the condition {why}. One of the signal table can't be used here: "
        "give it by `tidelog dump --where`, over HTTP or in the signal file"
    )
