"""All that decides what must be done to the publications, as one text that is cheap to ask for.

Reading it in full takes seconds of two cores where there are many tables, and nearly always nothing
has changed that matters. So the server hashes it: not which transaction wrote a row of the
catalogue, as `tidelog.sources.postgres.catalogue.versions` does, but what of it is read by
`members`, `identity`, `tables.matching_tables` and `publication`. Whoever reads more there has to
add it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from tidelog.sources.postgres.catalogue.storage import FIRST_USER_OID

Connection = psycopg.Connection[tuple[Any, ...]]

_NAMESPACES_SINCE = 150_000

_SUM = "(SELECT coalesce(sum(pg_catalog.hash_record_extended(ROW({columns}), 0)), 0) FROM {rows})"

_PUBLICATIONS = """
SELECT p.oid::text, p.pubname, pg_catalog.obj_description(p.oid, 'pg_publication'),
  pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.puballtables, p.pubviaroot, p.pubinsert,
  p.pubupdate, p.pubdelete, p.pubtruncate, to_jsonb(p) ->> 'pubgencols'
FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s) ORDER BY 1
"""
# Not those of temporary tables, which come and go, nor of TOAST tables.
_LASTING = f"c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= {FIRST_USER_OID}"
_IDENTIFYING = (
    "pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid "
    f"AND (i.indisprimary OR i.indisreplident) AND {_LASTING}"
)
# (what is read, of which rows); a table's columns matter where they are generated or identify rows.
_READ = (
    ("r.prpubid, r.prrelid, {filtered}, {listed}", "pg_catalog.pg_publication_rel r"),
    (
        "n.oid, n.nspname, pg_catalog.has_schema_privilege(n.oid, 'USAGE')",
        "pg_catalog.pg_namespace n WHERE n.nspname !~ '^pg_'",
    ),
    (
        "c.oid, c.relname, c.relnamespace, c.relkind, c.relpersistence, c.relispartition, "
        "c.relreplident, c.relowner, pg_catalog.pg_has_role(c.relowner, 'USAGE')",
        f"pg_catalog.pg_class c WHERE {_LASTING}",
    ),
    ("i.inhrelid, i.inhparent", "pg_catalog.pg_inherits i"),
    (
        "i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident, i.indisvalid, "
        "i.indimmediate, i.indnkeyatts, i.indkey::text",
        _IDENTIFYING,
    ),
    (
        "a.attrelid, a.attnum, a.attname",
        f"{_IDENTIFYING} JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey)",
    ),
    (
        "a.attrelid, a.attnum, a.attgenerated, a.attisdropped",
        "pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
        f"AND a.attnum > 0 AND a.attgenerated <> '' AND {_LASTING}",
    ),
)
_OF_NAMESPACES = ("s.pnpubid, s.pnnspid", "pg_catalog.pg_publication_namespace s")


def inputs(connection: Connection, names: Sequence[str]) -> str:
    """A text that changes with whatever matters to publications of these names: their tables, and
    the rights of our role.
    """
    since_15 = connection.info.server_version >= _NAMESPACES_SINCE
    filtered = "r.prqual IS NOT NULL" if since_15 else "false"
    listed = "r.prattrs IS NOT NULL" if since_15 else "false"
    read = [*_READ, _OF_NAMESPACES] if since_15 else _READ
    sums = ", ".join(
        _SUM.format(columns=columns.format(filtered=filtered, listed=listed), rows=rows)
        for columns, rows in read
    )
    with connection.transaction():
        connection.execute(b"SET LOCAL jit = off")  # compiling takes longer than running
        publications = connection.execute(_PUBLICATIONS.encode(), (list(names),)).fetchall()
        row = connection.execute(
            "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), "
            f"concat_ws(' ', {sums})".encode()
        ).fetchone()
    return repr((publications, row))
