"""Names in destinations: odd ones are held exactly, and what a server can't hold is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.payloads import table_schema

from tidelog.demo.servers.mysql import MySqlFamilyServer
from tidelog.demo.servers.postgres import PostgresServer
from tidelog.errors import OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.database.dialect import Dialect
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres

pytestmark = pytest.mark.integration

ODD = ("disc%s", "100%", "a%%b", "order", 'qu"ote', "back`tick", "with space", "T", "ünï", "it's")


def write_row(dialect: Dialect, name: str, column: str, namespace: str, own: str) -> Copy:
    """A row through the table and the staging table, then a row deleted and one that is new."""
    schema = table_schema([("id", "int64"), (column, "text")], key=["id"])
    schema = replace(schema, table=TableName("shop", name))
    copy = copy_of(dialect, schema, "postgres", namespace, own=own)
    for version in (1, 2):
        rows = [("u", version, {"id": key, column: f"v{version}"}) for key in (1, 2)]
        assert copy.write(changes(copy.table, *rows)) == []
    copy.write(changes(copy.table, ("d", 3, {"id": 2})))
    assert copy.select(f"SELECT id, {dialect.quoted(column)} FROM {{t}}") == [(1, "v2")]
    return copy


def test_postgres_holds_odd_names(postgres18: PostgresServer) -> None:
    dialect = Postgres(postgres18.create_database("odd_names"))
    for name in ODD:
        write_row(dialect, name, name, "100%s", "own%s")


def test_mysql_holds_odd_names(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> None:
    own = f"{mysql_family_database}%s"
    for name in ODD:
        write_row(MySql(mysql_family.dsn()), name, name, mysql_family_database, own)
    mysql_family.execute(f"DROP DATABASE `{own}`")


@pytest.mark.parametrize("part", ["table", "column"])
def test_a_name_that_postgres_would_cut_is_refused(postgres18: PostgresServer, part: str) -> None:
    """Two tables alike in their first 63 bytes would be one."""
    dialect = Postgres(postgres18.create_database(f"long_names_{part}"))
    longest = "ü" * 31
    for n, name in enumerate((f"{longest}t", longest)):
        write_row(dialect, name if part == "table" else f"t{n}", name, "shop", "own")
    name = f"{longest}tt"
    with pytest.raises(OutputRefusedError, match="63 bytes"):
        write_row(dialect, *((name, "v") if part == "table" else ("u", name)), "shop", "own")


@pytest.mark.parametrize("part", ["table", "column"])
def test_a_name_that_ends_in_a_space_is_refused_at_mysql(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    postgres18: PostgresServer,
    part: str,
) -> None:
    """With the step to write; PostgreSQL holds such names."""
    names = ("v ", "u") if part == "table" else ("t", "v ")
    own = f"{mysql_family_database}_own"
    advice = "{route: " if part == "table" else "{rename: {'v ': OTHER}"
    with pytest.raises(OutputRefusedError, match=f"ends in a space.* {re.escape(advice)}"):
        write_row(MySql(mysql_family.dsn()), *names, mysql_family_database, own)
    mysql_family.drop_database(own)
    name = f"spaces_{mysql_family_database}"
    write_row(Postgres(postgres18.create_database(name)), *names, "shop", "own")


def test_mysql_servers_that_require_a_key_of_every_table(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    mysql = mysql_family.flavour == "mysql"
    setting = "sql_require_primary_key" if mysql else "innodb_force_primary_key"
    if not mysql_family.execute(f"SHOW VARIABLES LIKE '{setting}'"):
        pytest.skip(f"this server has no {setting}")
    own = f"{mysql_family_database}_own"
    mysql_family.execute(f"SET GLOBAL {setting} = 1")
    try:
        write_row(MySql(mysql_family.dsn()), "t", "v", mysql_family_database, own)
    finally:
        mysql_family.execute(f"SET GLOBAL {setting} = 0")
    mysql_family.drop_database(own)
