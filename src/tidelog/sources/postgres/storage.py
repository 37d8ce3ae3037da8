"""Did rows of a table change without row events? What the catalogue shows of that.

A rewrite alone changes no row: VACUUM FULL and CLUSTER keep all, and a TRUNCATE stands in the log.
``ALTER COLUMN … TYPE`` and a new column with a volatile default rewrite the table *and* the
column's row of ``pg_attribute``, so an ordinary table is taken to have changed if both are new. A
default that is stored instead of a rewrite shows as the column's missing value. A column that was
renamed, or dropped and added again, leaves its values under the old name in what was read before.

Partitions that are rewritten may have been truncated, attached or detached, which
``publish_via_partition_root`` does not show: any difference counts there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

# The leaves of a table, itself if it has no partitions. attmissingval is what ADD COLUMN with a
# default stores instead of rewriting rows. A table that is named in a publication can't be made
# unlogged; one that no publication names may have been, and changed meanwhile.
_STORAGE = """
WITH RECURSIVE tree AS (
  SELECT %s::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT c.oid::int8, c.relkind::text, c.relfilenode::int8,
  (SELECT coalesce(json_object_agg(a.attnum, json_build_array(a.attname, a.xmin::text)
     ORDER BY a.attnum), '{}')
   FROM pg_catalog.pg_attribute a
   WHERE c.oid = %s::oid AND a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     AND (a.attgenerated = '' OR a.attname = ANY (%s))),
  (SELECT coalesce(json_object_agg(a.attnum, md5(a.attmissingval::text) ORDER BY a.attnum), '{}')
   FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.atthasmissing AND NOT a.attisdropped AND a.attgenerated = ''),
  (SELECT coalesce(json_agg(r.oid::int8 ORDER BY r.oid), '[]')
   FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = c.oid AND c.oid = %s::oid),
  (SELECT coalesce(json_agg(r.oid::int8 ORDER BY r.oid), '[]')
   FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
   WHERE r.prrelid = %s::oid AND p.pubname = ANY (%s)),
  c.reltuples::float8, c.relpages::int8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
ORDER BY c.oid
"""


@dataclass(frozen=True, slots=True)
class Storage:
    """How a table is stored now.

    ``text`` is for `rows_may_differ`; estimates are of the last VACUUM or ANALYZE.
    """

    text: str
    estimated_rows: int
    pages: int


def storage_of(
    connection: psycopg.Connection[tuple[Any, ...]],
    relation_id: int,
    published_by: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> Storage:
    """The table's storage as the connection's transaction sees it.

    Args:
        connection: of the source.
        relation_id: the table's oid.
        published_by: publications that are not ours to change: a table that left one of them and
            came back has changes that the log never showed.
        columns: those that are published; a new expression of a generated one counts then.
    """
    values = (*(relation_id,) * 2, list(columns), *(relation_id,) * 2, list(published_by))
    rows = connection.execute(_STORAGE.encode(), values).fetchall()
    leaves = [row for row in rows if row[1] != "p"]
    if len(rows) == 1 and leaves:
        oid, _, file, *details = rows[0][:7]
        text = json.dumps([oid, file, *details], separators=(",", ":"))
    else:
        parts = [(oid, kind, file, missing) for oid, kind, file, _, missing, *_ in rows]
        names = {number: name for number, (name, _) in rows[0][3].items()} if rows else {}
        members = rows[0][6] if rows else []
        text = hashlib.sha256(repr((parts, names, members)).encode()).hexdigest()[:32]
    return Storage(
        text=text,
        estimated_rows=int(sum(max(row[7], 0.0) for row in leaves)),
        pages=sum(row[8] for row in leaves),
    )


def rows_may_differ(before: str, after: str) -> bool:
    """May rows have changed without row events between two of a table's `Storage.text`s?

    One needless yes remains: VACUUM FULL and CLUSTER of a table with missing values rewrite these
    columns' rows of the catalogue as well.
    """
    if before == after:
        return False
    if not (before.startswith("[") and after.startswith("[")):
        return True
    oid, file, columns, missing, published, members = json.loads(before)
    oid_now, file_now, columns_now, missing_now, published_now, members_now = json.loads(after)
    if (oid, members) != (oid_now, members_now) or any(
        missing.get(column) != md5 for column, md5 in missing_now.items()
    ):
        return True
    if _renamed(columns, columns_now):
        return True
    if file == file_now:
        return False
    altered = any(columns.get(number) != found for number, found in columns_now.items())
    return altered or not published or published != published_now


def _renamed(columns: Mapping[str, Any], columns_now: Mapping[str, Any]) -> bool:
    """Does a name stand for another column than before? Rows read before have values under it."""
    before = {name: number for number, (name, _) in columns.items()}
    now = {name: number for number, (name, _) in columns_now.items()}
    moved = any(before[name] != now[name] for name in before.keys() & now.keys())
    return moved or any(
        columns[number][0] != columns_now[number][0]
        for number in columns.keys() & columns_now.keys()
    )
