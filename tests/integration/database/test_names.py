"""Names in destinations: odd ones are held exactly, and what a server can't hold is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import psycopg
import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.errors import NameRefusedError, OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.database import metadata_tables
from tidelog.outputs.database.dialect import Dialect
from tidelog.outputs.database.metadata_tables import Owner
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
    mysql = mysql_family.flavor == "mysql"
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


def copy_in(dialect: Dialect, namespace: str, own: str, name: str, *columns: str) -> Copy:
    """Of a table with a key ``id``, and texts."""
    key = "ID" if "ID" in columns else "id"
    typed = [(column, "int64" if column == key else "text") for column in columns]
    schema = table_schema(typed, key=[key])
    return copy_of(
        dialect, replace(schema, table=TableName("shop", name)), "postgres", namespace, own=own
    )


def test_tables_and_columns_that_differ_in_case_are_two_at_postgres(
    postgres18: PostgresServer,
) -> None:
    dialect = Postgres(postgres18.create_database("case_twins"))
    for name in ("t", "T"):
        copy = copy_in(dialect, "shop", "own", name, "id", "v", "V")
        rows = [("u", 1, {"id": key, "v": f"{name} v", "V": f"{name} V"}) for key in (1, 2)]
        copy.write(changes(copy.table, *rows))
        copy.write(changes(copy.table, ("d", 2, {"id": 1})))
    for name in ("t", "T"):
        copy = copy_in(dialect, "shop", "own", name, "id", "v", "V")
        assert copy.select('SELECT id, v, "V" FROM {t}') == [(2, f"{name} v", f"{name} V")]


def test_tables_that_differ_in_case_are_two_at_mysql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    own = f"{mysql_family_database}_own"
    dialect = MySql(mysql_family.dsn())
    for name in ("t", "T"):
        copy = copy_in(dialect, mysql_family_database, own, name, "id", "v", f"of_{name}")
        rows = [("u", 1, {"id": key, "v": name, f"of_{name}": "x"}) for key in (1, 2)]
        copy.write(changes(copy.table, *rows))
        copy.write(changes(copy.table, ("d", 2, {"id": 1})))
        assert copy.select("SELECT * FROM {t}") == [(2, name, "x", 1)]
    mysql_family.drop_database(own)


def test_columns_that_differ_in_case_are_refused_at_mysql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    copy = copy_in(
        MySql(mysql_family.dsn()), mysql_family_database, "own_twins", "t", "id", "v", "V"
    )
    with pytest.raises(NameRefusedError, match=r"columns v and V.*\{rename: \{'V': OTHER\}"):
        copy.prepare()
    mysql_family.drop_database("own_twins")


def test_a_column_whose_name_changes_in_case_is_renamed_at_mysql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """Also one of the key: deleted keys stay deleted."""
    own = f"{mysql_family_database}_own"
    dialect = MySql(mysql_family.dsn())
    before = copy_in(dialect, mysql_family_database, own, "t", "id", "v")
    before.write(changes(before.table, *(("u", 1, {"id": key, "v": "a"}) for key in (1, 2))))
    before.write(changes(before.table, ("d", 5, {"id": 1})))
    copy = copy_in(dialect, mysql_family_database, own, "t", "ID", "V")
    copy.attempt = before.attempt
    copy.write(changes(copy.table, ("u", 3, {"ID": 1, "V": "late"}), ("u", 6, {"ID": 3, "V": "b"})))
    assert copy.select("SELECT * FROM {t} ORDER BY 1") == [(2, "a", 1), (3, "b", 6)]
    names = mysql_family.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 't' "
        f"AND table_schema = '{mysql_family_database}' ORDER BY ordinal_position"
    )
    assert [name for (name,) in names] == ["ID", "V", "_tidelog_version"]
    mysql_family.drop_database(own)


def test_metadata_tables_that_ignored_case_are_altered(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    own = f"{mysql_family_database}_own"
    mysql_family.execute(f"CREATE DATABASE `{own}` CHARACTER SET latin1")
    session = MySql(mysql_family.dsn()).connect("test")
    session.rows(
        f"CREATE TABLE {own}.outputs (name varchar(150) PRIMARY KEY, attempt bigint NOT NULL)"
    )
    session.rows(
        f"CREATE TABLE {own}.output_tables (name varchar(150) NOT NULL PRIMARY KEY, "
        "output varchar(64) NOT NULL, source varchar(150) NOT NULL, "
        "generation varchar(64) NOT NULL, floor bigint NOT NULL)"
    )
    dialect = MySql(mysql_family.dsn())
    session.rows(f"INSERT INTO {own}.output_tables VALUES ('shop.t', 'o', 's.t', 'g', 7)")
    for _ in range(2):
        metadata_tables.create(session, dialect, own)
    owner = Owner("o", "s.ш", "g")
    assert metadata_tables.claim(session, dialect, own, "shop.T", owner, empty=True) == 0
    assert metadata_tables.claim(session, dialect, own, "shop.ш", owner, empty=True) == 0
    owner = Owner("o", "s.t", "g")
    assert metadata_tables.claim(session, dialect, own, "shop.t", owner, empty=False) == 7
    session.close()
    mysql_family.drop_database(own)


@pytest.mark.parametrize("part", ["table", "column"])
def test_a_name_that_the_encoding_does_not_hold_is_refused(
    postgres18: PostgresServer, part: str
) -> None:
    name = f"latin1_names_{part}"
    url = postgres18.create_database(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name}_1 ENCODING LATIN1 TEMPLATE template0 LOCALE 'C'"
        )
    dialect = Postgres(url.replace(name, f"{name}_1"))
    write_row(dialect, "tü", "vü", "shop", "own")
    names = ("tш", "v") if part == "table" else ("t", "vш")
    with pytest.raises(NameRefusedError, match="that the database's encoding does not have"):
        write_row(dialect, *names, "shop", "own")


def test_names_beyond_the_bmp_and_long_ones_are_refused_at_mysql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    own = f"{mysql_family_database}_own"
    dialect = MySql(mysql_family.dsn())
    product = "MariaDB" if isinstance(mysql_family, MariaDbServer) else "MySQL"
    write_row(dialect, "ш" * 64, "ш" * 64, mysql_family_database, own)
    for name in ("t🌊", "t" * 65):
        for names in ((name, "v"), ("u", name)):
            with pytest.raises(NameRefusedError, match=f"which {product} refuses.* by a step"):
                write_row(dialect, *names, mysql_family_database, own)
    mysql_family.drop_database(own)
