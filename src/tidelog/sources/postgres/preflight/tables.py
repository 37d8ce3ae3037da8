"""Checks the captured tables for `tidelog check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.errors import ExcludedKeyError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.sources.excluded_columns import excluded_finding
from tidelog.sources.findings import SUPERUSER, Finding, matching_message
from tidelog.sources.postgres.catalogue.publication import Publications, PublishedTable
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.catalogue.table_rights import BYPASS_POLICIES
from tidelog.sources.postgres.connect import quote_ident
from tidelog.sources.postgres.preflight.report import Connection, one_row, owner_of
from tidelog.sources.surrogate_keys import keyless_message, proposed_key

# Whether a unique index has exactly these columns, and whether NULLs are not distinct in it.
_UNIQUE = """
SELECT coalesce(bool_or(true), false),
  coalesce(bool_or(coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') = 'true'), false)
FROM pg_catalog.pg_index i
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND (
    SELECT array_agg(a.attname::text ORDER BY a.attname)
    FROM unnest((string_to_array(i.indkey::text, ' ')::int2[])[1:i.indnkeyatts]) AS k(attnum)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
  ) = (SELECT array_agg(name ORDER BY name COLLATE "C") FROM unnest(%s::text[]) AS u(name))
"""

# The columns of each unique index that has them all NOT NULL.
_UNIQUE_KEYS = """
SELECT array_agg(a.attname::text ORDER BY k.number)
FROM pg_catalog.pg_index i
CROSS JOIN unnest((string_to_array(i.indkey::text, ' ')::int2[])[1:i.indnkeyatts])
  WITH ORDINALITY AS k(attnum, number)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL
GROUP BY i.indexrelid HAVING bool_and(a.attnotnull) ORDER BY i.indexrelid
"""


class TableChecks:
    """Parts of a `Preflight`.

    Args:
        publications: the captured tables, and how they are published.
        finder: builds their schemas.
    """

    def __init__(self, publications: Publications, finder: PostgresSchemaFinder) -> None:
        self._publications = publications
        self._finder = finder

    def tables(self, connection: Connection) -> Iterator[Finding]:
        """Check that each captured table can be read, published and dumped."""
        captured = self._publications.captured(connection)
        if not captured:
            text = f"no table matches {', '.join(self._publications.patterns)}"
            yield Finding("tables", "warn", text, "correct source.tables, or create the tables")
            return
        yield Finding("tables", "ok", matching_message(len(captured)))
        yield from _schemas(connection, {table.table.namespace for table in captured})
        for table in captured:
            yield from self._table(connection, table)

    def _table(self, connection: Connection, table: PublishedTable) -> Iterator[Finding]:
        name = str(table.table)
        quoted = table.quoted
        user = quote_ident(connection.info.user)
        (readable,) = one_row(
            connection,
            "SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_class c WHERE c.oid = %s::oid",
            (table.relation_id,),
        )
        if not readable:
            fix = f"GRANT SELECT ON {quoted} TO {user};"
            text = "it can't be read, so it can't be dumped"
            yield Finding(f"table {name}", "fail", text, fix, SUPERUSER)
        yield from _policies(connection, table)
        try:
            found = self._finder.find(connection, table.table)
        except ExcludedKeyError as error:
            yield Finding(f"table {name}", "fail", error.reason)
            return
        if found is not None and found.unfit is not None:
            yield Finding(f"table {name}", "fail", found.unfit)
        elif found is not None and not found.schema.key:
            fix = proposed_key(table.table, _unique_keys(connection, found.schema)) or (
                f"ALTER TABLE {quoted} ADD PRIMARY KEY (COLUMN, …), or ADD COLUMN row_id bigint "
                "GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
            )
            text = keyless_message(found.schema.keyless)
            yield Finding(f"table {name}", "warn", text, fix)
        if found is not None and found.schema.excluded:
            yield excluded_finding(found.schema)
        if found is not None and self._is_surrogate(connection, found.schema):
            yield from self._surrogate(connection, found.schema)

    def unlogged(self, connection: Connection) -> Iterator[Finding]:
        """Report matching tables that are unlogged, so never in the log."""
        rows = connection.execute(
            b"SELECT n.nspname, c.relname, c.relowner::regrole::text "
            b"FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            b"WHERE c.relkind = 'r' AND c.relpersistence = 'u'"
        ).fetchall()
        for namespace, name, owner in rows:
            table = TableName(namespace, name)
            if matches(self._publications.patterns, table):
                fix = f"ALTER TABLE {quote_ident(namespace, name)} SET LOGGED;"
                text = "unlogged: it is not captured. Making it logged rewrites it"
                yield Finding(f"table {table}", "warn", text, fix, owner, by_hand=True)

    def _is_surrogate(self, connection: Connection, schema: TableSchema) -> bool:
        (primary,) = one_row(
            connection,
            "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %s::oid AND indisprimary)",
            (schema.relation_id,),
        )
        return bool(schema.key) and not primary

    def _surrogate(self, connection: Connection, schema: TableSchema) -> Iterator[Finding]:
        """Check that a key of source.keys is unique."""
        name = f"table {schema.table}"
        quoted = quote_ident(schema.table.namespace, schema.table.name)
        listed = ", ".join(quote_ident(column) for column in schema.key)
        unique, nulls_alike = one_row(connection, _UNIQUE, (schema.relation_id, list(schema.key)))
        nullable = any(c.nullable for c in schema.columns if c.name in schema.key)
        alike = nullable and connection.info.server_version >= 150000
        # Without CONCURRENTLY it blocks writers; the server does not offer it for partitioned
        # tables.
        (whole,) = one_row(
            connection,
            "SELECT relkind = 'r' FROM pg_class WHERE oid = %s::oid",
            (schema.relation_id,),
        )
        index = (
            f"CREATE UNIQUE INDEX {'CONCURRENTLY ' if whole else ''}ON {quoted} ({listed})"
            f"{' NULLS NOT DISTINCT' if alike else ''};"
        )
        owner = owner_of(connection, schema.relation_id)
        if not unique:
            text = "the key in source.keys is not unique: rows with the same key overwrite another"
            yield Finding(name, "fail", text, index, owner)
        elif nullable and not nulls_alike:
            text = (
                "the key in source.keys may hold NULL in several rows, which can't be told apart: "
                "its dump is refused then"
            )
            fix = f"{index} -- or make the columns NOT NULL" if alike else "make them NOT NULL"
            yield Finding(name, "warn", text, fix, owner)


def _schemas(connection: Connection, names: Iterable[str]) -> Iterator[Finding]:
    """Check that the role may use the schemas of the captured tables; one finding for each."""
    user = quote_ident(connection.info.user)
    for name in sorted(names):
        (usable,) = one_row(connection, "SELECT has_schema_privilege(%s, 'USAGE')", (name,))
        if not usable:
            fix = f"GRANT USAGE ON SCHEMA {quote_ident(name)} TO {user};"
            text = "the role may not use it, so its tables can't be dumped"
            yield Finding(f"schema {name}", "fail", text, fix, SUPERUSER)


def _unique_keys(connection: Connection, schema: TableSchema) -> list[list[str]]:
    """Return the columns of each unique index of the table that identifies all of its rows, and has
    no excluded column.
    """
    rows = connection.execute(_UNIQUE_KEYS, (schema.relation_id,)).fetchall()
    excluded = {each.column.name for each in schema.excluded}
    return [columns for (columns,) in rows if excluded.isdisjoint(columns)]


def _policies(connection: Connection, table: PublishedTable) -> Iterator[Finding]:
    """Check that row-level security hides no rows from the role: a dump must not miss them
    silently.
    """
    active, owned = one_row(
        connection,
        "SELECT row_security_active(c.oid), pg_has_role(c.relowner, 'USAGE') FROM pg_class c "
        "WHERE c.oid = %s::oid",
        (table.relation_id,),
    )
    if not active:
        return
    user = quote_ident(connection.info.user)
    text = (
        "row-level security would hide rows from this role, so it is not dumped (a policy "
        "that shows all rows would not help)"
    )
    fix = BYPASS_POLICIES.replace("…", user)
    if owned:  # only FORCE ROW LEVEL SECURITY applies to an owner
        fix += f" -- or, as its owner: ALTER TABLE {table.quoted} NO FORCE ROW LEVEL SECURITY;"
    else:
        fix += f" -- or: GRANT {owner_of(connection, table.relation_id)} TO {user};"
    yield Finding(f"table {table.table}", "fail", text, fix, SUPERUSER)
