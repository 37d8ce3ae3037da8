"""Keys that are longer than a destination's column or index: rejected, never cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.mysql import MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres

pytestmark = pytest.mark.integration

SCHEMA = table_schema([("id", "text"), ("v", "text")], key=["id"])
GBK_BIN = 87


@pytest.fixture(params=["local_infile", "inserts"])
def copy(
    request: pytest.FixtureRequest, mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> Iterator[Copy]:
    own = f"{mysql_family_database}_own"
    mysql_family.execute(f"SET GLOBAL local_infile = {int(request.param == 'local_infile')}")
    yield copy_of(MySql(mysql_family.dsn()), SCHEMA, "postgres", mysql_family_database, own=own)
    mysql_family.execute("SET GLOBAL local_infile = ON")
    mysql_family.drop_database(own)


def write(copy: Copy, *keys: str, op: str = "u") -> dict[int, str]:
    """By the key's place, why it was rejected."""
    rows: list[tuple[str, int, dict[str, Any]]] = [
        (op, (10 if op == "u" else 50) + n, {"id": key, "v": str(n)}) for n, key in enumerate(keys)
    ]
    return {each.version % 10: each.reason for each in copy.write(changes(copy.table, *rows))}


def written(copy: Copy) -> dict[str, str]:
    return {key.rstrip(" "): v for key, v in copy.select("SELECT id, v FROM {t}")}


def test_keys_of_more_spaces_than_a_column_holds_do_not_become_one(copy: Copy) -> None:
    """The servers cut them off without a word."""
    keys = ("a" + 254 * " ", "b" + 300 * " ", "b" + 301 * " ", "c" * 256, "d" * 255)
    found = write(copy, *keys)
    assert sorted(found) == [1, 2, 3]
    assert all("too long for column id, varchar(255)" in reason for reason in found.values())
    assert written(copy) == {"a": "0", "d" * 255: "4"}
    assert sorted(write(copy, *keys, op="d")) == [1, 2, 3]
    assert written(copy) == {}


def test_a_column_of_the_user_s_does_not_cut_either(
    postgres18: PostgresServer, mysql_server: MySqlFamilyServer, mysql_database: str
) -> None:
    own = f"{mysql_database}_own"
    for copy in (
        copy_of(Postgres(postgres18.create_database("cutting")), SCHEMA, "mysql", "public"),
        copy_of(MySql(mysql_server.dsn()), SCHEMA, "mysql", mysql_database, own=own),
    ):
        exact = "utf8mb4_0900_bin" if mysql_server.version >= (8, 0, 17) else "utf8mb4_bin"
        collation = "" if copy.namespace == "public" else f" COLLATE {exact}"
        copy.select(f"CREATE TABLE {{t}} (id varchar(3){collation} PRIMARY KEY, v varchar(2))")
        assert sorted(write(copy, "a", "b  ", "c   ", "d    ")) == [2, 3]
        assert written(copy) == {"a": "0", "b": "1"}
    mysql_server.drop_database(own)


def test_a_key_that_no_index_of_postgresql_takes_is_one_row_s_affair(
    postgres18: PostgresServer,
) -> None:
    """Not a failure of the server's, which would be tried again for ever."""
    copy = copy_of(Postgres(postgres18.create_database("long_keys")), SCHEMA, "mysql", "public")
    long = [
        "".join(chr(random.Random(seed).randint(0x4E00, 0x9FFF)) for seed in range(at, at + size))
        for at, size in ((0, 1200), (5000, 4000))
    ]
    found = write(copy, "a", *long, "b")
    assert sorted(found) == [1, 2]
    assert all(reason.startswith("too long (54000)") for reason in found.values())
    assert written(copy) == {"a": "0", "b": "3"}
    assert sorted(write(copy, "a", *long, op="d")) == [1, 2]
    assert written(copy) == {"b": "3"}


def test_a_key_written_by_its_bytes_fits(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """Of a column of a character set that UTF-8 does not hold all of."""
    column = binlog_column(
        "id", "varchar", "varchar(100)", flavor=Flavor.MYSQL, octet_length=200,
        collation_id=GBK_BIN, nullable=False,
    )  # fmt: skip
    schema = replace(SCHEMA, columns=(column, *SCHEMA.columns[1:]))
    name, own = mysql_family_database, f"{mysql_family_database}_own"
    copy = copy_of(MySql(mysql_family.dsn()), schema, "mysql", name, own=own)
    keys = ["\U0010ffff" + 200 * code for code in ("fe", "a2")]
    try:
        found = write(copy, *keys)
        if long_keys(mysql_family):
            assert found == {}
            assert written(copy) == dict(zip(keys, "01", strict=True))
            assert write(copy, *keys, op="d") == {}
        else:  # rejected, and no other row with it
            assert sorted(found) == [0, 1]
            assert write(copy, "plain") == {}
    finally:
        mysql_family.drop_database(own)


@pytest.mark.parametrize("texts", [2, 3, 5])
def test_keys_of_several_texts_are_written(
    texts: int, mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """They fit an index, and the temporary tables of MySQL 8.0's UPDATE."""
    names = [f"k{n}" for n in range(texts)]
    columns = [*((name, "text") for name in names), ("n", "int64"), ("v", "text")]
    schema = table_schema(columns, key=[*names, "n"])
    name, own = mysql_family_database, f"{mysql_family_database}_own"
    copy = copy_of(MySql(mysql_family.dsn()), schema, "postgres", name, own=own)
    longest = min(255, (740 if long_keys(mysql_family) else 240) // texts)
    key = {**dict.fromkeys(names, "é" * longest), "n": 1}
    try:
        for version, v in ((10, "one"), (11, "two")):
            assert copy.write(changes(copy.table, ("u", version, {**key, "v": v}))) == []
        assert copy.select("SELECT n, v FROM {t}") == [(1, "two")]
        assert copy.write(changes(copy.table, ("d", 12, key))) == []
        assert copy.select("SELECT n FROM {t}") == []
        (rejected,) = copy.write(
            changes(copy.table, ("u", 13, {**key, "k1": "é" * (longest + 1), "v": "long"}))
        )
        assert "too long for column k1" in rejected.reason
    finally:
        mysql_family.drop_database(own)


def long_keys(server: MySqlFamilyServer) -> bool:
    """MySQL 8.0's temporary tables take keys of 1024 bytes."""
    return server.flavor == "mariadb" or server.version >= (8, 1)
