"""A column of another type: the statement that a refusal prints is run as it is printed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.mysql import MySqlFamilyServer
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.errors import TableLeftOutError
from tidelog.outputs.database.dialect import RowsRefusedError
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres, PostgresSession
from tidelog.outputs.database.tables import Tables

pytestmark = pytest.mark.integration

# From a type and a value of it to another, and what the copy shows then.
CHANGES: tuple[tuple[str, Any, str, Any], ...] = (
    ("text", "42", "int32", 42),
    ("text", "-7", "int64", -7),
    ("text", "1.5", "float64", 1.5),
    ("text", "7\\x", "binary", b"7\\x"),
    ("text", "ü", "binary", "ü".encode()),
    ("binary", "ü\\".encode(), "text", "ü\\"),
    ("binary", b"42", "int32", 42),
    ("int32", 42, "binary", b"42"),
    ("int32", 42, "text", "42"),
    ("int64", 1, "bool", True),
    ("bool", True, "int64", 1),
    ("float64", 2.0, "int32", 2),
)
_OF_KEYS = (0, 3, 6)  # of these the table of deleted keys is altered, too


def check_statements(dialect: Any, namespace: str, key: bool) -> None:
    for n, (before, value, after, expected) in enumerate(CHANGES):
        if key and n not in _OF_KEYS:
            continue
        names = ["v"] if key else ["id"]

        def of(kind: str) -> Copy:
            schema = table_schema([("id", "int64"), ("v", kind)], key=names)  # noqa: B023
            own = f"{namespace}_own"
            return copy_of(dialect, schema, "postgres", namespace, own=own)

        first, then = of(before), of(after)
        first.write(changes(first.table, ("u", 1, {"id": 1, "v": value})))
        if key:
            deleted = {"id": 1, "v": value}
            first.write(changes(first.table, ("d", 2, deleted)))
            first.write(changes(first.table, ("u", 3, {"id": 1, "v": value})))
        session = dialect.connect("test")
        try:
            tables = Tables(dialect, "out", namespace, first.own, False)
            place = tables.place(session, then.table)
            printed = tables.remedy_for(session, then.table, place, ["v"])
            found = re.search(r"Change the table: (ALTER TABLE .*); or have it created", printed)
            assert found is not None
            session.rows(found[1])
            taken = tables.accepts_type(
                session, then.table, place, then.table.columns.field("v"), before
            )
            assert taken, (n, before, after)
        finally:
            session.close()
        assert then.select("SELECT v FROM {t}") == [(expected,)], (before, after)
        then.attempt = first.attempt
        then.write(changes(then.table, ("u", 9, {"id": 1, "v": expected})))
        assert then.select("SELECT v FROM {t}") == [(expected,)], (before, after)
        then.select("DROP TABLE {t}")
        gone = then.prepare().deleted_keys
        then.select(f"DROP TABLE {dialect.quoted(then.own, gone)}")
        then.select("DROP TABLE {t}")


@pytest.mark.parametrize("key", [False, True], ids=["value", "key"])
def test_postgres(postgres18: PostgresServer, key: bool) -> None:
    dialect = Postgres(postgres18.create_database(f"type_changes_{key}".lower()))
    check_statements(dialect, "shop", key)


@pytest.mark.parametrize("key", [False, True], ids=["value", "key"])
def test_mysql(mysql_family: MySqlFamilyServer, mysql_family_database: str, key: bool) -> None:
    check_statements(MySql(mysql_family.dsn()), mysql_family_database, key)
    mysql_family.drop_database(f"{mysql_family_database}_own")


def test_a_column_that_was_an_array_is_refused_with_the_statement_that_converts_it(
    database: str,
) -> None:
    """As text[] that became jsonb: both are delivered as text, and each row would be rejected."""

    def of(type_name: str) -> Copy:
        schema = table_schema([("id", "int64"), ("v", "text")], key=["id"])
        key, value = schema.columns
        columns = (key, replace(value, type_name=type_name))
        return copy_of(Postgres(database), replace(schema, columns=columns), "postgres", "shop")

    before, now = of("text[]"), of("jsonb")
    before.write(changes(before.table, ("u", 1, {"id": 1, "v": "{a,b}"})))
    session = now.dialect.connect("test")
    try:
        tables = Tables(now.dialect, "out", "shop", now.own, False)
        place, former = tables.place(session, now.table), before.table.schema.columns
        with pytest.raises(
            TableLeftOutError, match=r"type text\[\], .* it is jsonb now"
        ) as refused:
            tables.layout(session, now.table, place, 0, former)
        found = re.search(r"Change the table: (ALTER TABLE .*); or have it", str(refused.value))
        assert found is not None
        session.rows(found[1])
        tables.layout(session, now.table, place, 0, former)
    finally:
        session.close()
    now.attempt = before.attempt
    assert not now.write(changes(now.table, ("u", 2, {"id": 2, "v": '{"c": 1}'})))
    assert now.select("SELECT v FROM {t} ORDER BY id") == [(["a", "b"],), ({"c": 1},)]


def test_a_value_that_its_column_can_not_take_is_reported_with_the_column(database: str) -> None:
    """As jsonb in a column that was text[]: both are delivered as text."""
    session = PostgresSession(database, "test")
    try:
        session.rows('CREATE TABLE public.t ("a" text, "a: b" text[])')
        rows = pa.RecordBatch.from_pydict({"a": ["{x}"], "a: b": ['["secret"]']})
        session.begin()
        with pytest.raises(RowsRefusedError) as refused:
            session.load("public.t", ["a", "a: b"], rows)
        assert refused.value.reason == "InvalidTextRepresentation (22P02) column a: b"
    finally:
        session.close()


@pytest.mark.parametrize(
    ("before", "now", "made", "taken"),
    [
        # As somebody made the column for the type that the source has all the time.
        (("uuid", "text"), ("uuid", "text"), "uuid", True),
        (("character varying(36)", "text"), ("text", "text"), "uuid", True),
        (("character(36)", "text"), ("character varying(36)", "text"), "uuid", True),
        (("text", "text"), ("character varying(9)", "text"), "numeric", True),
        (("integer", "int32"), ("character varying(36)", "text"), "uuid", True),
        (("integer", "int32"), ("bigint", "int64"), "numeric", True),
        (("character(9)", "text"), ("character(7)", "text"), "character(9)", True),
        (("mood", "text"), ("text", "text"), "shop.mood", True),
        (("jsonb", "text"), ("json", "text"), "json", True),
        (("decimal(10,2)", "decimal(10,2)"), ("decimal(50,5)", "text"), "numeric(60,10)", True),
        (("json", "text"), ("jsonb", "text"), "json", True),
        (("uuid", "text"), ("text", "text"), "character varying(99)", True),
        # The same columns would change what they get now.
        (("uuid", "text"), ("text", "text"), "uuid", False),
        (("json", "text"), ("text", "text"), "jsonb", False),
        (("jsonb", "text"), ("json", "text"), "jsonb", False),
        (("integer", "int32"), ("text", "text"), "numeric", False),
        (("numeric(10,2)", "decimal(10,2)"), ("text", "text"), "numeric(12,3)", False),
        (("numeric", "text"), ("text", "text"), "numeric", False),
        (("time with time zone", "text"), ("time without time zone", "text"),
         "time with time zone", False),
        (("integer[]", "text"), ("text[]", "text"), "integer[]", False),
        (("character(9)", "text"), ("text", "text"), "character(9)", False),
        (("text", "text"), ("double precision", "float64"), "numeric(9,2)", False),
    ],
)  # fmt: skip
def test_which_columns_are_left_out_after_a_change_of_type(
    database: str, before: tuple[str, str], now: tuple[str, str], made: str, taken: bool
) -> None:
    def of(name: str, logical: str) -> Copy:
        schema = table_schema([("id", "int64"), ("v", logical)], key=["id"])
        columns = (schema.columns[0], replace(schema.columns[1], type_name=name))
        return copy_of(Postgres(database), replace(schema, columns=columns), "postgres", "shop")

    copy = of(*now)
    copy.select("CREATE SCHEMA shop")
    copy.select("CREATE TYPE shop.mood AS ENUM ('sad')")
    copy.select(f"CREATE TABLE {{t}} (id bigint PRIMARY KEY, v {made}, _tidelog_version bigint)")
    session = copy.dialect.connect("test")
    try:
        tables = Tables(copy.dialect, "out", "shop", copy.own, False)
        former = of(*before).table.schema.columns

        def layout() -> None:
            tables.layout(session, copy.table, tables.place(session, copy.table), 0, former)

        if taken:
            layout()
            return
        with pytest.raises(TableLeftOutError, match=r"column v of type"):
            layout()
        kind = {"float64": "double precision"}.get(now[1], now[0])
        session.rows(f"ALTER TABLE shop.t ALTER v TYPE {kind} USING v::text::{kind}")
        layout()
    finally:
        session.close()


@pytest.mark.parametrize("zone", [True, False])
def test_a_time_with_a_zone_is_none_without_it(database: str, zone: bool) -> None:
    """After such a change in the source the statement keeps the values, wherever it is run."""
    kinds = ["timestamp", "timestamptz"]
    before, now = (
        copy_of(Postgres(database), table_schema([("id", "int64"), ("v", kind)], key=["id"]),
                "postgres", "shop")
        for kind in (kinds if zone else kinds[::-1])
    )  # fmt: skip
    before.prepare()
    session = now.dialect.connect("test")
    try:
        session.rows("SET TimeZone = 'Asia/Tokyo'")
        session.rows("INSERT INTO shop.t VALUES (1, '2020-01-01 00:00:00+00')")
        tables = Tables(now.dialect, "out", "shop", now.own, False)
        place, field = tables.place(session, now.table), now.table.columns.field("v")

        def taken() -> bool:
            former = str(before.table.columns.field("v").type)
            return tables.accepts_type(session, now.table, place, field, former)

        assert not taken()
        printed = tables.remedy_for(session, now.table, place, ["v"])
        found = re.search(r"Change the table: (ALTER TABLE .*); or have it", printed)
        assert found is not None
        session.rows(found[1])
        assert taken()
        at = "v AT TIME ZONE 'UTC'" if zone else "v"
        assert session.rows(f"SELECT ({at})::text FROM shop.t") == [("2020-01-01 00:00:00",)]
    finally:
        session.close()


def test_a_text_with_a_zero_byte_is_reported_with_its_column_and_a_step(database: str) -> None:
    schema = table_schema([("id", "int64"), ("a", "text"), ("b", "text")], key=["id"])
    copy = copy_of(Postgres(database), schema, "mysql", "shop")
    rows = [{"id": n, "a": "x", "b": "x\0y" if n == 2 else "x"} for n in range(1, 4)]
    found = copy.write(changes(copy.table, *(("u", row["id"], row) for row in rows)))
    assert [each.version for each in found] == [2]
    assert found[0].reason.startswith("column b has a text with a zero byte (U+0000)")
    assert """{compute: {"b": "replace(`b`, char(0), '')"}}""" in found[0].reason
