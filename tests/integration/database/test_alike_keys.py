"""Tables of the user's that take keys for one which the source tells apart.

An update that changes a key's case is a delete and an insert, which two tasks bring in any order:
the row would be lost.
"""

from __future__ import annotations

import re

import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.payloads import table_schema

from tidelog.demo.servers.mysql import MySqlFamilyServer
from tidelog.demo.servers.postgres import PostgresServer
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
            OutputRefusedError, match=r"texts .* for one in .* column id"
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
    copy = copy_of(MySql(mysql_server.dsn()), schema, kind, mysql_database, own="own_of_fractions")
    copy.select("CREATE TABLE {t} (id datetime PRIMARY KEY, v varchar(100))")
    if kind == "postgres":
        with pytest.raises(
            OutputRefusedError, match=r"times .* for one in .* column id"
        ) as refused:
            copy.prepare()
        found = re.search(r"Run: (ALTER TABLE .*)\.$", str(refused.value))
        assert found is not None
        copy.select(found[1])
    copy.prepare()
    mysql_server.drop_database("own_of_fractions")


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
