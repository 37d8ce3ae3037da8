"""Texts in destinations of other encodings: each is held as it is in the source, or rejected."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.mysql import MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres, PostgresSession
from tidelog.state.postgres import BACKEND

pytestmark = pytest.mark.integration

SCHEMA = table_schema([("id", "text"), ("v", "text"), ("b", "binary")], key=["id"])
NUMBERED = table_schema([("id", "int64"), ("v", "text"), ("b", "binary")], key=["id"])
TEXTS = ("plain", "über", "ß\\\t\n", "Ελλάδα", "€", "日本", "😀", "e\u0301")
# Defaults of a role that would bend values, were they not pinned.
TRAPS = (
    "client_encoding = 'LATIN1'", "DateStyle = 'SQL,DMY'", "TimeZone = 'Asia/Tokyo'",
    "standard_conforming_strings = off", "bytea_output = 'escape'", "array_nulls = off",
    "search_path = 'elsewhere'", "synchronous_commit = off",
    "statement_timeout = 300", "lock_timeout = 1",
)  # fmt: skip


def check_texts(copy: Copy, beyond: set[str], spelled: str = "%s") -> None:
    """Each text as a value and, where the key is a text, as a key; brought over twice: the first
    time straight into the table where the key is a number, then through the staging table.

    ``beyond``: texts that the destination can't hold. ``spelled``: how its type writes a text.
    """
    texts = TEXTS if spelled == "%s" else [text for text in TEXTS if "\\" not in text]
    is_key = pa.types.is_string(copy.table.columns.field("id").type)
    keys = texts if is_key else list(range(1, len(texts) + 1))
    for tries in (0, 1):
        rows = [
            ("u", tries * 100 + n, {"id": key, "v": spelled % text, "b": text.encode()})
            for n, (key, text) in enumerate(zip(keys, texts, strict=True))
        ]
        rejected = {each.version % 100 for each in copy.write(changes(copy.table, *rows))}
        assert {texts[n] for n in rejected} == beyond
    expected = [(k, spelled % t) for k, t in zip(keys, texts, strict=True) if t not in beyond]
    value = "v::text" if isinstance(copy.dialect, Postgres) else "v"
    assert sorted(copy.select(f"SELECT id, {value} FROM {{t}}")) == sorted(expected)


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [("UTF8", "utf-8"), ("LATIN1", "latin-1"), ("WIN1252", "cp1252"), ("SQL_ASCII", "utf-8")],
)
def test_postgres_texts_are_held_or_rejected(
    postgres18: PostgresServer, encoding: str, codec: str
) -> None:
    """Also where the role's defaults are others."""
    name, role = f"encoded_{encoding.lower()}", f"trap_{encoding.lower()}"
    postgres18.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
    )
    postgres18.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    for trap in TRAPS:
        postgres18.execute(f"ALTER ROLE {role} SET {trap}")
    copy = copy_of(Postgres(postgres18.dsn(name, user=role)), SCHEMA, "postgres", "shop")
    beyond = {text for text in TEXTS if text != text.encode(codec, "ignore").decode(codec)}
    check_texts(copy, beyond)
    for kind, spelled in (
        ("text", "%s"),
        ("json", '"%s"'),
        ("text[]", "{%s}"),
    ):
        columns = [replace(c, type_name=kind) if c.name == "v" else c for c in NUMBERED.columns]
        typed = replace(NUMBERED, columns=tuple(columns))
        space = f"of {kind}"
        numbered = copy_of(Postgres(postgres18.dsn(name, user=role)), typed, "postgres", space)
        check_texts(numbered, beyond, spelled)
    # What another client reads.
    with psycopg.connect(postgres18.dsn(name), client_encoding="UTF8") as plain:
        found = plain.execute("SELECT id, v, b FROM shop.t").fetchall()
    assert sorted(found) == sorted((t, t, t.encode()) for t in TEXTS if t not in beyond)
    postgres18.drop_database(name)


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3", "utf8mb4"])
def test_mysql_texts_are_held_or_rejected(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, charset: str
) -> None:
    """Tables and databases that somebody made in another character set; and where statements run
    when a session starts.
    """
    if mysql_family.flavor == "mysql" and mysql_family.version >= (8, 0, 17):
        pytest.skip("it has collations that tell trailing spaces apart, so such keys are refused")
    name, own = mysql_family_database, f"{mysql_family_database}_own"
    mysql_family.execute(f"ALTER DATABASE {name} CHARACTER SET {charset}")
    mysql_family.execute("CREATE USER IF NOT EXISTS trap")
    mysql_family.execute("GRANT ALL ON *.* TO trap")
    # Padding MariaDB takes keys for one that differ in trailing spaces.
    collation = f"{charset}_bin" if mysql_family.flavor == "mysql" else f"{charset}_nopad_bin"
    read_only = "transaction_read_only" if mysql_family.flavor == "mysql" else "tx_read_only"
    if mysql_family.flavor == "mysql":
        mysql_family.execute("REVOKE SUPER, CONNECTION_ADMIN ON *.* FROM trap")
    else:
        mysql_family.execute("REVOKE SUPER, CONNECTION ADMIN ON *.* FROM trap")
    mysql_family.execute(
        "SET GLOBAL init_connect = \"SET NAMES latin1, sql_mode = 'ANSI,PAD_CHAR_TO_FULL_LENGTH', "
        "time_zone = '+09:00', autocommit = 0, sql_select_limit = 1, max_error_count = 0, "
        f'foreign_key_checks = 0, {read_only} = 1"'
    )
    try:
        place = MySql(mysql_family.dsn(user="trap"))
        copy = copy_of(place, SCHEMA, "mysql", name, own=own)
        mysql_family.execute(
            f"CREATE TABLE {name}.t (id varchar(100) CHARACTER SET {charset} COLLATE {collation} "
            f"PRIMARY KEY, v text CHARACTER SET {charset}, b blob)"
        )
        codec = {"latin1": "cp1252", "utf8mb3": "utf-8", "utf8mb4": "utf-8"}[charset]
        beyond = {text for text in TEXTS if text != text.encode(codec, "ignore").decode(codec)}
        beyond |= {"😀"} if charset == "utf8mb3" else set()
        check_texts(copy, beyond)
        made = copy_of(place, SCHEMA, "mysql", f"{name}_made", own=own)
        check_texts(made, set())
    finally:
        mysql_family.execute("SET GLOBAL init_connect = ''")
        mysql_family.drop_database(own)
        mysql_family.drop_database(f"{name}_made")


def test_every_kind_of_session_pins_the_same_settings(postgres18: PostgresServer) -> None:
    """Of outputs and of the state store; sources have tests of their own."""
    name = "pinned"
    postgres18.create_database(name)
    postgres18.execute("CREATE ROLE pinned SUPERUSER LOGIN")
    for trap in TRAPS:
        postgres18.execute(f"ALTER ROLE pinned SET {trap}")
    url = postgres18.dsn(name, user="pinned") + "?client_encoding=LATIN1"
    output = PostgresSession(url, "test")
    register = BACKEND.store(url)
    try:
        register.put("ключ", {"v": "ü\\"}, 0)
        found = register.get("ключ")
        assert found is not None
        assert found.value == {"v": "ü\\"}
        [(durable,)] = output.rows("SHOW synchronous_commit")
        assert durable == "local"
        for setting, value in {
            "client_encoding": "UTF8", "DateStyle": "ISO, YMD", "TimeZone": "UTC",
            "standard_conforming_strings": "on", "bytea_output": "hex", "array_nulls": "on",
            "search_path": '""', "transaction_read_only": "off", "statement_timeout": "0",
        }.items():  # fmt: skip
            assert output.rows(f"SHOW {setting}") == [(value,)]
    finally:
        output.close()
        register.close()
    postgres18.drop_database(name)
