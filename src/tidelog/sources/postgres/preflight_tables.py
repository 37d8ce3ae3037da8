"""What `tidelog check` finds out about tables: those to capture, and the signal table."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.sources.findings import Finding
from tidelog.sources.postgres.connect import quote_ident
from tidelog.sources.postgres.findings import Connection, one_row
from tidelog.sources.postgres.publication import (
    SIGNAL_COLUMNS,
    Publications,
    PublishedTable,
    create_signal_table,
    signal_columns,
)
from tidelog.sources.postgres.schemas import SchemaFinder

# Is there an index that lets no two rows have these columns alike? And are NULLs alike to it?
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


class TableChecks:
    """Parts of a `Preflight`.

    Args:
        publications: which tables, and how they are published.
        finder: their schemas.
    """

    def __init__(self, publications: Publications, finder: SchemaFinder) -> None:
        self._publications = publications
        self._finder = finder

    def signal_table(self, connection: Connection) -> Iterator[Finding]:
        """Is the table of signals there?"""
        table = self._publications.signals
        if table is None:
            return
        if set(SIGNAL_COLUMNS) <= signal_columns(connection, table):
            yield Finding("signal table", "ok", f"{table} is there")
        else:
            text = f"{table} does not exist, or lacks columns"
            yield Finding("signal table", "fail", text, create_signal_table(table))

    def tables(self, connection: Connection) -> Iterator[Finding]:
        """Can each captured table be read, published and dumped?"""
        captured = self._publications.captured(connection)
        if not captured:
            text = f"no table matches {', '.join(self._publications.patterns)}"
            yield Finding("tables", "warn", text, "correct source.tables, or create the tables")
            return
        yield Finding("tables", "ok", f"{len(captured)} tables match")
        members = self._publications.members(connection)
        published = set().union(*members.values())
        for table in captured:
            yield from self._table(connection, table, table.table in published)

    def _table(
        self, connection: Connection, table: PublishedTable, published: bool
    ) -> Iterator[Finding]:
        name = str(table.table)
        quoted = quote_ident(table.table.namespace, table.table.name)
        user = quote_ident(connection.info.user)
        readable, owned = one_row(
            connection,
            "SELECT has_table_privilege(c.oid, 'SELECT') AND "
            "has_schema_privilege(c.relnamespace, 'USAGE'), pg_has_role(c.relowner, 'USAGE') "
            "FROM pg_class c WHERE c.oid = %s::oid",
            (table.relation_id,),
        )
        if not readable:
            fix = (
                f"GRANT USAGE ON SCHEMA {quote_ident(table.table.namespace)} TO {user}; "
                f"GRANT SELECT ON {quoted} TO {user};"
            )
            yield Finding(f"table {name}", "fail", "it can't be read, so not be dumped", fix)
        if not published and not owned:
            publication = self._publications.name
            fix = f"ALTER PUBLICATION {quote_ident(publication)} ADD TABLE {quoted}; -- its owner"
            yield Finding(
                f"table {name}", "fail", "only its owner can add it to the publication", fix
            )
        found = self._finder.find(connection, table.table)
        if found is not None and found.unfit is not None:
            yield Finding(f"table {name}", "fail", found.unfit)
        elif found is not None and not found.schema.key:
            fix = (
                f"ALTER TABLE {quoted} ADD PRIMARY KEY (...); -- or name a unique key: source.keys"
            )
            yield Finding(
                f"table {name}", "warn", "no primary key: changes are captured, dumps refused", fix
            )
        if found is not None and self._is_surrogate(connection, found.schema):
            yield from self._surrogate(connection, found.schema)
        if not table.identified:
            fix = f"ALTER TABLE {quoted} REPLICA IDENTITY FULL; -- or give it a primary key"
            yield Finding(
                f"table {name}",
                "warn",
                "no replica identity (of it or a partition): only inserts, truncates are captured",
                fix,
            )

    def unlogged(self, connection: Connection) -> Iterator[Finding]:
        """Tables that match and never stand in the log."""
        rows = connection.execute(
            b"SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n "
            b"ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence = 'u'"
        ).fetchall()
        for namespace, name in rows:
            table = TableName(namespace, name)
            if matches(self._publications.patterns, table):
                fix = f"ALTER TABLE {quote_ident(namespace, name)} SET LOGGED;"
                yield Finding(f"table {table}", "warn", "unlogged: it is not captured", fix)

    def _is_surrogate(self, connection: Connection, schema: TableSchema) -> bool:
        (primary,) = one_row(
            connection,
            "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %s::oid AND indisprimary)",
            (schema.relation_id,),
        )
        return bool(schema.key) and not primary

    def _surrogate(self, connection: Connection, schema: TableSchema) -> Iterator[Finding]:
        """A key of source.keys must tell rows apart."""
        name = f"table {schema.table}"
        quoted = quote_ident(schema.table.namespace, schema.table.name)
        listed = ", ".join(quote_ident(column) for column in schema.key)
        unique, nulls_alike = one_row(connection, _UNIQUE, (schema.relation_id, list(schema.key)))
        nullable = any(c.nullable for c in schema.columns if c.name in schema.key)
        if not unique:
            text = "the key in source.keys is not unique: rows with the same key overwrite another"
            yield Finding(name, "fail", text, f"CREATE UNIQUE INDEX ON {quoted} ({listed});")
        elif nullable and not nulls_alike:
            text = (
                "the key in source.keys may hold NULL in several rows, which can't be told apart: "
                "its dump is refused then"
            )
            fix = f"CREATE UNIQUE INDEX ON {quoted} ({listed}) NULLS NOT DISTINCT;"
            yield Finding(name, "warn", text, f"{fix} -- or make the columns NOT NULL")
