"""Checks the publications and the metadata tables for `tidelog check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.model.schema import TableName
from tidelog.model.units import counted
from tidelog.sources.findings import SUPERUSER, Finding
from tidelog.sources.postgres.catalogue.metadata_tables import (
    SIGNAL_COLUMNS,
    create_signal_table,
    create_watermark_table,
    signal_columns,
)
from tidelog.sources.postgres.catalogue.publication import (
    Publications,
    foreign_warning,
)
from tidelog.sources.postgres.catalogue.publication_plan import (
    Planner,
    PublicationStep,
    PublishedTable,
)
from tidelog.sources.postgres.connect import quote_ident
from tidelog.sources.postgres.preflight.report import Connection, one_row, owner_of
from tidelog.sources.postgres.watermark_table_checks import watermark_table_refusal

SHOWN = 3  # reasons shown, of many


class PublicationChecks:
    """Parts of a `Preflight`.

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
            yield Finding("watermark table", "fail", text, fix, SUPERUSER, by_hand=True)
            return
        user = quote_ident(connection.info.user)
        name, schema = quote_ident(watermark.namespace, watermark.name), watermark.namespace
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
                    f"GRANT USAGE ON SCHEMA {quote_ident(schema)} TO {user};\n"
                    f"GRANT SELECT, INSERT, UPDATE ON {name} TO {user};"
                )
                text = f"{watermark} can't be written"
                yield Finding("watermark table", "fail", text, fix, SUPERUSER)
        elif in_schema if has_schema else in_database:
            yield Finding("watermark table", "ok", f"{watermark} will be created")
        else:
            fix = f"GRANT CREATE, USAGE ON SCHEMA {quote_ident(schema)} TO {user};"
            if not has_schema:
                fix = f"CREATE SCHEMA {quote_ident(schema)};\n{fix}"
            text = f"{watermark} can't be created"
            yield Finding("watermark table", "fail", text, fix, SUPERUSER)

    def signal_table(self, connection: Connection) -> Iterator[Finding]:
        """Check that the signal table exists."""
        table = self._publications.signals
        if table is None:
            return
        columns = signal_columns(connection, table)
        if set(SIGNAL_COLUMNS) <= columns:
            yield Finding("signal table", "ok", f"{table} exists")
            return
        quoted = quote_ident(table.namespace, table.name)
        if columns:
            lacking = ", ".join(sorted(set(SIGNAL_COLUMNS) - columns))
            text = f"{table} lacks columns: {lacking}"
            fix = f"name another table in source.signal_table, or give it: {lacking}"
            yield Finding("signal table", "fail", text, fix)
            return
        fix = create_signal_table(table)
        if self._writes:  # so that capture can publish it
            fix += f"\nALTER TABLE {quoted} OWNER TO {quote_ident(connection.info.user)};"
        yield Finding("signal table", "fail", f"{table} does not exist", fix, SUPERUSER)

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
                "fail",
                _reasons(left) or "capture can't add its metadata tables to the publication",
                "\n".join(statements),
                quote_ident(connection.info.user) if allowed else SUPERUSER,
            )
        else:
            yield from self._publication_findings(planner, steps)
        for state in planner.view.publications.values():
            if not planner.owns(state.name) and state.slot:
                fix = f"source.publication: {self._publications.slot}"
                yield Finding("publication", "warn", foreign_warning(state.name, state.slot), fix)
        for table in planner.stuck_tables():
            assert table.identity.trouble is not None
            yield Finding(
                f"table {table.table}",
                "fail",
                f"its updates and deletes fail: publication {planner.name} holds it as one of all "
                f"tables, or of its schema, and {table.identity.trouble.why}",
                table.identity.trouble.remedy,
                owner_of(connection, table.relation_id),
            )

    def _publication_findings(
        self, planner: Planner, steps: Sequence[PublicationStep]
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
        self, connection: Connection, planner: Planner, steps: Sequence[PublicationStep]
    ) -> list[str]:
        """The SQL of these steps, and the statements that let capture do the rest."""
        user = quote_ident(connection.info.user)
        missing = self._to_be_added(planner)
        found: list[str] = []
        main = planner.view.publications.get(planner.name)
        if self._writes and main is not None and missing and not main.alterable:
            if all(member.direct for member in main.members.values()):
                found.append(f"ALTER PUBLICATION {quote_ident(main.name)} OWNER TO {user};")
            else:  # only a superuser may own a publication of schemas
                found += self._grants_for(user)
        for step in steps:
            found += step.statements
            if step.kind == "create" and self._writes:
                name = quote_ident(step.publications[0])
                found.append(f"ALTER PUBLICATION {name} OWNER TO {user};")
        if not self._writes:
            found += [
                f"ALTER PUBLICATION {quote_ident(planner.name)} ADD TABLE ONLY "
                f"{quote_ident(table.namespace, table.name)};"
                for table in missing
            ]
        return found

    def _to_be_added(self, planner: Planner) -> list[TableName]:
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
        schema = quote_ident(watermark.namespace)
        table = quote_ident(watermark.namespace, watermark.name)
        return [
            f"CREATE SCHEMA IF NOT EXISTS {schema};",
            create_watermark_table(self._publications.watermark),
            f"GRANT USAGE ON SCHEMA {schema} TO {user};",
            f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user};",
            f"ALTER PUBLICATION {quote_ident(self._publications.name)} ADD TABLE {table};",
        ]

    # ------------------------------------------------------------------ identities

    def identities(self, connection: Connection) -> Iterator[Finding]:
        """Report tables of which only inserts and truncates are captured, and how to
        change that.
        """
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
            yield Finding(f"table {table.table}", "warn", text, fix, role if trouble.fix else "")

    def left_out_columns(self, connection: Connection) -> Iterator[Finding]:
        """Report generated columns that are not captured."""
        planner = self._publications.planner(connection)
        user = quote_ident(connection.info.user)
        states = planner.view.publications.values()
        role = user if all(state.alterable for state in states) else SUPERUSER
        for table, found in planner.left_out_columns().items():
            text = (
                f"captured and dumped without {counted(len(found.columns), 'generated column')}: "
                f"{', '.join(found.columns)} ({found.reason})"
            )
            of = role if found.remedy.startswith("ALTER") else ""
            yield Finding(f"table {table}", "warn", text, found.remedy, of, by_hand=True)

    def _capture_publishes_updates(self, planner: Planner, table: PublishedTable) -> bool:
        """Return True if capture itself publishes the updates once the table has an identity."""
        states = planner.view.publications
        return (
            self._writes
            and table.owned
            and all(planner.owns(name) for name in self._publications.names)
            and all(state.alterable for state in states.values())
        )


def _move_sql(planner: Planner, table: PublishedTable) -> list[str]:
    return [
        f"ALTER PUBLICATION {quote_ident(planner.inserts_name)} DROP TABLE {table.target};",
        f"ALTER PUBLICATION {quote_ident(planner.name)} ADD TABLE {table.target};",
    ]


def _reasons(steps: Sequence[PublicationStep]) -> str:
    reasons = list(dict.fromkeys(step.why for step in steps))
    text = "; ".join(reasons[:SHOWN])
    return f"{text}; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else text
