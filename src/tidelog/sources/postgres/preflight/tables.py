"""Checks the captured tables, the publications and the metadata tables for `tidelog check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidelog.codecs.postgres.formats import PGOUTPUT
from tidelog.codecs.wire_formats import add_key_sql
from tidelog.errors import UnsupportedTableError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema, double_quoted
from tidelog.model.units import counted
from tidelog.sources.findings import SUPERUSER, Finding, matching_message
from tidelog.sources.postgres.catalogue.identity import BYPASS_POLICIES
from tidelog.sources.postgres.catalogue.metadata_tables import (
    SIGNAL_COLUMNS,
    create_signal_table,
    create_watermark_table,
    signal_columns,
    watermark_table_refusal,
)
from tidelog.sources.postgres.catalogue.publication import (
    Publications,
    PublishedTable,
    foreign_warning,
)
from tidelog.sources.postgres.catalogue.publication_plan import PublicationPlanner, PublicationStep
from tidelog.sources.postgres.catalogue.schemas import PostgresFoundTable, PostgresSchemaFinder
from tidelog.sources.postgres.connect import Connection
from tidelog.sources.table_settings import KEYLESS, excluded_finding, proposed_key

# Queries that the checks share.


def one_row(connection: Connection, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The query's only row."""
    found = connection.execute(query.encode(), arguments or None).fetchone()
    assert found is not None
    return found


def setting_of(connection: Connection, name: str) -> str:
    """A setting of the server, as text."""
    (value,) = one_row(connection, "SELECT current_setting(%s)", (name,))
    return str(value)


def owner_of(connection: Connection, relation_id: int) -> str:
    """The table's owner, quoted if necessary."""
    query = "SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::oid"
    (owner,) = one_row(connection, query, (relation_id,))
    return str(owner)


# Tables.

# Whether a unique index has exactly these columns, and whether NULLs are not distinct in it.
_UNIQUE = """
SELECT coalesce(bool_or(true), false),
  coalesce(bool_or(coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') = 'true'), false)
FROM pg_catalog.pg_index i
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND (
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
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid HAVING bool_and(a.attnotnull) ORDER BY i.indexrelid
"""

# The name of the primary key, if it is deferrable, and its columns.
_DEFERRABLE = """
SELECT c.conname::text, array_agg(a.attname::text ORDER BY k.number)
FROM pg_catalog.pg_constraint c
CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k(attnum, number)
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
WHERE c.conrelid = %s::oid AND c.contype = 'p' AND c.condeferrable
GROUP BY c.oid, c.conname
"""

# The tables, and the partitions of tables without a key, that the role may not read.
_UNREADABLE = """
WITH RECURSIVE tree AS (
  SELECT c.oid, c.relkind, c.oid <> ALL (%s::oid[]) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate) AS parts
  FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
  UNION ALL
  SELECT c.oid, c.relkind, true
  FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  WHERE tree.parts AND tree.relkind = 'p'
)
SELECT n.nspname, c.relname, has_any_column_privilege(c.oid, 'SELECT')
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(c.oid, 'SELECT')
ORDER BY 1, 2
"""

DEFERRABLE_KEY = (
    "its primary key is DEFERRABLE, so two rows may have one key for a moment, and it can't be the "
    "key of a copy"
)
SHOWN = 3  # reasons, or tables, shown, of many


class PostgresTableChecks:
    """Parts of a `PostgresPreflight`.

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
            yield Finding("tables", "warning", text, "correct source.tables, or create the tables")
            return
        yield Finding("tables", "ok", matching_message(len(captured)))
        yield from _schemas(connection, {table.table.namespace for table in captured})
        keyed = [t.relation_id for t in captured if self._finder.names_key_of(t.table)]
        unreadable = _unreadable(connection, captured, keyed)
        yield from _select_findings(connection, unreadable)
        yield from _policies(connection, captured)
        found = self._finder.find_all(connection, [table.table for table in captured])
        for table in captured:
            yield from self._table(connection, table, found.get(table.table))

    def _table(
        self,
        connection: Connection,
        table: PublishedTable,
        found: PostgresFoundTable | UnsupportedTableError | None,
    ) -> Iterator[Finding]:
        name = str(table.table)
        if isinstance(found, UnsupportedTableError):
            yield Finding(f"table {name}", "error", found.reason)
            return
        if found is not None and found.unfit is not None:
            yield Finding(f"table {name}", "error", found.unfit)
        elif found is not None and not found.schema.key:
            yield self._keyless(connection, found.schema)
        if found is not None and found.schema.excluded:
            yield excluded_finding(found.schema)
        named = self._finder.names_key_of(table.table)
        if named and found is not None and self._is_surrogate(connection, found.schema):
            yield from self._surrogate(connection, found.schema)

    def _keyless(self, connection: Connection, schema: TableSchema) -> Finding:
        quoted = double_quoted(schema.table.namespace, schema.table.name)
        text = KEYLESS
        fix = add_key_sql(schema.table, PGOUTPUT)
        deferrable = connection.execute(_DEFERRABLE.encode(), (schema.relation_id,)).fetchone()
        if deferrable is not None:
            constraint, columns = deferrable
            listed = ", ".join(double_quoted(column) for column in columns)
            text = KEYLESS.replace("no primary key", DEFERRABLE_KEY, 1)
            fix = (
                f"ALTER TABLE {quoted} DROP CONSTRAINT {double_quoted(constraint)}, "
                f"ADD PRIMARY KEY ({listed})"
            )
        unique = _unique_keys(connection, schema)
        return Finding(
            f"table {schema.table}", "warning", text, proposed_key(schema.table, unique) or fix
        )

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
                fix = f"ALTER TABLE {double_quoted(namespace, name)} SET LOGGED;"
                text = "unlogged: it is not captured. Making it logged rewrites it"
                yield Finding(f"table {table}", "warning", text, fix, owner, by_hand=True)

    def _is_surrogate(self, connection: Connection, schema: TableSchema) -> bool:
        (primary,) = one_row(
            connection,
            "SELECT EXISTS "
            "(SELECT FROM pg_index WHERE indrelid = %s::oid AND indisprimary AND indimmediate)",
            (schema.relation_id,),
        )
        return bool(schema.key) and not primary

    def _surrogate(self, connection: Connection, schema: TableSchema) -> Iterator[Finding]:
        """Check that a key of source.keys is unique."""
        name = f"table {schema.table}"
        quoted = double_quoted(schema.table.namespace, schema.table.name)
        listed = ", ".join(double_quoted(column) for column in schema.key)
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
            yield Finding(name, "error", text, index, owner)
        elif nullable and not nulls_alike:
            text = (
                "the key in source.keys may hold NULL in several rows, which can't be "
                "distinguished: its dump is refused then"
            )
            fix = f"{index} -- or make the columns NOT NULL" if alike else "make them NOT NULL"
            yield Finding(name, "warning", text, fix, owner)


def _schemas(connection: Connection, names: Iterable[str]) -> Iterator[Finding]:
    """Check that the role may use the schemas of the captured tables; one finding for each."""
    user = double_quoted(connection.info.user)
    for name in sorted(names):
        (usable,) = one_row(connection, "SELECT has_schema_privilege(%s, 'USAGE')", (name,))
        if not usable:
            fix = f"GRANT USAGE ON SCHEMA {double_quoted(name)} TO {user};"
            text = "the role may not use it, so its tables can't be dumped"
            yield Finding(f"schema {name}", "error", text, fix, SUPERUSER)


def _unreadable(
    connection: Connection, captured: Sequence[PublishedTable], keyed: Sequence[int]
) -> dict[TableName, bool]:
    """Return the tables that the role may not read, and whether it may read some of their columns.
    Those without a key are read partition by partition, so partitions count as tables there.

    ``keyed``: the oids of those that have a key in the configuration.
    """
    oids = [table.relation_id for table in captured]
    rows = connection.execute(_UNREADABLE.encode(), (list(keyed), oids)).fetchall()
    return {TableName(namespace, name): in_part for namespace, name, in_part in rows}


# LOCK TABLE, in the server's lockcmds.c.
_IN_PART = (
    ". Rights to single columns are not enough: a dump locks its table against DDL, for which "
    "PostgreSQL asks for SELECT on the table"
)


def _select_findings(connection: Connection, found: Mapping[TableName, bool]) -> Iterator[Finding]:
    tables = list(found)
    if not tables:
        return
    quoted = ", ".join(double_quoted(table.namespace, table.name) for table in tables)
    fix = f"GRANT SELECT ON {quoted} TO {double_quoted(connection.info.user)};"
    why = _IN_PART if any(found.values()) else ""
    if len(tables) == 1:
        text = f"it can't be read, so it can't be dumped{why}"
        yield Finding(f"table {tables[0]}", "error", text, fix, SUPERUSER)
        return
    named = ", ".join(str(table) for table in tables[:SHOWN])
    more = f" and {len(tables) - SHOWN:,} more" if len(tables) > SHOWN else ""
    text = f"{len(tables):,} tables can't be read, so they can't be dumped: {named}{more}{why}"
    yield Finding("rights", "error", text, fix, SUPERUSER)


def _unique_keys(connection: Connection, schema: TableSchema) -> list[list[str]]:
    """Return the columns of each unique index of the table that identifies all of its rows, and has
    no excluded column.
    """
    rows = connection.execute(_UNIQUE_KEYS, (schema.relation_id,)).fetchall()
    excluded = {each.column.name for each in schema.excluded}
    return [columns for (columns,) in rows if excluded.isdisjoint(columns)]


def _policies(connection: Connection, captured: Sequence[PublishedTable]) -> Iterator[Finding]:
    """Check that row-level security hides no rows from the role: a dump must not miss them
    silently.
    """
    rows = connection.execute(
        b"SELECT c.oid::int8, pg_has_role(c.relowner, 'USAGE'), r.rolsuper "
        b"FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner "
        b"WHERE c.oid = ANY (%s::int8[]::oid[]) AND row_security_active(c.oid)",
        ([table.relation_id for table in captured],),
    ).fetchall()
    active = {oid: row for oid, *row in rows}
    user = double_quoted(connection.info.user)
    text = (
        "row-level security would hide rows from this role, so it is not dumped (a policy "
        "that shows all rows would not help)"
    )
    for table in captured:
        if table.relation_id not in active:
            continue
        owned, of_superuser = active[table.relation_id]
        fix = BYPASS_POLICIES.replace("…", user)
        if owned:  # only FORCE ROW LEVEL SECURITY applies to an owner
            fix += f" -- or, as its owner: ALTER TABLE {table.quoted} NO FORCE ROW LEVEL SECURITY;"
        elif not of_superuser:  # whose members would be superusers
            fix += f" -- or: GRANT {owner_of(connection, table.relation_id)} TO {user};"
        yield Finding(f"table {table.table}", "error", text, fix, SUPERUSER)


# Publications and metadata tables.


class PublicationChecks:
    """Parts of a `PostgresPreflight`.

    Args:
        publications: the publications as they should be.
    """

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._writes = publications.strategy != "snapshot"

    # ------------------------------------------------------------------ metadata tables

    def watermark_table(self, connection: Connection) -> Iterator[Finding]:
        """Check that the watermark table exists or can be created."""
        if self._publications.strategy != "table":
            return
        watermark = self._publications.watermark
        refusal = watermark_table_refusal(connection, watermark)
        if refusal is not None:
            text, fix = f"{watermark}: {refusal.reason}", refusal.remedy or ""
            yield Finding("watermark table", "error", text, fix, SUPERUSER, by_hand=True)
            return
        user = double_quoted(connection.info.user)
        name, schema = double_quoted(watermark.namespace, watermark.name), watermark.namespace
        exists, has_schema, in_schema, in_database = one_row(
            connection,
            "SELECT to_regclass(%s) IS NOT NULL, n.oid IS NOT NULL, "
            "coalesce(has_schema_privilege(n.oid, 'CREATE, USAGE') AND "
            "has_schema_privilege(n.oid, 'CREATE'), false), "
            "has_database_privilege(current_database(), 'CREATE') "
            "FROM (VALUES (%s)) AS s(name) LEFT JOIN pg_namespace n ON n.nspname = s.name",
            (name, schema),
        )
        if exists:
            (writable,) = one_row(
                connection,
                "SELECT has_schema_privilege(%s, 'USAGE') AND has_table_privilege(%s, 'SELECT') "
                "AND has_table_privilege(%s, 'INSERT') AND has_table_privilege(%s, 'UPDATE')",
                (schema, name, name, name),
            )
            if writable:
                yield Finding("watermark table", "ok", f"{watermark} exists")
            else:
                fix = (
                    f"GRANT USAGE ON SCHEMA {double_quoted(schema)} TO {user};\n"
                    f"GRANT SELECT, INSERT, UPDATE ON {name} TO {user};"
                )
                text = f"{watermark} can't be written"
                yield Finding("watermark table", "error", text, fix, SUPERUSER)
        elif in_schema if has_schema else in_database:
            yield Finding("watermark table", "ok", f"{watermark} will be created")
        else:
            fix = f"GRANT CREATE, USAGE ON SCHEMA {double_quoted(schema)} TO {user};"
            if not has_schema:
                fix = f"CREATE SCHEMA {double_quoted(schema)};\n{fix}"
            text = f"{watermark} can't be created"
            yield Finding("watermark table", "error", text, fix, SUPERUSER)

    def signal_table(self, connection: Connection) -> Iterator[Finding]:
        """Check that the signal table exists."""
        table = self._publications.signals
        if table is None:
            return
        columns = signal_columns(connection, table)
        if set(SIGNAL_COLUMNS) <= columns:
            yield Finding("signal table", "ok", f"{table} exists")
            return
        quoted = double_quoted(table.namespace, table.name)
        if columns:
            lacking = ", ".join(sorted(set(SIGNAL_COLUMNS) - columns))
            text = f"{table} lacks columns: {lacking}"
            fix = f"name another table in source.signal_table, or give it: {lacking}"
            yield Finding("signal table", "error", text, fix)
            return
        fix = create_signal_table(table)
        if self._writes:  # so that capture can publish it
            fix += f"\nALTER TABLE {quoted} OWNER TO {double_quoted(connection.info.user)};"
        yield Finding("signal table", "error", f"{table} does not exist", fix, SUPERUSER)

    # ------------------------------------------------------------------ publications

    def publications(self, connection: Connection) -> Iterator[Finding]:
        """Check that the publications are correct, or that capture will fix them."""
        planner = self._publications.planner(connection)
        steps = planner.steps()
        left = [step for step in steps if not (self._writes and planner.is_automatic(step))]
        statements = self._statements(connection, planner, steps if left else [])
        if statements:
            allowed = self._writes and all(step.allowed for step in steps)
            yield Finding(
                "publication",
                "error",
                _reasons(left) or "capture can't add its metadata tables to the publication",
                "\n".join(statements),
                double_quoted(connection.info.user) if allowed else SUPERUSER,
            )
        else:
            yield from self._publication_findings(planner, steps)
        for state in planner.view.publications.values():
            if not planner.owns(state.name) and state.slot:
                fix = f"source.publication: {self._publications.slot}"
                yield Finding(
                    "publication", "warning", foreign_warning(state.name, state.slot), fix
                )
        for table in planner.stuck_tables():
            assert table.identity.trouble is not None
            yield Finding(
                f"table {table.table}",
                "error",
                f"its updates and deletes fail: publication {planner.name} holds it as one of all "
                f"tables, or of its schema, and {table.identity.trouble.why}",
                table.identity.trouble.remedy,
                owner_of(connection, table.relation_id),
            )

    def _publication_findings(
        self, planner: PublicationPlanner, steps: Sequence[PublicationStep]
    ) -> Iterator[Finding]:
        fixes = [step for step in steps if step.kind == "fix"]
        for name in self._publications.names:
            if name not in planner.view.publications:
                text = f"{name} will be created at the first start"
                yield Finding("publication", "ok", text)
            elif not any(name in step.publications for step in fixes):
                yield Finding("publication", "ok", f"{name} is correct")
        for step in fixes:
            yield Finding("publication", "ok", f"{step.why}: capture fixes this")
        if planner.view.others:
            count = len(planner.view.others)
            held = "a table" if count == 1 else f"{count:,} tables"
            text = f"other tables stay: {held} that source.tables does not name"
            yield Finding("publication", "ok", text)

    def _statements(
        self, connection: Connection, planner: PublicationPlanner, steps: Sequence[PublicationStep]
    ) -> list[str]:
        """The SQL of these steps, and the statements that let capture do the rest."""
        user = double_quoted(connection.info.user)
        missing = self._to_be_added(planner)
        found: list[str] = []
        main = planner.view.publications.get(planner.name)
        if self._writes and main is not None and missing and not main.alterable:
            if all(member.direct for member in main.members.values()):
                found.append(f"ALTER PUBLICATION {double_quoted(main.name)} OWNER TO {user};")
            else:  # only a superuser may own a publication of schemas
                found += self._grants_for(user)
        for step in steps:
            found += step.statements
            if step.kind == "create" and self._writes:
                name = double_quoted(step.publications[0])
                found.append(f"ALTER PUBLICATION {name} OWNER TO {user};")
        if not self._writes:
            found += [
                f"ALTER PUBLICATION {double_quoted(planner.name)} ADD TABLE ONLY "
                f"{double_quoted(table.namespace, table.name)};"
                for table in missing
            ]
        return found

    def _to_be_added(self, planner: PublicationPlanner) -> list[TableName]:
        """Metadata tables that don't exist yet, or are not in the publication."""
        watermark, signals = self._publications.watermark, self._publications.signals
        wanted = [watermark] if self._publications.strategy == "table" else []
        wanted += [signals] if signals is not None else []
        main = planner.view.publications.get(planner.name)
        if main is not None and main.all_tables:
            return []
        existing = {table.table for table in planner.view.own}
        held = set() if main is None else set(main.members)
        return [name for name in wanted if name not in held and not (existing and name in existing)]

    def _grants_for(self, user: str) -> list[str]:
        watermark = self._publications.watermark
        schema = double_quoted(watermark.namespace)
        table = double_quoted(watermark.namespace, watermark.name)
        return [
            f"CREATE SCHEMA IF NOT EXISTS {schema};",
            create_watermark_table(self._publications.watermark),
            f"GRANT USAGE ON SCHEMA {schema} TO {user};",
            f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user};",
            f"ALTER PUBLICATION {double_quoted(self._publications.name)} ADD TABLE {table};",
        ]

    # ------------------------------------------------------------------ identities

    def identities(self, connection: Connection) -> Iterator[Finding]:
        """Report tables of which only inserts and truncates are captured, and the remedy."""
        planner = self._publications.planner(connection)
        stuck_tables = planner.stuck_tables()
        for table in planner.view.captured:
            trouble = table.identity.trouble
            if trouble is None or table.identity.needs_generated or table in stuck_tables:
                continue
            fix, role = trouble.remedy, owner_of(connection, table.relation_id)
            if trouble.fix and not self._capture_publishes_updates(planner, table):
                moves = _move_sql(planner, table)
                comment = f" -- {trouble.advice}" if trouble.advice else ""
                fix = "\n".join([*trouble.fix, *moves]) + comment
                role = SUPERUSER
            text = f"only inserts and truncates are captured: {trouble.why}"
            yield Finding(f"table {table.table}", "warning", text, fix, role if trouble.fix else "")

    def left_out_columns(self, connection: Connection) -> Iterator[Finding]:
        """Report generated columns that are not captured."""
        planner = self._publications.planner(connection)
        user = double_quoted(connection.info.user)
        states = planner.view.publications.values()
        role = user if all(state.alterable for state in states) else SUPERUSER
        for table, found in planner.left_out_columns().items():
            text = (
                f"captured and dumped without {counted(len(found.columns), 'generated column')}: "
                f"{', '.join(found.columns)} ({found.reason})"
            )
            of = role if found.remedy.startswith("ALTER") else ""
            yield Finding(f"table {table}", "warning", text, found.remedy, of, by_hand=True)

    def _capture_publishes_updates(
        self, planner: PublicationPlanner, table: PublishedTable
    ) -> bool:
        """Return True if capture itself publishes the updates once the table has an identity."""
        states = planner.view.publications
        return (
            self._writes
            and table.owned
            and all(planner.owns(name) for name in self._publications.names)
            and all(state.alterable for state in states.values())
        )


def _move_sql(planner: PublicationPlanner, table: PublishedTable) -> list[str]:
    return [
        f"ALTER PUBLICATION {double_quoted(planner.inserts_name)} DROP TABLE {table.target};",
        f"ALTER PUBLICATION {double_quoted(planner.name)} ADD TABLE {table.target};",
    ]


def _reasons(steps: Sequence[PublicationStep]) -> str:
    reasons = list(dict.fromkeys(step.why for step in steps))
    text = "; ".join(reasons[:SHOWN])
    return f"{text}; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else text
