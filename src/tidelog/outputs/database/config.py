"""Outputs into tables of databases: kinds ``postgres`` and ``mysql``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidelog.kinds.sections import PostgresName, SecretUrl
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import KEYLESS, ExecutorSection, SkipOrFail, name_field


class DatabaseSection(ExecutorSection):
    """The options that outputs into tables of databases share."""

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

    def keyless_of(self, table: TableName) -> SkipOrFail:
        return self.keyless


class PostgresSection(DatabaseSection):
    """Tables of PostgreSQL, kept equal to the source's by upserts (docs/outputs/postgres.md)."""

    kind: Literal["postgres"] = Field(description="The kind of output.")
    name: str = name_field(
        "postgres",
        "Names the output's progress in the state store and in the database: keep it.",
    )
    url: SecretUrl = Field(
        description="Connection URL, as libpq reads it. The password is never printed.",
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


class MySqlSection(DatabaseSection):
    """Tables of MySQL or MariaDB, kept equal to the source's by upserts (docs/outputs/mysql.md)."""

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
        description="Database of tables that no step routes. Unset: named as the source's schema "
        "or database.",
        examples=["shop"],
    )
    own_database: str = Field(
        default="tidelog",
        min_length=1,
        max_length=64,
        description="Database of the metadata tables, with those of deleted keys.",
    )
