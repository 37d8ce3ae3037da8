"""Tables of the user's that take keys for one which the source distinguishes.

An update that changes a key's case is a delete and an insert, which two tasks bring in any order:
the row would be lost.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.errors import OutputRefusedError
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres

pytestmark = pytest.mark.integration

SCHEMA = table_schema([("id", "text"), ("v", "text")], key=["id"])


def check_refused(copy: Copy, kind: str) -> None:
    """Until the statement was run that the refusal names."""
    session = copy.dialect.connect("test")
    try:
        copy.dialect.create_namespace(session, copy.namespace)
        copy.select(f"CREATE TABLE {{t}} (id {kind} PRIMARY KEY, v varchar(100))")
        with pytest.raises(
            OutputRefusedError, match=r"texts .* for equal in .* column id"
        ) as refused:
            copy.prepare()
        found = re.search(r"Run: (ALTER TABLE .*)\.$", str(refused.value))
        assert found is not None
        session.rows(found[1])
    finally:
        session.close()
    copy.write(changes(copy.table, ("u", 10, {"id": "a", "v": "first"})))
    copy.write(changes(copy.table, ("d", 11, {"id": "a"})))
    copy.write(changes(copy.table, ("u", 11, {"id": "A", "v": "second"})))
    copy.write(changes(copy.table, ("u", 12, {"id": "á", "v": "third"})))
    assert sorted(copy.select("SELECT id, v FROM {t}")) == [("A", "second"), ("á", "third")]


def test_mysql(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> None:
    name = mysql_family_database
    copy = copy_of(MySql(mysql_family.dsn()), SCHEMA, "mysql", name, own=f"{name}_own")
    check_refused(copy, "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    mysql_family.drop_database(f"{name}_own")


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_fractions(kind: str, mysql_server: MySqlFamilyServer, mysql_database: str) -> None:
    """MySQL's own ``datetime`` has none, PostgreSQL's ``timestamp`` six digits."""
    schema = table_schema([("id", "timestamp"), ("v", "text")], key=["id"])
    schema = replace(schema, wire_format="pgoutput" if kind == "postgres" else "binlog")
    copy = copy_of(MySql(mysql_server.dsn()), schema, kind, mysql_database, own="own_of_fractions")
    copy.select("CREATE TABLE {t} (id datetime PRIMARY KEY, v varchar(100))")
    if kind == "postgres":
        with pytest.raises(
            OutputRefusedError, match=r"times .* for equal in .* column id"
        ) as refused:
            copy.prepare()
        found = re.search(r"Run: (ALTER TABLE .*)\.$", str(refused.value))
        assert found is not None
        copy.select(found[1])
    copy.prepare()
    mysql_server.drop_database("own_of_fractions")


CI, AS_CS = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "COLLATE utf8mb4_0900_as_cs"


@pytest.mark.parametrize(
    ("origin", "source", "column"),
    [
        ("postgres", "date", "datetime"),
        ("mysql", "date", "datetime"),
        ("postgres", "uuid", f"varchar(36) {CI}"),
        ("postgres", "inet", f"varchar(60) {CI}"),
        ("mysql", "enum('small','large')", f"varchar(36) {CI}"),
        ("mysql", "enum('small','large')", f"enum('small','large') {CI}"),
    ],
)
def test_what_a_source_tells_in_one_way_is_not_refused(
    origin: str, source: str, column: str, mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    own = f"{mysql_database}_own"
    kind = "text" if origin == "mysql" and source != "date" else source
    schema = table_schema([("id", kind), ("v", "text")], key=["id"])
    schema = replace(
        schema, columns=(replace(schema.columns[0], type_name=source), *schema.columns[1:])
    )
    copy = copy_of(MySql(mysql_server.dsn()), schema, origin, mysql_database, own=own)
    copy.select(f"CREATE TABLE {{t}} (id {column} PRIMARY KEY, v varchar(100))")
    copy.prepare()
    mysql_server.drop_database(own)


@pytest.mark.parametrize(
    ("source", "column", "why"),
    [
        ("enum('a','A')", f"varchar(36) {CI}", "case or accents"),
        ("enum('e','é')", f"varchar(36) {CI}", "case or accents"),
        ("enum('i','j')", f"varchar(36) {CI}", "case or accents"),
        ("enum('chi','ci')", f"varchar(36) {CI}", "case or accents"),
        ("varchar(36)", f"varchar(36) {AS_CS}", "in how characters are composed"),
        ("varchar(36)", "varchar(36) COLLATE utf8mb4_0900_as_ci", "in case for equal"),
        ("varchar(36)", "enum('a','b') CHARACTER SET utf8mb4", "case or accents"),
    ],
)
def test_what_can_differ_is_named(
    source: str, column: str, why: str, mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    own = f"{mysql_database}_own"
    schema = table_schema([("id", "text"), ("v", "text")], key=["id"])
    schema = replace(
        schema, columns=(replace(schema.columns[0], type_name=source), *schema.columns[1:])
    )
    copy = copy_of(MySql(mysql_server.dsn()), schema, "mysql", mysql_database, own=own)
    copy.select(f"CREATE TABLE {{t}} (id {column} PRIMARY KEY, v varchar(100))")
    with pytest.raises(OutputRefusedError, match=f"texts that differ .*{why}"):
        copy.prepare()
    mysql_server.drop_database(own)


def check_spaces(copy: Copy, kind: str) -> None:
    """Refused until the statement was run that the refusal names; then both rows are there."""
    session = copy.dialect.connect("test")
    try:
        copy.dialect.create_namespace(session, copy.namespace)
        copy.select(f"CREATE TABLE {{t}} (id {kind} PRIMARY KEY, v varchar(100))")
        with pytest.raises(OutputRefusedError, match="differ in trailing spaces for equal") as told:
            copy.prepare()
        found = re.search(r"Run: (ALTER TABLE .*)\.$", str(told.value))
        assert found is not None
        session.rows(found[1])
    finally:
        session.close()
    copy.write(changes(copy.table, ("u", 10, {"id": "a", "v": "first"})))
    copy.write(changes(copy.table, ("u", 11, {"id": "a ", "v": "second"})))
    assert sorted(copy.select("SELECT id, v FROM {t}")) == [("a", "first"), ("a ", "second")]


@pytest.mark.parametrize("kind", ["char(9)", "char(9) COLLATE utf8mb4_nopad_bin", "varchar(9)"])
def test_spaces_mariadb(kind: str, mariadb_server: MariaDbServer, mariadb_database: str) -> None:
    if "COLLATE" not in kind:
        kind += " COLLATE utf8mb4_bin"
    own = f"{mariadb_database}_own"
    copy = copy_of(MySql(mariadb_server.dsn()), SCHEMA, "mariadb", mariadb_database, own=own)
    check_spaces(copy, kind)
    mariadb_server.drop_database(own)


@pytest.mark.parametrize("source", ["text", "character varying(9)"])
def test_spaces_postgres(source: str, database: str) -> None:
    columns = (replace(SCHEMA.columns[0], type_name=source), *SCHEMA.columns[1:])
    schema = replace(SCHEMA, columns=columns)
    copy = copy_of(Postgres(database), schema, "postgres", "public")
    check_spaces(copy, "char(9)")


@pytest.mark.parametrize("source", ["character(9)", "uuid"])
def test_a_padded_column_does_for_texts_without_spaces(source: str, database: str) -> None:
    columns = (replace(SCHEMA.columns[0], type_name=source), *SCHEMA.columns[1:])
    schema = replace(SCHEMA, columns=columns)
    copy = copy_of(Postgres(database), schema, "postgres", "public")
    copy.select("CREATE TABLE {t} (id char(36) PRIMARY KEY, v varchar(100))")
    copy.prepare()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["public.citext", "text COLLATE public.alike"])
def test_postgres(kind: str) -> None:
    """Of a server that has both."""
    with PostgresServer(17) as server:
        url = server.create_database("alike")
        server.execute("CREATE EXTENSION citext", "alike")
        server.execute(
            "CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', "
            "deterministic = false)",
            "alike",
        )
        check_refused(copy_of(Postgres(url), SCHEMA, "postgres", "public"), kind)
