"""Tidelog's own tables in a PostgreSQL database: the watermark table and the signal table.

The watermark table must be safe to write to: its code runs with the writer's rights. Whoever may
create a schema or table may create the watermark table first, with a trigger, a rule or similar.
Only roles that have capture's rights in any case may own it and its schema: capture's own role,
superusers, and the database's owner. Then only a grant of such a role (``TRIGGER``) lets another
role add code to it.
"""

from __future__ import annotations

import psycopg

from tidelog.model.schema import TableName, double_quoted
from tidelog.ports import UnsupportedReason
from tidelog.sources.postgres.catalogue.identity import watermarks_refused
from tidelog.sources.postgres.chunks.watermarks import WATERMARK_COLUMN
from tidelog.sources.postgres.connect import Connection

# Whether the watermark table is safe to write to.


# By schema, and by the table in it; only the schema if there is no such table yet.
_OWNERS = """
WITH trusted AS (
  SELECT oid FROM pg_catalog.pg_roles
  WHERE rolsuper OR rolname IN (current_user, 'pg_database_owner')
  UNION SELECT datdba FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
)
SELECT pg_catalog.pg_get_userbyid(n.nspowner), n.nspowner IN (SELECT oid FROM trusted),
  pg_catalog.pg_get_userbyid(c.relowner), c.relowner IN (SELECT oid FROM trusted),
  c.oid, c.relkind::text
FROM pg_catalog.pg_namespace n
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = %s
WHERE n.nspname = %s
"""

# What may run another role's function when a row is written.
_CODE = """
SELECT 'the trigger ' || tgname FROM pg_catalog.pg_trigger
  WHERE tgrelid = %(table)s::oid AND NOT tgisinternal
UNION ALL SELECT 'the rule ' || rulename FROM pg_catalog.pg_rewrite
  WHERE ev_class = %(table)s::oid
UNION ALL SELECT 'row-level security' FROM pg_catalog.pg_class
  WHERE oid = %(table)s::oid AND relrowsecurity
UNION ALL SELECT 'a default or generated value of ' || a.attname FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = %(table)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasdef
UNION ALL SELECT 'a type of somebody''s own for ' || a.attname FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = %(table)s::oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.atttypid >= 16384::oid
UNION ALL SELECT 'the constraint ' || k.conname FROM pg_catalog.pg_constraint k
  JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_constraint'::regclass
    AND d.objid = k.oid AND d.refclassid = 'pg_catalog.pg_proc'::regclass
  WHERE k.conrelid = %(table)s::oid
UNION ALL SELECT 'an index over an expression' FROM pg_catalog.pg_index
  WHERE indrelid = %(table)s::oid AND (indexprs IS NOT NULL OR indpred IS NOT NULL)
LIMIT 1
"""

_KINDS = {"v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE", "S": "SEQUENCE"}


def watermark_table_refusal(
    connection: Connection, watermark: TableName
) -> UnsupportedReason | None:
    """Why the table must not be written to; None if it is safe, or does not exist and can be
    created.
    """
    row = connection.execute(_OWNERS.encode(), (watermark.name, watermark.namespace)).fetchone()
    if row is None:
        return None
    schema_owner, schema_trusted, owner, trusted, relation_id, kind = row
    user = double_quoted(connection.info.user)
    schema = double_quoted(watermark.namespace)
    table = f"{schema}.{double_quoted(watermark.name)}"
    if not schema_trusted:
        return _refusal(
            f"schema {watermark.namespace} is owned by {schema_owner}, whose code could run "
            "with capture's rights",
            f"ALTER SCHEMA {schema} OWNER TO {user};",
        )
    if relation_id is None:
        return None
    drop = f"DROP {_KINDS.get(kind, 'TABLE')} {table}; -- capture creates the table again"
    if kind != "r":
        return _refusal("it is not an ordinary table", drop)
    if not trusted:
        return _refusal(
            f"it is owned by {owner}, whose code could run with capture's rights",
            f"ALTER TABLE {table} OWNER TO {user};",
        )
    code = connection.execute(_CODE.encode(), {"table": relation_id}).fetchone()
    if code is not None:
        return _refusal(f"it has {code[0]}, which would run with capture's rights", drop)
    return None


def _refusal(reason: str, remedy: str) -> UnsupportedReason:
    return UnsupportedReason(f"{reason}: no watermark is written to it", remedy, all_dumps=True)


# The tables.

# The columns of Debezium's signal table.
SIGNAL_COLUMNS = ("id", "type", "data")


def prepare_watermark_table(
    connection: Connection, table: TableName, strict: bool
) -> UnsupportedReason | None:
    """Create the watermark table if it is missing.

    Returns why watermarks can't be written to it (then no table is dumped, and log capture
    continues); None if they can. With ``strict``, raises psycopg's error if the table can't be
    created.
    """
    try:
        refusal = watermark_table_refusal(connection, table)
        if refusal is None:
            if not _exists(connection, table):
                _create_missing_table(connection, table)
            refusal = watermark_table_refusal(connection, table)
    except psycopg.errors.InsufficientPrivilege as error:
        if strict:
            raise
        reason = f"{error.diag.message_primary}: no watermark can be written"
        return UnsupportedReason(reason, all_dumps=True)
    return refusal or watermarks_refused(connection, table)


def _exists(connection: Connection, table: TableName) -> bool:
    """Return True if the table exists; needs no right to its schema."""
    row = connection.execute(
        b"SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        b"ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (table.namespace, table.name),
    ).fetchone()
    return row is not None


def _create_missing_table(connection: Connection, table: TableName) -> None:
    """Create the table, and its schema if it is missing."""
    has_schema = connection.execute(
        b"SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (table.namespace,)
    ).fetchone()
    if has_schema is None:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {double_quoted(table.namespace)}".encode())
    connection.execute(create_watermark_table(table).encode())


def create_watermark_table(table: TableName) -> str:
    """The SQL that creates the table in an existing schema."""
    # Free space on the page keeps each new watermark a HOT update.
    return (
        f"CREATE TABLE IF NOT EXISTS {double_quoted(table.namespace, table.name)} "
        f"(id int PRIMARY KEY CHECK (id = 1), {WATERMARK_COLUMN} text NOT NULL) "
        "WITH (fillfactor = 10);"
    )


def signal_columns(connection: Connection, table: TableName) -> set[str]:
    """The table's columns; none if it does not exist."""
    rows = connection.execute(
        b"SELECT a.attname FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        b"JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "
        b"WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
        b"AND c.relpersistence = 'p' AND a.attnum > 0 AND NOT a.attisdropped",
        (table.namespace, table.name),
    ).fetchall()
    return {row[0] for row in rows}


def create_signal_table(table: TableName) -> str:
    """The SQL that creates the table, as in Debezium's manual."""
    return (
        f"CREATE TABLE {double_quoted(table.namespace, table.name)} "
        "(id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));"
    )
