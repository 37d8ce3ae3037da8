"""Every built-in type on a real server: a row read by SELECT (COPY), the same row from the log, and
what SQL itself says of it, are equal after decoding (docs/adr/0002)."""

from __future__ import annotations

import random
import string
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.payloads import record_batch, table_schema
from tests.support.postgres import PostgresServer

from tidelog.codecs.columns.times import NEGATIVE_INFINITY_DAYS, POSITIVE_INFINITY_DAYS
from tidelog.codecs.decode import Decoded, decode
from tidelog.codecs.fold import fold
from tidelog.codecs.postgres.tuples import copy_text_rows
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableSchema

pytestmark = pytest.mark.integration

ROWS = 120
FIRST_BEYOND = "294247-01-10 00:00:00"
"""From here on no 64-bit microseconds since 1970 tell all instants of a day."""
PINNED = (
    "-c datestyle=ISO,YMD -c intervalstyle=postgres -c extra_float_digits=3 "
    "-c bytea_output=hex -c timezone=UTC -c lc_monetary=C"
)
Generator = Callable[[random.Random], str]


@dataclass(frozen=True)
class TypeCase:
    sql: str
    logical: str
    generate: Generator


def _choice(*texts: str) -> Generator:
    return lambda rng: rng.choice(texts)


def _either(edges: tuple[str, ...], generate: Generator) -> Generator:
    return lambda rng: rng.choice(edges) if rng.random() < 0.3 else generate(rng)


def _int(bits: int) -> Generator:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return _either((str(low), str(high), "0"), lambda rng: str(rng.randint(low, high)))


def _numeric(digits: int, scale: int) -> Generator:
    top = "9" * digits
    edge = f"{top[: digits - scale] or '0'}.{top[:scale]}0"
    return _either(
        (edge, f"-{edge}", "NaN", "0"),
        lambda rng: f"{rng.randint(-(10**digits) + 1, 10**digits - 1)}e-{scale}",
    )


def _float(code: str) -> Generator:
    def generate(rng: random.Random) -> str:
        if rng.random() < 0.5:
            return f"{rng.randint(-(10**9), 10**9)}e{rng.randint(-15, 5)}"
        size = struct.calcsize(code)
        value = struct.unpack(code, rng.randbytes(size))[0]
        return repr(value).replace("inf", "Infinity") if value == value else "NaN"

    edges = ("NaN", "Infinity", "-Infinity", "-0", "0.1")
    more = {"d": ("5e-324", "1.7976931348623157e308"), "f": ("1e-45", "3.4028235e38")}
    return _either((*edges, *more[code]), generate)


def _date(last_year: int) -> Generator:
    def generate(rng: random.Random) -> str:
        day = f"{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        if rng.random() < 0.2:
            return f"{rng.randint(1, 4712):04d}-{day} BC"
        year = rng.randint(1, 9999) if rng.random() < 0.8 else rng.randint(10_000, last_year)
        return f"{year:04d}-{day}"

    return _either(("infinity", "-infinity", "0001-01-01", "2024-02-29", "4713-12-01 BC"), generate)


def _timestamp(zone: bool) -> Generator:
    date = _date(294_246)

    def generate(rng: random.Random) -> str:
        day, _, bc = date(rng).partition(" ")
        if "inf" in day:
            return day
        micros = rng.choice(["", f".{rng.randrange(10**6):06d}", ".5", ".000001"])
        clock = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}{micros}"
        offset = rng.choice(["+00", "+05:30", "-11"]) if zone else ""
        return f"{day} {clock}{offset} {bc}".strip()

    edges = ("294247-01-09 23:59:59.999999", FIRST_BEYOND, "294276-12-31 23:59:59.999999")
    return _either(tuple(edge + "+00" * zone for edge in edges), generate)


def _text(rng: random.Random) -> str:
    alphabet = string.printable + "äß€🌊\\\t\n'\"{}(),"
    return "".join(rng.choices(alphabet.replace("\0", ""), k=rng.randrange(40)))


def _quoted_array(rng: random.Random) -> str:
    def item() -> str:
        if rng.random() < 0.2:
            return "NULL"
        return '"' + _text(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(item() for _ in range(rng.randrange(4))) + "}"


CASES = [
    TypeCase("boolean", "bool", _choice("t", "f")),
    TypeCase("smallint", "int16", _int(16)),
    TypeCase("integer", "int32", _int(32)),
    TypeCase("bigint", "int64", _int(64)),
    TypeCase("oid", "int64", lambda rng: str(rng.randrange(2**32))),
    TypeCase("real", "float32", _float("f")),
    TypeCase("double precision", "float64", _float("d")),
    TypeCase("numeric(10,2)", "decimal(10,2)", _numeric(10, 2)),
    TypeCase("numeric(5,5)", "decimal(5,5)", _numeric(5, 5)),
    TypeCase("numeric(38,10)", "decimal(38,10)", _numeric(38, 10)),
    TypeCase("numeric(38,0)", "decimal(38,0)", _numeric(38, 0)),
    TypeCase("numeric(60,20)", "text", _numeric(60, 20)),
    TypeCase("numeric(5,-2)", "text", lambda rng: str(rng.randrange(10**7 - 50))),
    TypeCase("numeric", "text", _either(
        ("NaN", "Infinity", "-Infinity", "1e131071", "-9.99e-16300"), _numeric(80, 40))),
    TypeCase("date", "date", _date(5_874_896)),
    TypeCase("timestamp", "timestamp", _timestamp(zone=False)),
    TypeCase("timestamp(3)", "timestamp", _timestamp(zone=False)),
    TypeCase("timestamptz", "timestamptz", _timestamp(zone=True)),
    TypeCase("bytea", "binary", lambda rng: "\\x" + rng.randbytes(rng.randrange(30)).hex()),
    TypeCase("text", "text", _text),
    TypeCase("varchar(60)", "text", _text),
    TypeCase("char(10)", "text", _choice("", "abc", "äß", "0123456789")),
    TypeCase('"char"', "text", _choice("a", "Z", "\\")),
    TypeCase("name", "text", _choice("pg_class", "x y")),
    TypeCase("uuid", "text", lambda rng: f"{rng.getrandbits(128):032x}"),
    TypeCase("json", "text", _choice('{"a": [1, 2.50, null]}', '"\\u00e9"', " [ ] ")),
    TypeCase("jsonb", "text", _choice('{"b": 1, "a": "x\\ny", "b": 2}', "1e400", "null")),
    TypeCase("integer[]", "text", _choice("{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[2:3]={1,2}")),
    TypeCase("text[]", "text", _quoted_array),
    TypeCase("mood", "text", _choice("sad", "so, so", "très \"happy\"")),
    TypeCase("positive", "int32", lambda rng: str(rng.randint(1, 2**31 - 1))),
    TypeCase("amount", "decimal(10,2)", _numeric(10, 2)),
    TypeCase("pair", "text", _choice('(1,"a, b")', "(,)", '(-7,"qu""ote\\\\")')),
    TypeCase("mood[]", "text", _choice('{sad,"so, so"}', "{}")),
    TypeCase("int4range", "text", _choice("[1,5)", "empty", "(,7]", "(,)")),
    TypeCase("numrange", "text", _choice("[1.50,2.5)", "(,)", "empty")),
    TypeCase("tstzrange", "text", _choice("[2024-01-01 00:00+02,infinity)", "empty")),
    TypeCase("int4multirange", "text", _choice("{}", "{[1,3),[7,9)}")),
    TypeCase("interval", "text", _choice("1 year -2 months 3 days 04:05:06.789", "-1 day", "0")),
    TypeCase("time", "text", _choice("00:00:00", "24:00:00", "12:34:56.789012")),
    TypeCase("timetz", "text", _choice("12:34:56+02", "00:00:00.1-11:30")),
    TypeCase("money", "text", _choice("-1234567.89", "0.01")),
    TypeCase("inet", "text", _choice("10.0.0.1", "10.0.0.1/8", "::1", "fe80::/10")),
    TypeCase("cidr", "text", _choice("10.0.0.0/8", "::/0")),
    TypeCase("macaddr", "text", _choice("08:00:2b:01:02:03")),
    TypeCase("macaddr8", "text", _choice("08:00:2b:01:02:03:04:05")),
    TypeCase("bit(8)", "text", lambda rng: f"{rng.randrange(256):08b}"),
    TypeCase("varbit", "text", _choice("", "1", "010101")),
    TypeCase("point", "text", _choice("(0.1,-1e300)", "(NaN,Infinity)")),
    TypeCase("line", "text", _choice("{1,2,3}")),
    TypeCase("lseg", "text", _choice("[(0,0),(1,0.1)]")),
    TypeCase("box", "text", _choice("(1,1),(0,0)")),
    TypeCase("path", "text", _choice("((0,0),(1,1))", "[(0,0),(1,1)]")),
    TypeCase("polygon", "text", _choice("((0,0),(1,1),(2,0))")),
    TypeCase("circle", "text", _choice("<(0,0),1.5>")),
    TypeCase("tsvector", "text", _choice("'a':1A 'b''c':2")),
    TypeCase("tsquery", "text", _choice("'a' & !'b':*")),
    TypeCase("pg_lsn", "text", _choice("16/B374D848")),
    TypeCase("xid8", "text", _choice("18446744073709551615")),
    TypeCase("regclass", "text", _choice("pg_class", "pg_catalog.pg_type")),
    TypeCase("jsonpath", "text", _choice("$.a[*] ? (@ > 1)")),
]  # fmt: skip
COLUMNS = [("id", "int64"), *((f"c{i}", case.logical) for i, case in enumerate(CASES))]
SCHEMA = table_schema(COLUMNS, key=["id"])


@pytest.fixture(params=["postgres16", "postgres18"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    server: PostgresServer = request.getfixturevalue(request.param)
    dsn = server.create_database("types")
    try:
        with psycopg.connect(
            dsn, options=PINNED, client_encoding="UTF8", autocommit=True
        ) as connected:
            yield connected
    finally:
        server.drop_database("types")


def logged(connection: psycopg.Connection[Any], schema: TableSchema) -> pa.RecordBatch:
    """The slot's row changes as records."""
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p')"
    ).fetchall()
    payloads = [row[0] for row in rows if row[0][:1] in b"IUDT"]
    return record_batch(
        [(RecordKind(payload[0]), payload) for payload in payloads], schema.schema_id
    )


def dumped(connection: psycopg.Connection[Any], query: str, columns: int) -> pa.RecordBatch:
    """The query's rows as dump rows."""
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        batch = copy_text_rows(b"".join(bytes(part) for part in copy), 16385, 1, columns)
    bounds = batch.payload_offsets
    payloads = [batch.payload[a:b].tobytes() for a, b in pairwise(bounds)]
    return record_batch([(RecordKind.DUMP_ROW, payload) for payload in payloads])


def after(decoded: Decoded) -> pa.StructArray:
    assert decoded.after is not None
    decoded.after.validate(full=True)
    return decoded.after


def comparable(array: pa.Array) -> list[str]:
    """Values as texts: NaN equals itself, -0 is not 0, and years may exceed Python's calendar."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return [repr(value) for value in array.to_pylist()]


def expected(connection: psycopg.Connection[Any], column: str, logical: str) -> list[Any]:
    """What SQL says of a column: exact numbers, texts by the type's output function."""
    finite = f"CASE WHEN isfinite({column}) THEN %s WHEN {column} > 'epoch' THEN {{}}"
    finite += f" WHEN {column} < 'epoch' THEN {{}} END"
    if logical == "date":
        finite = finite.replace("%s", f"({column} - date '1970-01-01')::int8")
        expression = finite.format(POSITIVE_INFINITY_DAYS, NEGATIVE_INFINITY_DAYS)
    elif logical.startswith("timestamp"):
        finite = finite.replace(
            f"isfinite({column})", f"{column} < '{FIRST_BEYOND}' AND isfinite({column})"
        ).replace("%s", f"(extract(epoch FROM {column}) * 1000000)::int8")
        days = (POSITIVE_INFINITY_DAYS, NEGATIVE_INFINITY_DAYS)
        expression = finite.format(*(f"{day * 86_400_000_000}" for day in days))
    elif logical.startswith("decimal"):
        expression = f"nullif({column}, 'NaN')"
    elif logical == "text":
        expression = f"CASE WHEN num_nulls({column}) = 0 THEN format('%s', {column}) END"
    elif logical == "int64":
        expression = f"{column}::int8"
    else:
        expression = column
    with connection.cursor(binary=True) as cursor:
        return [row[0] for row in cursor.execute(f"SELECT {expression} FROM t ORDER BY id")]


def test_log_dump_and_sql_agree_for_every_type(connection: psycopg.Connection[Any]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'so, so', 'très \"happy\"')")
    connection.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    connection.execute("CREATE DOMAIN amount AS numeric(10,2)")
    connection.execute("CREATE TYPE pair AS (a int, b text)")
    types = ", ".join(f"c{i} {case.sql}" for i, case in enumerate(CASES))
    connection.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {types})")
    connection.execute("CREATE PUBLICATION p FOR TABLE t")
    connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    placeholders = ", ".join(f"%s::text::{case.sql}" for case in CASES)
    rows = [
        [i, *(None if rng.random() < 0.1 else case.generate(rng) for case in CASES)]
        for i in range(ROWS)
    ]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO t VALUES (%s, {placeholders})", rows)
    from_log = after(decode(logged(connection, SCHEMA), SCHEMA))
    from_dump = after(
        decode(dumped(connection, "SELECT * FROM t ORDER BY id", len(COLUMNS)), SCHEMA)
    )
    assert len(from_log) == ROWS
    for i, case in enumerate(CASES):
        name = f"c{i}"
        log = comparable(from_log.field(name))
        assert log == comparable(from_dump.field(name)), case.sql
        assert log == [repr(v) for v in expected(connection, name, case.logical)], case.sql


def test_unchanged_toast_keys_and_identities_of_a_real_server(
    connection: psycopg.Connection[Any],
) -> None:
    rng = random.Random(7)
    big = "".join(rng.choices(string.ascii_letters, k=10_000))
    key = "".join(rng.choices(string.ascii_letters, k=2_500))  # out of line, fits into the index
    connection.execute("CREATE TABLE t (id text PRIMARY KEY, n int, big text)")
    for column in ("id", "big"):
        connection.execute(f"ALTER TABLE t ALTER {column} SET STORAGE EXTERNAL")
    connection.execute("CREATE PUBLICATION p FOR TABLE t")
    connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    columns = [("id", "text"), ("n", "int32"), ("big", "text")]
    schema = table_schema(columns, key=["id"])
    connection.execute("INSERT INTO t VALUES ('a', 1, %s), (%s, 1, %s)", (big, key, big))
    inserts = logged(connection, schema)
    connection.execute("UPDATE t SET n = 2")
    updates = logged(connection, schema)
    decoded = decode(updates, schema)
    assert after(decoded).to_pylist() == [
        {"id": "a", "n": 2, "big": None},
        {"id": key, "n": 2, "big": None},
    ]
    assert decoded.missing is not None
    assert decoded.missing.tolist() == [[False, False, True]] * 2

    # A batch that holds the whole rows completes them; a key change takes the value along.
    connection.execute("UPDATE t SET id = 'b' WHERE id = 'a'")
    moved = logged(connection, schema)
    payloads = pa.concat_batches([inserts, updates, moved])
    changes = fold(payloads, schema)
    assert changes.missing.null_count == len(changes) == 3
    assert sorted(changes.rows.to_pylist(), key=str) == sorted(
        [
            {"id": key, "n": 2, "big": big},
            {"id": "a", "n": None, "big": None},
            {"id": "b", "n": 2, "big": big},
        ],
        key=str,
    )
    assert sorted(changes.op.to_pylist()) == ["d", "u", "u"]
    partial = fold(pa.concat_batches([updates, moved]), schema)
    assert partial.missing.to_pylist() == [[2], None, [2]]

    # With REPLICA IDENTITY FULL the old image has what the new one leaves out.
    connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    connection.execute("UPDATE t SET n = 3")
    connection.execute("DELETE FROM t WHERE id = 'b'")
    connection.execute("TRUNCATE t")
    full = table_schema(columns, ["id"], None, "f")
    decoded = decode(logged(connection, full), full)
    assert decoded.missing is None
    assert decoded.op.to_pylist() == ["u", "u", "d", "t"]
    assert {row["big"] for row in after(decoded).to_pylist()[:2]} == {big}
    assert decoded.before is not None
    assert decoded.before.to_pylist()[2:] == [{"id": "b", "n": 3, "big": big}, None]
