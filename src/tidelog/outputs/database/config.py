"""Kinds ``postgres`` and ``mysql``: their sections, their probes, and how they are opened."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field

from tidelog.errors import OutputRefusedError
from tidelog.kinds.sections import PostgresName, SecretUrl
from tidelog.model.patterns import overlap
from tidelog.model.schema import TableName, double_quoted
from tidelog.outputs.base.builtin_kind import BuiltinKind, normal_hosts
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.sections import KEYLESS, ExecutorSection, SkipOrFail, name_field
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.database.dialect import DatabaseSession, Dialect
    from tidelog.outputs.database.postgres import Postgres, PostgresSession


class DatabaseSection(ExecutorSection):
    """The options that outputs into tables of databases share."""

    copies = "as_source"

    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard`: rows that the source deletes are deleted. `soft`: they stay, with "
        "`_tidelog_deleted` true.",
    )
    keyless: SkipOrFail = KEYLESS
    batch_rows: int = Field(
        default=50_000,
        ge=1,
        le=10_000_000,
        description="About how many rows of a table are written in one transaction.",
    )
    url: SecretUrl
    default_port: ClassVar[int]
    namespace_option: ClassVar[str] = "database"

    def keyless_of(self, table: TableName) -> SkipOrFail:
        return self.keyless

    def option_apart(self, url: str, schemes: Collection[str], tables: Sequence[str]) -> str | None:
        """See `OutputSection.option_apart`. A step that routes may prevent it: then None."""
        one, other = (urlsplit(each) for each in (self.url.reveal(), url))
        if one.scheme not in schemes or any(step.action == "route" for step in self.steps):
            return None
        if any("host=" in each.query or "socket=" in each.query for each in (one, other)):
            return None
        hosts, others = (
            {
                _LOOPBACK.sub("127.0.0.1", host)
                for host in normal_hosts(each.netloc.rpartition("@")[2], self.default_port)
            }
            for each in (one, other)
        )
        if not hosts & others or (self.namespace_option == "schema" and one.path != other.path):
            return None
        place = self.namespace
        own = self.tables if place is None else [f"{double_quoted(place)}.*"]
        return self.namespace_option if overlap(own, tables) else None

    @property
    def namespace(self) -> str | None:
        """Of tables that no step routes; None: named as in the source."""
        raise NotImplementedError


_LOOPBACK = re.compile(r"^(?:localhost|\[::1\])(?=:)")


class PostgresSection(DatabaseSection):
    """Tables of PostgreSQL, kept equal to the source's by upserts (docs/outputs/postgres.md)."""

    default_port = 5432
    namespace_option = "schema"
    kind: Literal["postgres"] = Field(description="The kind of output.")
    name: str = name_field(
        "postgres",
        "Names the output's progress in the state store and in the database: keep it.",
    )
    url: SecretUrl = Field(
        description="Connection URL, as libpq reads it.",
        examples=["postgresql://tidelog:${PGPASSWORD}@db:5432/copy"],
    )
    schema_: PostgresName | None = Field(
        default=None,
        alias="schema",
        description="Schema of tables that no step routes. Unset: named as in the source.",
        examples=["shop"],
    )
    own_schema: PostgresName = Field(
        default="tidelog",
        description="Schema of the metadata tables, with those of deleted keys.",
    )

    @property
    def namespace(self) -> str | None:
        return self.schema_


class MySqlSection(DatabaseSection):
    """Tables of MySQL or MariaDB, kept equal to the source's by upserts (docs/outputs/mysql.md)."""

    default_port = 3306
    kind: Literal["mysql"] = Field(description="The kind of output, MySQL and MariaDB.")
    name: str = name_field(
        "mysql",
        "Names the output's progress in the state store and in the database: keep it.",
    )
    url: SecretUrl = Field(
        description="Connection URL, with the options for TLS that the sources' have. The password "
        "is never printed.",
        examples=["mysql://tidelog:${MYSQL_PASSWORD}@db:3306/copy"],
    )
    database: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Database of tables that no step routes. Unset: the URL's; if it has none, "
        "named as the source's schema or database.",
        examples=["shop"],
    )
    own_database: str = Field(
        default="tidelog",
        min_length=1,
        max_length=64,
        description="Database of the metadata tables, with those of deleted keys.",
    )

    @property
    def namespace(self) -> str | None:
        return self.database or unquote(urlsplit(self.url.reveal()).path.strip("/")) or None


def _postgres_probe(section: PostgresSection) -> str:
    from tidelog.outputs.database.postgres import Postgres

    dialect = Postgres(section.url.reveal())
    with closing(dialect.connect("check")) as session:
        if missing := _missing_grants(dialect, session, section, ()):
            raise OutputRefusedError(
                f"it may not create its tables. As {missing[0][0]}: "
                + " ".join(statement for _, statement in missing)
            )
        return _version_text(session)


def _probed_schemas(section: PostgresSection) -> set[str]:
    """The schemas that the output needs whatever its tables are."""
    return {section.own_schema, section.schema_ or section.own_schema}


def _mysql_probe(section: MySqlSection) -> str:
    from tidelog.outputs.database.mysql import MySql

    with closing(MySql(section.url.reveal()).connect("check")) as session:
        return _version_text(session)


def _version_text(session: DatabaseSession) -> str:
    [(version,)] = session.rows("SELECT version()")
    return f"the server accepts the connection: {str(version).split(' on ')[0]}"


def _postgres(section: PostgresSection, context: OutputContext) -> Output:
    from tidelog.outputs.database.postgres import Postgres

    dialect = Postgres(section.url.reveal())
    return _database(section, context, dialect, section.schema_, section.own_schema)


def _mysql(section: MySqlSection, context: OutputContext) -> Output:
    from tidelog.outputs.database.mysql import MySql

    dialect = MySql(section.url.reveal())
    return _database(section, context, dialect, section.namespace, section.own_database)


def _database(
    section: DatabaseSection,
    context: OutputContext,
    dialect: Dialect,
    namespace: str | None,
    own: str,
) -> Output:
    from tidelog.outputs.database.output import DatabaseOutput

    return DatabaseOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery_of(section, keyed=True, keyless=section.keyless),
        dialect,
        namespace=namespace,
        own=own,
        deletes=section.deletes,
        batch_rows=section.batch_rows,
    )


def _postgres_location(section: PostgresSection) -> OutputLocation:
    return _location(section.url.reveal(), section.schema_, section.default_port)


def _mysql_location(section: MySqlSection) -> OutputLocation:
    return _location(section.url.reveal(), section.namespace, section.default_port)


def _location(url: str, namespace: str | None, port: int) -> OutputLocation:
    parts = urlsplit(url)
    found = normal_hosts(parts.netloc.rpartition("@")[2], port)
    return OutputLocation([parts.path.strip("/"), namespace], found)


def _postgres_names(section: PostgresSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.database.postgres import Postgres

    dialect = Postgres(section.url.reveal())
    yield from _names(dialect, section, section.schema_, tables)
    with closing(dialect.connect("check")) as session:
        probed = _missing_grants(dialect, session, section, ())
        for owner, statement in _missing_grants(dialect, session, section, tables):
            if (owner, statement) not in probed:
                what = (
                    "create tables"
                    if owner.startswith(_DATABASE_OWNER)
                    else "write a table that is there"
                )
                yield f"output {section.name}: it may not {what}. {statement}"


_DATABASE_OWNER = "the owner of database"


def _missing_grants(
    dialect: Postgres,
    session: PostgresSession,
    section: PostgresSection,
    tables: Sequence[TargetTable],
) -> list[tuple[str, str]]:
    """Return the SQL that lets the output's role create its own tables and these, or write those
    of them that exist, each with who may run it.
    """
    from tidelog.outputs.database.tables import Tables

    soft = section.deletes == "soft"
    places = Tables(dialect, section.name, section.schema_, "", soft)
    new: set[str] = set()
    existing: dict[TableName, list[str]] = {}
    for place in (places.place(session, table) for table in tables):
        found = dialect.find_table(session, place.namespace, place.name)
        if found is None:
            new.add(place.namespace)
            continue
        names = {column.name for column in found.columns}
        existing[place] = [
            f"{name} {kind}" for name, kind in places.own_columns() if name not in names
        ]
    grants = dialect.missing_grants(session, _probed_schemas(section) | new)
    privileges = ("SELECT", "INSERT", "UPDATE", *(() if soft else ("DELETE",)))
    of_tables = dialect.missing_table_grants(session, existing, privileges)
    [(database,)] = session.rows("SELECT current_database()")
    return [
        *((f"{_DATABASE_OWNER} {database}, connected to it", one) for one in grants),
        *((f"the owner of the tables, connected to database {database}", o) for o in of_tables),
    ]


def _mysql_names(section: MySqlSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.database.mysql import MySql

    return _names(MySql(section.url.reveal()), section, section.namespace, tables)


def _names(
    dialect: Dialect,
    section: DatabaseSection,
    namespace: str | None,
    tables: Sequence[TargetTable],
) -> Iterator[str]:
    from tidelog.outputs.base.left_out import refused_names
    from tidelog.outputs.database.tables import Tables, check_names

    places = Tables(dialect, section.name, namespace, "", section.deletes == "soft")
    with closing(dialect.connect("check")) as session:

        def check(table: TargetTable) -> None:
            check_names(session, dialect, section.name, table, places.place(session, table))

        yield from refused_names(section.name, tables, check, partial(places.address, session))


def _postgres_idle(section: PostgresSection, log: LogExtent) -> bool:
    from tidelog.outputs.database.postgres import Postgres

    return _idle(Postgres(section.url.reveal()), section.name, section.own_schema, log)


def _mysql_idle(section: MySqlSection, log: LogExtent) -> bool:
    from tidelog.outputs.database.mysql import MySql

    return _idle(MySql(section.url.reveal()), section.name, section.own_database, log)


def _idle(dialect: Dialect, output: str, own: str, log: LogExtent) -> bool:
    from tidelog.outputs.database import metadata_tables

    if not has_whole_log(log, output):
        return False
    with closing(dialect.connect(output)) as session:
        if dialect.find_table(session, own, "outputs") is None:
            return False
        run = metadata_tables.run_name(output, log.generation)
        return metadata_tables.reached_offset(session, dialect, own, run) <= log.end


class _PostgresKind(BuiltinKind[PostgresSection]):
    def missing_grants(
        self, section: PostgresSection, tables: Sequence[TargetTable]
    ) -> list[tuple[str, str]]:
        """See `tidelog.ports.GrantingOutputKind`."""
        from tidelog.outputs.database.postgres import Postgres

        dialect = Postgres(section.url.reveal())
        with closing(dialect.connect("check")) as session:
            return _missing_grants(dialect, session, section, tables)


POSTGRES = _PostgresKind(
    PostgresSection,
    _postgres,
    _postgres_location,
    probe_with=_postgres_probe,
    names=_postgres_names,
    idle=_postgres_idle,
)


MYSQL = BuiltinKind(
    MySqlSection, _mysql, _mysql_location, "pymysql", _mysql_probe, _mysql_names, _mysql_idle
)
