"""Values in the destination equal the source's, for every type of every source."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from tests.integration.database.copies import Copy, changes, copy_of, folded, numbered
from tests.integration.mysql import random_values
from tests.integration.mysql.value_rows import ValueTable, log_batch, records
from tests.integration.test_types import CASES, FIRST_BEYOND, PINNED, dumped
from tests.support.mysql import MySqlFamilyServer, MySqlServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder

pytestmark = pytest.mark.integration

ROWS = 60


def test_postgres_to_postgres_is_equal_by_its_own_texts(postgres18: PostgresServer) -> None:
    """Also through the staging table. Types that only text can hold elsewhere are text here."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    copied, schema, rows, source = _of_postgres(postgres18, "types_a", seed)
    copy = copy_of(Postgres(postgres18.create_database("types_b")), schema, "postgres", "shop")
    assert copy.write(rows) == []
    again = rows.set_column(1, "_tidelog_version", pa.array(np.arange(len(rows)) + 1000))
    assert copy.write(again) == []  # not appended: staged
    kinds = dict(
        copy.select(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute "
            "WHERE attrelid = 'shop.t'::pg_catalog.regclass AND attnum > 0"
        )
    )
    assert kinds["c8"] == "numeric(5,5)"
    with (
        psycopg.connect(source, options=PINNED) as mine,
        psycopg.connect(copy.dialect.url, options=PINNED) as theirs,  # type: ignore[attr-defined]
    ):
        for i, case in enumerate(CASES):
            told = shown = f"CASE WHEN num_nulls(c{i}) = 0 THEN format('%s', c{i}) END"
            if case.logical in ("date", "timestamp", "timestamptz"):
                # What no calendar downstream has: docs/sources/postgresql.md.
                held = f"isfinite(c{i})"
                if case.logical != "date":
                    held += f" AND c{i} < '{FIRST_BEYOND}+00'"
                told = (
                    f"CASE WHEN {held} THEN c{i} WHEN c{i} > 'epoch' THEN '9999-12-31' "
                    f"WHEN c{i} < 'epoch' THEN '0001-01-03' END::text"
                )
                shown = f"c{i}::text"
            elif case.logical.startswith("decimal"):
                told, shown = f"nullif(c{i}, 'NaN')::text", f"c{i}::text"
            expected = mine.execute(f"SELECT {told} FROM t ORDER BY id").fetchall()
            found = theirs.execute(f"SELECT {shown} FROM shop.t ORDER BY id").fetchall()
            assert found == expected, (case.sql, kinds[f"c{i}"])
    names = {case.sql: kinds[f"c{i}"] for i, case in enumerate(CASES)}
    for same in ("uuid", "jsonb", "integer[]", "text[]", "numeric", "inet", "interval", "bytea"):
        assert names[same] == same
    assert (names["jsonpath"], names["pg_lsn"]) == ("jsonpath", "pg_lsn")
    assert names["mood"] == names["varchar(60)"] == names["money"] == "text"
    assert copied


def test_hstore_and_intervals_of_few_fields_and_a_step_on_another_column() -> None:
    """The server of 17 has `hstore`. A copy of before, with texts, stays as it is."""
    types = {"u": "uuid", "h": "ext.hstore", "i": "interval day to second(2)", "v": "text"}
    values = [("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a=>1, b=>NULL", "1 day 02:03:04.5", "x")]
    columns = tuple(
        Column(name, 0, -1, kind, "text") for name, kind in [*types.items(), ("j", "jsonb[]")]
    )
    schema = table_schema([("id", "int64")], key=["id"])
    schema = replace(schema, columns=(schema.columns[0], *columns))
    row = {"id": 1, "j": '{"{\\"a\\": 1}"}'} | dict(zip(types, values[0], strict=True))
    with PostgresServer(version=17) as server:
        found = {}
        for name, extension in (("with_it", True), ("without", False), ("before", True)):
            url = server.create_database(name)
            with psycopg.connect(url, autocommit=True) as own:
                if extension:
                    own.execute("CREATE SCHEMA other")
                    own.execute("CREATE EXTENSION hstore SCHEMA other")
                if name == "before":
                    texts = ", ".join(f"{c.name} text" for c in columns)
                    own.execute("CREATE SCHEMA shop")
                    own.execute(f"CREATE TABLE shop.t (id bigint PRIMARY KEY, {texts})".encode())
            copy = copy_of(Postgres(url), schema, "postgres", "shop")
            unchanged = {n: c for n, c in copy.table.unchanged.items() if n != "j"}
            copy.table = replace(copy.table, unchanged=unchanged)
            assert copy.write(changes(copy.table, ("u", 1, row))) == []
            assert copy.write(changes(copy.table, ("u", 2, row))) == []  # staged
            found[name] = dict(
                copy.select(
                    "SELECT attname, format_type(atttypid, -1) FROM pg_catalog.pg_attribute "
                    "WHERE attrelid = 'shop.t'::pg_catalog.regclass AND attnum > 1"
                )
            )
            assert copy.select("SELECT u::text, i::text, v FROM {t}") == [
                (values[0][0], *values[0][2:])
            ]
    kept = {"u": "uuid", "h": "other.hstore", "i": "interval", "v": "text", "j": "text"}
    ours = {"_tidelog_version": "bigint"}
    assert found["with_it"] == {**kept, **ours}
    assert found["without"] == {**kept, "h": "text", **ours}
    assert found["before"] == {**dict.fromkeys(kept, "text"), **ours}


def test_postgres_to_mysql(postgres18: PostgresServer, mysql_server: MySqlServer) -> None:
    """What MySQL has no value for is rejected, not bent: NaN, infinity, years it does not have."""
    _, schema, rows, _ = _of_postgres(postgres18, "types_c", 1)
    copy = copy_of(MySql(mysql_server.dsn()), schema, "postgres", "types_c", own="types_own")
    rejected = {each.version for each in copy.write(rows)}
    expected = [row for row in _values(rows) if row["_tidelog_version"] not in rejected]
    assert len(expected) >= 3
    for row in _values(rows):
        if row["_tidelog_version"] in rejected:
            odd = [value for value in row.values() if _is_odd(value)]
            assert odd, row
    _assert_held(copy, schema, expected)


@pytest.mark.parametrize("target", ["same", "postgres"])
def test_from_mysql_and_mariadb(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    postgres18: PostgresServer,
    target: str,
) -> None:
    kinds = list(random_values.TYPES)
    if mysql_family.flavor == "mariadb":
        kinds += random_values.MARIADB_TYPES
    chance = random.Random(5)
    with mysql_family.connect(mysql_family_database) as session:
        table = ValueTable(mysql_family, mysql_family_database, session)
        columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
        table.create(f"id int PRIMARY KEY, {columns}")
        for key in range(40):
            values = ", ".join(random_values.literal(kind, chance) for kind in kinds)
            table.run(f"INSERT INTO t VALUES ({key}, {values})")
        schema = numbered(table.schema())
        batch = records(log_batch(table.logged()))
    namespace = f"copy_{mysql_family_database}"
    if target == "same":
        place: Any = MySql(mysql_family.dsn())
    else:
        place = Postgres(postgres18.create_database(f"{namespace}_{mysql_family.flavor}"))
    copy = copy_of(place, schema, mysql_family.flavor, namespace, own=f"own_{namespace}")
    rows = folded(batch, copy.table)
    rejected = copy.write(rows)
    if target == "same":
        assert rejected == []
    gone = {each.version for each in rejected}
    # PostgreSQL has no zero bytes in texts.
    assert all(
        any(isinstance(v, str) and "\0" in v for v in row.values())
        for row in _values(rows)
        if row["_tidelog_version"] in gone
    )
    _assert_held(copy, schema, [r for r in _values(rows) if r["_tidelog_version"] not in gone])


@pytest.mark.parametrize("target", ["mysql", "postgres"])
def test_special_characters_of_bulk_loads_arrive_as_they_are(
    mysql_server: MySqlServer, postgres18: PostgresServer, target: str
) -> None:
    """Each alone in its column, at each place: whether a column is escaped is found by a kernel."""
    specials = ["\\", "\t", "\n", "\r", "\\.", "\\N", "'", "é", "😀", "\x85"]
    specials += ["\0"] * (target == "mysql")  # PostgreSQL has none in texts
    names = [f"c{n}" for n in range(len(specials))]
    columns = [("id", "int64"), *((name, "text") for name in names)]
    schema = table_schema(columns, key=["id"])
    if target == "mysql":
        place: Any = MySql(mysql_server.dsn())
    else:
        place = Postgres(postgres18.create_database("specials"))
    copy = copy_of(place, schema, "postgres", "specials", own="own_specials")
    rows = [
        {"id": at}
        | {n: "x" * at + s + "y" * (40 - at) for n, s in zip(names, specials, strict=True)}
        for at in range(41)
    ]
    rows.append({"id": 41} | dict.fromkeys(names))
    assert copy.write(changes(copy.table, *(("u", row["id"] + 1, row) for row in rows))) == []
    listed = ", ".join(names)
    found = copy.select(f"SELECT id, {listed} FROM specials.t ORDER BY id")
    assert [tuple(row) for row in found] == [tuple(row.values()) for row in rows]


def test_years_before_christ(postgres18: PostgresServer) -> None:
    schema = table_schema([("id", "int64"), ("d", "date"), ("t", "timestamptz")], key=["id"])
    copy = copy_of(Postgres(postgres18.create_database("bc")), schema, "postgres", "shop")
    days = [-719_162, -719_163, -735_000, 2_932_897]  # 0001-01-01 and the day before it
    batch = changes(copy.table, *(("u", n, {"id": n}) for n in range(1, 5)))
    batch = batch.set_column(3, "d", pa.array(days, pa.int32()).cast(pa.date32()))
    instants = pa.array([day * 86_400_000_000 + 1 for day in days]).cast(pa.timestamp("us", "UTC"))
    batch = batch.set_column(4, "t", instants)
    assert copy.write(batch) == []
    found = copy.select(
        "SELECT d - '1970-01-01'::date, extract(epoch FROM t) * 1000000 FROM {t} ORDER BY id"
    )
    assert [(day, int(micros)) for day, micros in found] == [
        (day, day * 86_400_000_000 + 1) for day in days
    ]


def test_keys_of_text_and_bytes_are_distinguished(mysql_family: MySqlFamilyServer) -> None:
    schema = table_schema([("id", "text"), ("b", "binary"), ("v", "int32")], key=["id", "b"])
    name = f"keys_{mysql_family.flavor}"
    copy = copy_of(MySql(mysql_family.dsn()), schema, "postgres", name, own=f"{name}_own")
    keys = [("a", b"\0"), ("A", b"\0"), ("á", b"\0"), ("a", b"\0\0"), ("", b""), ("a\t", b"x")]
    rows = [("u", n, {"id": k, "b": b, "v": n}) for n, (k, b) in enumerate(keys, 1)]
    copy.write(changes(copy.table, *rows))
    assert sorted(copy.select("SELECT id, b, v FROM {t}"), key=lambda row: int(row[2])) == [
        (k, b, n) for n, (k, b) in enumerate(keys, 1)
    ]
    copy.write(changes(copy.table, ("d", 20, {"id": "A", "b": b"\0"})))
    assert len(copy.select("SELECT v FROM {t}")) == len(keys) - 1


# ---------------------------------------------------------------------- what is compared


def _of_postgres(
    server: PostgresServer, name: str, seed: int
) -> tuple[int, TableSchema, pa.RecordBatch, str]:
    """Random rows of every type: how many, their schema, as changes, and the database."""
    rng = random.Random(seed)
    dsn = server.create_database(name)
    with psycopg.connect(dsn, options=PINNED, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'so, so', 'très \"happy\"')")
        connection.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
        connection.execute("CREATE DOMAIN amount AS numeric(10,2)")
        connection.execute("CREATE TYPE pair AS (a int, b text)")
        types = ", ".join(f"c{i} {case.sql}" for i, case in enumerate(CASES))
        connection.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {types})")
        placeholders = ", ".join(f"%s::text::{case.sql}" for case in CASES)
        values = [
            [i, *(None if rng.random() < 0.1 else case.generate(rng) for case in CASES)]
            for i in range(ROWS)
        ]
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO t VALUES (%s, {placeholders})", values)
        found = PostgresSchemaFinder().find(connection, TableName("public", "t"))
        assert found is not None
        schema = numbered(found.schema)
        batch = dumped(connection, "SELECT * FROM t ORDER BY id", len(schema.columns))
    copy = copy_of(Postgres(dsn), schema, "postgres", "public")
    return ROWS, schema, folded(batch, copy.table), dsn


def _values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python has them; dates beyond its calendar as numbers."""
    columns = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))
        try:
            columns[name] = column.to_pylist()
        except (ValueError, OverflowError):
            columns[name] = [_or_number(value) for value in column]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _or_number(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return _Beyond(value.value)


class _Beyond(int):
    """A date or timestamp that Python has no value for."""


def _is_odd(value: Any) -> bool:
    if isinstance(value, float):
        return not np.isfinite(value) or abs(value) > 3.4e38 or 0 < abs(value) < 1e-300
    return isinstance(value, _Beyond) or (isinstance(value, str) and len(value) > 16_000)


def _assert_held(copy: Copy, schema: TableSchema, expected: list[dict[str, Any]]) -> None:
    """By Python's values. MySQL shows floats with few digits unless they are calculated with;
    psycopg shows JSON's null as None, so JSON is compared by its text.
    """
    for column in schema.columns:
        told = name = copy.dialect.quoted(column.name)
        mysql = isinstance(copy.dialect, MySql)
        if mysql and column.logical == "float32":
            told = f"{name} * 1e0"
        elif not mysql and column.type_name == "json":
            told = f"{name}::text"
        found = dict(copy.select(f"SELECT id, {told} FROM {{t}}"))
        for row in expected:
            mine, theirs = row[column.name], found[row["id"]]
            assert _same(mine, theirs), (column.name, column.type_name, mine, theirs)


def _same(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    if isinstance(theirs, datetime.datetime) and theirs.tzinfo is not None:
        theirs = theirs.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(mine, float):
        return repr(mine) == repr(float(theirs)) or np.float32(mine) == np.float32(theirs)
    if isinstance(mine, str) and mine != theirs:
        return _text_like(theirs, mine)
    return bool(mine == theirs)


def _text_like(value: Any, text: str) -> bool:
    """Has a value of a type of its own the text that the source gave it?"""
    if isinstance(value, datetime.timedelta):
        sign = -1 if text.startswith("-") else 1
        hours, minutes, seconds = text.lstrip("-").split(":")
        told = datetime.timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
        return value == sign * told
    if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return ipaddress.ip_address(text) == value
    if isinstance(value, Decimal):
        return Decimal(text) == value
    if isinstance(value, (dict, list, int, float, bool)) or text.startswith('"'):
        return bool(json.loads(text) == value)
    return str(value) == text
