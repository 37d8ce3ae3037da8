"""Detects from the catalogue that rows of a table may have changed without row events.

A rewrite alone changes no row: VACUUM FULL and CLUSTER keep all rows, and the log holds TRUNCATE.
``ALTER COLUMN … TYPE`` and a new column with a volatile default rewrite the table *and* the
column's row of ``pg_attribute``, so an ordinary table counts as changed if both are new. A default
that is stored instead of a rewrite appears as the column's missing value. A column that was
renamed, or dropped and added again, leaves its values under the old name in rows read before.

Rewritten partitions may have been truncated, attached or detached, which
``publish_via_partition_root`` does not show: any difference counts there.

What was done and undone between two checks leaves a trace where replaced catalogue rows have
another oid or writing transaction (``xmin``; neither VACUUM nor a rewrite of the catalogue changes
it): ``pg_inherits`` for partitions, ``pg_publication_rel`` and ``pg_publication`` for published
tables, ``pg_enum`` and the composite's columns for the text of a type's values. Rows that GRANT,
ANALYZE or COMMENT replace don't count. The log shows a table that has another name for some time:
`tidelog.capture.capture_scope`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.model.schema import TableName, TableSchema

FIRST_USER_OID = 16_384
_NAMESPACES_SINCE = 150_000

# The leaves of tables, or the table itself if it has no partitions. attmissingval is what ADD
# COLUMN with a default stores instead of rewriting rows; servers in FIPS mode have no md5. A table
# that a publication names can't be made unlogged; a table that none names may have been unlogged
# and changed in the meantime.
_LEAVES = """
WITH RECURSIVE tree AS (
  SELECT root, root AS oid, ''::text AS inherits FROM unnest(%s::int8[]::oid[]) AS root
  UNION ALL
  SELECT tree.root, i.inhrelid, i.xmin::text
  FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT tree.root::int8, c.oid::int8, c.relkind::text, c.relfilenode::int8, tree.inherits,
  (SELECT coalesce(json_object_agg(a.attnum, encode(sha256(convert_to(a.attmissingval::text,
     getdatabaseencoding())), 'hex') ORDER BY a.attnum), '{}')
   FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.atthasmissing AND NOT a.attisdropped AND a.attgenerated = ''),
  c.reltuples::float8, c.relpages::int8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
ORDER BY c.oid
"""

_ESTIMATES = """
WITH RECURSIVE tree AS (
  SELECT c.oid AS root, n.nspname, c.relname, c.oid
  FROM unnest(%s::text[], %s::text[]) AS t(namespace, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.namespace
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
  UNION ALL
  SELECT tree.root, tree.nspname, tree.relname, i.inhrelid
  FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT tree.nspname::text, tree.relname::text, sum(c.reltuples)::float8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
WHERE c.relkind <> 'p' AND c.reltuples >= 0 AND (c.reltuples > 0 OR c.relpages > 0)
GROUP BY 1, 2
"""

# Columns are [name, xmin, oid of the generating expression or 0], and a 1 at the end for a
# published generated one; members are the given publications that include the table, as
# [publication, its xmin, what includes the table, ...]. SET SCHEMA replaces the row of pg_depend,
# which matters only to publications of schemas.
_TABLE = """
SELECT c.oid::int8,
  (SELECT coalesce(json_object_agg(a.attnum, json_build_array(a.attname, a.xmin::text,
     CASE WHEN a.attgenerated = '' THEN 0 ELSE coalesce(d.oid::int8, 1) END)
     ORDER BY a.attnum), '{{}}')
   FROM pg_catalog.pg_attribute a
   LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT coalesce(json_agg(r.oid::int8 ORDER BY r.oid), '[]')
   FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = c.oid),
  (SELECT coalesce(json_agg(json_build_array(p.oid::int8, p.xmin::text, r.oid::int8 {namespaces})
     ORDER BY p.oid), '[]')
   FROM pg_catalog.pg_publication p
   LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
   {of_namespaces}
   WHERE p.pubname = ANY (%s) AND (p.puballtables OR r.oid IS NOT NULL {or_namespaces}))
FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::int8[]::oid[])
"""
_BY_NAMESPACE = {
    "namespaces": """, s.oid::int8, CASE WHEN s.oid IS NOT NULL THEN (
       SELECT d.xmin::text FROM pg_catalog.pg_depend d
       WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
         AND d.refclassid = 'pg_catalog.pg_namespace'::regclass LIMIT 1) END""",
    "of_namespaces": """LEFT JOIN pg_catalog.pg_publication_namespace s
     ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace""",
    "or_namespaces": "OR s.oid IS NOT NULL",
}
_BY_NO_NAMESPACE = dict.fromkeys(_BY_NAMESPACE, "")

# The types that those in ``used`` consist of: elements, attributes, bounds, what a domain is over.
_PARTS = """
  SELECT {root} part.oid FROM used JOIN pg_catalog.pg_type y ON y.oid = used.oid
  CROSS JOIN LATERAL (
    SELECT y.typelem WHERE y.typelem <> 0
    UNION ALL SELECT y.typbasetype WHERE y.typbasetype <> 0
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE y.typrelid <> 0 AND a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
      WHERE y.typtype IN ('r', 'm') AND y.oid IN (r.rngtypid, r.rngmultitypid)
  ) AS part(oid)
"""

# The columns' types that are not built in and whose text depends on the catalogue: labels of enums,
# and columns of composites (also dropped ones, whose numbers are not reused), with their names.
_TYPES = f"""
WITH RECURSIVE used AS (
  SELECT a.attrelid AS root, a.atttypid AS oid FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = ANY (%s::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    AND a.atttypid >= {FIRST_USER_OID}
  UNION {_PARTS.format(root="root,")} WHERE used.oid >= {FIRST_USER_OID}
)
SELECT root::int8, y.oid::text, CASE WHEN y.typtype = 'e' THEN
    (SELECT json_object_agg(e.oid::int8, e.xmin::text) FROM pg_catalog.pg_enum e
     WHERE e.enumtypid = y.oid)
  ELSE (SELECT json_build_object('columns', string_agg(concat_ws(' ', a.attnum, a.atttypid,
      a.attisdropped), ',' ORDER BY a.attnum), 'names', json_agg(a.attname ORDER BY a.attnum)
      FILTER (WHERE NOT a.attisdropped)) FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = y.typrelid AND a.attnum > 0) END
FROM used JOIN pg_catalog.pg_type y ON y.oid = used.oid
WHERE y.oid >= {FIRST_USER_OID} AND y.typtype IN ('e', 'c')
"""  # noqa: S608

_VERSION = """(SELECT string_agg(concat_ws('.', a.attrelid, a.attnum, a.xmin), ' '
    ORDER BY a.attrelid, a.attnum)
  FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ({relations}) AND a.attnum > 0)"""
_ATTRIBUTES = "SELECT " + _VERSION.format(relations="%s::int8[]::oid[]")

# The composites among these types and their parts, as relations, and their attributes' version.
_COMPOSITES = f"""
WITH RECURSIVE used AS (
  SELECT unnest(%s::int8[])::oid AS oid
  UNION {_PARTS.format(root="")} WHERE used.oid >= {FIRST_USER_OID}
), composites AS (
  SELECT ARRAY(SELECT y.typrelid FROM used JOIN pg_catalog.pg_type y ON y.oid = used.oid
    WHERE y.typtype = 'c') AS relations
)
SELECT relations::int8[], {_VERSION.format(relations="relations")} FROM composites
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class PostgresTableStorage:
    """How a table is stored now. ``text`` is for `rows_may_differ`, and contains no space, whatever
    the columns' names. The estimates are from the last VACUUM or ANALYZE.
    """

    text: str
    estimated_rows: int
    pages: int


def storages_of(
    connection: psycopg.Connection[tuple[Any, ...]],
    schemas: Sequence[TableSchema],
    publications: Sequence[str] = (),
) -> dict[int, PostgresTableStorage]:
    """How the tables are stored as the connection's transaction sees them, by oid.

    Args:
        connection: the source.
        schemas: the tables, which exist. For their generated columns a new expression counts as a
            change.
        publications: the log shows what these publish: a table that left one of them and came back
            has changes that the log never showed.
    """
    oids = [schema.relation_id for schema in schemas]
    leaves: dict[int, list[tuple[Any, ...]]] = {}
    for oid, *leaf in connection.execute(_LEAVES.encode(), (oids,)):
        leaves.setdefault(oid, []).append(tuple(leaf))
    namespaces = connection.info.server_version >= _NAMESPACES_SINCE
    query = _TABLE.format(**(_BY_NAMESPACE if namespaces else _BY_NO_NAMESPACE))
    rows = connection.execute(query.encode(), (list(publications), oids)).fetchall()
    tables = {oid: found for oid, *found in rows}
    types: dict[int, dict[str, Any]] = {}
    for oid, type_oid, version in connection.execute(_TYPES.encode(), (oids,)):
        types.setdefault(oid, {})[type_oid] = version
    return {
        schema.relation_id: _storage(
            schema,
            leaves.get(schema.relation_id, []),
            tables.get(schema.relation_id, ({}, [], [])),
            types.get(schema.relation_id, {}),
        )
        for schema in schemas
    }


def _storage(
    schema: TableSchema,
    rows: Sequence[tuple[Any, ...]],
    table: Sequence[Any],
    types: Mapping[str, Any],
) -> PostgresTableStorage:
    columns, excluded = schema.column_names, [each.column.name for each in schema.excluded]
    found, published, members = table
    for column in found.values():
        if column[2] and column[0] in columns:
            column.append(1)
    plain = len(rows) == 1 and rows[0][1] != "p"
    parts = "" if plain else hashlib.sha256(repr([row[:5] for row in rows]).encode()).hexdigest()
    # Of a default that fills an excluded column, not even a hash is kept.
    hidden = {number for number, column in found.items() if column[0] in excluded}
    missing = {n: hashed for n, hashed in rows[0][4].items() if n not in hidden} if plain else {}
    storage = {
        "oid": schema.relation_id,
        "file": rows[0][2] if plain else 0,
        "parts": parts[:32],
        "columns": found,
        "missing": missing,
        "published": published,
        "members": members,
        "types": types,
    }
    if excluded:
        storage["excluded"] = excluded
    leaves = [row for row in rows if row[1] != "p"]
    return PostgresTableStorage(
        text=json.dumps(storage, separators=(",", ":")).replace(" ", "\\u0020"),
        estimated_rows=int(sum(max(row[5], 0.0) for row in leaves)),
        pages=sum(row[6] for row in leaves),
    )


def composites_of(
    connection: psycopg.Connection[tuple[Any, ...]], types: Sequence[int]
) -> tuple[list[int], str]:
    """The composites among ``types`` and their parts, as relations, and their `attributes_version`,
    of one moment.
    """
    row = connection.execute(_COMPOSITES.encode(), (list(types),)).fetchone()
    return ([], "") if row is None else (row[0], row[1] or "")


def attributes_version(
    connection: psycopg.Connection[tuple[Any, ...]], composites: Sequence[int]
) -> str:
    """A text that stays equal only while no attribute of these composites is altered; empty if they
    are gone.
    """
    row = connection.execute(_ATTRIBUTES.encode(), (list(composites),)).fetchone()
    return "" if row is None else row[0] or ""


def estimated_rows(
    connection: psycopg.Connection[tuple[Any, ...]], tables: Sequence[TableName]
) -> dict[TableName, int]:
    """The row estimates of tables that were vacuumed or analyzed; for a partitioned table, the sum
    over such partitions.
    """
    names = ([table.namespace for table in tables], [table.name for table in tables])
    rows = connection.execute(_ESTIMATES.encode(), names).fetchall()
    return {TableName(namespace, name): int(estimate) for namespace, name, estimate in rows}


def rows_may_differ(before: str, after: str) -> bool:
    """Return True if rows may have changed without row events between two of a table's
    `PostgresTableStorage.text`.

    One case is reported needlessly: VACUUM FULL and CLUSTER of a table with missing values also
    rewrite these columns' rows of the catalogue.
    """
    if before == after:
        return False
    then, now = _parsed(before), _parsed(after)
    if then is None or now is None or (then["oid"], then["parts"]) != (now["oid"], now["parts"]):
        return True
    if now["members"] and now["members"] != then.get("members", now["members"]):
        return True
    if any(then["missing"].get(column) != hashed for column, hashed in now["missing"].items()):
        return True
    if _renamed(then["columns"], now["columns"]) or _generated_values_changed(
        then["columns"], now["columns"]
    ):
        return True
    if _texts_differ(then.get("types", {}), now["types"]):
        return True
    names = {name for name, *_ in now["columns"].values()} - set(now.get("excluded", ()))
    if not names.isdisjoint(then.get("excluded", ())):  # rows read before lack a column
        return True
    if then["file"] == now["file"]:
        return False
    altered = any(
        then["columns"].get(number) != found
        for number, found in now["columns"].items()
        if not found[2] or found[3:]
    )
    return altered or not now["published"] or now["published"] != then["published"]


def _parsed(text: str) -> dict[str, Any] | None:
    """The parsed text; None for a partitioned table in an early form that kept no traces of undone
    changes. The early form of a table without partitions is a list.
    """
    if text.startswith("["):
        oid, file, columns, missing, published, _ = json.loads(text)
        return {
            "oid": oid,
            "file": file,
            "parts": "",
            "columns": {number: [name, xmin, 0] for number, (name, xmin) in columns.items()},
            "missing": missing,
            "published": published,
        }
    found: dict[str, Any] | None = json.loads(text) if text.startswith("{") else None
    return found


def _renamed(columns: Mapping[str, Any], columns_now: Mapping[str, Any]) -> bool:
    """Return True if another column has a name now: rows read before have its values."""
    before = {name: number for number, (name, _, made, *_) in columns.items() if not made}
    now = {name: number for number, (name, _, made, *_) in columns_now.items() if not made}
    moved = any(before[name] != now[name] for name in before.keys() & now.keys())
    return moved or any(
        columns[number][0] != columns_now[number][0]
        for number in columns.keys() & columns_now.keys()
        if not columns_now[number][2]
    )


def _generated_values_changed(columns: Mapping[str, Any], columns_now: Mapping[str, Any]) -> bool:
    """Return True if a generated column became an ordinary one, which keeps its values, or if a
    published generated column has a new expression.
    """
    return any(
        columns[number][2]
        and columns[number][2] != columns_now[number][2]
        and (not columns_now[number][2] or columns_now[number][3:])
        for number in columns.keys() & columns_now.keys()
    )


def _texts_differ(types: Mapping[str, Any], types_now: Mapping[str, Any]) -> bool:
    """Return True if the text of a value may have changed. Added labels of enums don't count."""
    return any(
        types_now[oid].get(part) != version
        for oid in types.keys() & types_now.keys()
        for part, version in (types[oid] or {}).items()
    )
