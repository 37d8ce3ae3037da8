"""Chunks: every row once, in key order, as the log would write it, under a known snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, Row, rows_of

from tidelog.errors import ChunkError, ChunkVoidError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
T = TableName("public", "t")


@pytest.fixture
def schemas() -> NullRegistry:
    return NullRegistry()


@pytest.fixture
def chunks(database: str, schemas: NullRegistry) -> Iterator[PostgresChunkReader]:
    reader = PostgresChunkReader(database, schemas, lock_timeout_ms=300)
    yield reader
    reader.close()


def read(chunks: PostgresChunkReader, request: ChunkRequest) -> ChunkRows:
    try:
        return chunks.read(request)
    finally:
        chunks.release()


def dump(
    chunks: PostgresChunkReader, schemas: NullRegistry, table: TableName, limit_rows: int
) -> list[Row]:
    rows: list[Row] = []
    after = None
    while True:
        got = read(chunks, ChunkRequest(table, after=after, limit_rows=limit_rows))
        assert len(got.rows) <= limit_rows
        rows += rows_of(got.rows, schemas)
        if got.exhausted:
            return rows
        after = got.last_key


KEYS = {
    "int": ("int", ["-2147483648", "0", "2147483647"]),
    "bigint": ("bigint", ["-9", "0", "9223372036854775807"]),
    "numeric": ("numeric", ["-Infinity", "-1.50", "1.5000", "12345678901234567890.1", "NaN"]),
    "float8": ("float8", ["-Infinity", "-0.1", "1e-300", "0.30000000000000004", "NaN"]),
    "text": ("text", ["", "\t", "\n", " ", "'", 'A"', "\\N", "\\x", "a%s", "é", "日本"]),
    "varchar": ("varchar(5)", ["a", "b'", "c\\"]),
    "char": ("char(4)", ["a   ", "b   "]),
    "uuid": (
        "uuid",
        ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ),
    "bytea": ("bytea", ["\\x", "\\x00", "\\x5c27", "\\xff"]),
    "enum": ("mood", ["sad", "o'k", "Happy"]),
    "timestamp": (
        "timestamp",
        ["0044-03-15 00:00:00 BC", "2024-01-01 00:00:00.000001", "infinity"],
    ),
    "timestamptz": ("timestamptz", ["1970-01-01 00:00:00+00", "2024-06-01 12:00:00+00"]),
    "date": ("date", ["-infinity", "2024-01-01"]),
    "bool": ("boolean", ["f", "t"]),
    "inet": ("inet", ["10.0.0.1", "10.0.0.0/24"]),
    "domain": ("code", ["A", "B"]),
    "oid": ("oid", ["1", "4294967295"]),
    "interval": ("interval", ["00:00:01", "1 day", "-1 years"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_any_type_are_walked_and_found(
    name: str, chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    type_, values = KEYS[name]
    sql.execute("CREATE TYPE mood AS ENUM ('sad', 'o''k', 'Happy')")
    sql.execute("CREATE DOMAIN code AS text CHECK (value <> '')")
    sql.execute(f"CREATE TABLE t (k {type_} PRIMARY KEY, n int)")
    for n, value in enumerate(values):
        sql.execute(f"INSERT INTO t VALUES (%s::{type_.split(' COLLATE')[0]}, %s)", (value, n))
    rows = dump(chunks, schemas, T, 1)
    assert sorted(int(str(row.new["n"])) for row in rows if row.new) == list(range(len(values)))
    texts = [(row.new or {})["k"] for row in rows]
    assert sorted(map(str, texts)) == sorted(values)
    found = read(chunks, ChunkRequest(T, keys=tuple((text,) for text in texts)))
    assert [row.kind for row in rows_of(found.rows, schemas)] == ["r"] * len(values)


def test_composite_key_uses_the_index(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute('CREATE TABLE t (v text, "B b" text, a int, PRIMARY KEY (a, "B b"))')
    sql.execute("INSERT INTO t SELECT 'v', (g % 7)::text, g / 7 FROM generate_series(0, 9999) g")
    sql.execute("ANALYZE t")
    rows = dump(chunks, schemas, T, 999)
    assert len(rows) == len({str(row.new) for row in rows}) == 10000
    got = read(chunks, ChunkRequest(T, after=("10", "3"), upto=("11", "1"), limit_rows=100))
    assert [(r.new or {})["B b"] for r in rows_of(got.rows, schemas)] == ["4", "5", "6", "0", "1"]
    assert got.last_key == ("11", "1")
    keys = (("10", "3"), ("10", "8"), ("5000", "1"))
    got = read(chunks, ChunkRequest(T, keys=keys))
    assert [(row.kind, row.new, row.old) for row in rows_of(got.rows, schemas)] == [
        ("r", {"v": "v", "B b": "3", "a": "10"}, None),
        ("a", None, {"a": "10", "B b": "8"}),
        ("a", None, {"a": "5000", "B b": "1"}),
    ]
    from tidelog.sources.postgres.chunks.sql import PostgresChunkSql

    query = PostgresChunkSql(got.schema, got.schema.key, ("pg_catalog",) * 2, False)
    statement = query.range(("10", "3"), None, 10, None)[len("COPY (") : -len(") TO STDOUT")]
    plan = "\n".join(row[0] for row in sql.execute(f"EXPLAIN {statement}".encode()).fetchall())
    assert "Index Scan" in plan
    assert "Sort" not in plan


def test_operators_of_several_schemas_compare_alike(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    """As for a key of an int and a citext, whose operators are the extension's."""
    sql.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    sql.execute("INSERT INTO t SELECT g / 5, g % 5 FROM generate_series(0, 24) g")
    sql.execute("CREATE SCHEMA x")
    for name, function in ((">", "int4gt"), (">=", "int4ge"), ("<", "int4lt"), ("<=", "int4le"),
                           ("=", "int4eq")):  # fmt: skip
        sql.execute(
            f"CREATE OPERATOR x.{name} (LEFTARG = int, RIGHTARG = int, FUNCTION = {function})"
        )
    schema = read(chunks, ChunkRequest(T)).schema
    chunks._select._operators[schema.fingerprint, ("a", "b")] = ("pg_catalog", "x")
    got = read(chunks, ChunkRequest(T, after=("1", "3"), upto=("3", "0"), limit_rows=100))
    found = [((r.new or {})["a"], (r.new or {})["b"]) for r in rows_of(got.rows, schemas)]
    assert found == [("1", "4"), *(("2", str(b)) for b in range(5)), ("3", "0")]
    got = read(chunks, ChunkRequest(T, keys=(("1", "3"), ("9", "9"))))
    assert [row.kind for row in rows_of(got.rows, schemas)] == ["r", "a"]


def test_equal_but_differently_written_key_is_not_absent(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (k numeric PRIMARY KEY)")
    sql.execute("INSERT INTO t VALUES (1.00)")
    got = read(chunks, ChunkRequest(T, keys=(("1.0",), ("2",))))
    assert [row.kind for row in rows_of(got.rows, schemas)] == ["r", "a"]


def test_keys_may_be_of_the_identity_index(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE)")
    sql.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key")
    sql.execute("INSERT INTO t VALUES (1, 'a')")
    by_code = ChunkRequest(T, keys=(("a",), ("b",)), key_columns=("code",))
    found = rows_of(read(chunks, by_code).rows, schemas)
    assert [(row.kind, row.new, row.old) for row in found] == [
        ("r", {"id": "1", "code": "a"}, None),
        ("a", None, {"code": "b"}),
    ]
    assert len(read(chunks, ChunkRequest(T, keys=(("1",),))).rows) == 1
    with pytest.raises(ChunkError, match="rows are matched by"):
        read(chunks, ChunkRequest(T, keys=(("2",),)))
    assert len(read(chunks, ChunkRequest(T, keys=())).rows) == 0


def test_row_read_equals_row_from_the_log(
    capture: Capture, chunks: PostgresChunkReader, sql: Connection
) -> None:
    sql.execute("CREATE TYPE pair AS (a int, b text)")
    sql.execute("CREATE DOMAIN d AS numeric(8, 3)")
    sql.execute(
        "CREATE TABLE t (gone int, id int PRIMARY KEY, f float8, m money, ts timestamptz, "
        "i interval, b bytea, a text[], p pair, c regclass, j jsonb, dom d, "
        "g int GENERATED ALWAYS AS (id + 1) STORED)"
    )
    sql.execute("ALTER TABLE t DROP gone")
    capture.start()
    chunks._registry = capture.schemas
    sql.execute(
        "INSERT INTO t VALUES (1, 0.1::float8 + 0.2, 1234.5, '2024-01-01 00:00+05', "
        r"'1 mon -3 days', '\x00ff', ARRAY['a,b', NULL, E'\\'], ROW(1, E'tab\t'), 't', "
        "'{\"k\": 1}', 2)"
    )
    logged = capture.catch_up(sql)[0]
    got = read(chunks, ChunkRequest(T))
    assert got.schema == capture.seen_schemas[0].schema
    assert rows_of(got.rows, capture.schemas)[0].new == logged.new
    assert logged.new is not None
    assert logged.new["c"] == "public.t"


def test_snapshot_tells_what_the_read_could_see(
    chunks: PostgresChunkReader, sql: Connection, database: str
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(database) as writer:
        open_xid = writer.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        done = sql.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        got = read(chunks, ChunkRequest(T))
        writer.commit()
    assert open_xid is not None
    assert done is not None
    later = sql.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
    assert later is not None
    xids = np.array([0, 3, open_xid[0], done[0], later[0]], dtype=np.int64)
    assert got.snapshot.visible(xids).tolist() == [True, True, False, True, False]
    assert chunks.current_snapshot().visible(xids).all()


def test_ddl_waits_until_release_but_writers_do_not(
    chunks: PostgresChunkReader, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE SCHEMA tidelog")
    sql.execute("CREATE TABLE tidelog.watermark (id int PRIMARY KEY, mark text)")
    chunks.write_watermark("low")
    chunks.read(ChunkRequest(T))
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        sql.execute("ALTER TABLE t ADD v int")
    chunks.write_watermark("high")
    chunks.release()
    sql.execute("ALTER TABLE t ADD v int")
    assert sql.execute("SELECT mark FROM tidelog.watermark").fetchall() == [("high",)]


def test_errors_are_chunk_errors_and_the_next_read_works(
    chunks: PostgresChunkReader, sql: Connection, database: str
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sql.execute("INSERT INTO t VALUES (1, 'secret')")
    with psycopg.connect(database) as blocker:
        blocker.execute("ALTER TABLE t ADD x int")
        with pytest.raises(ChunkError, match="conflicting lock"):
            read(chunks, ChunkRequest(T))
        blocker.rollback()
    with pytest.raises(ChunkError, match="does not exist"):
        read(chunks, ChunkRequest(TableName("public", "nowhere")))
    with pytest.raises(ChunkVoidError, match="rows are matched by has changed"):
        read(chunks, ChunkRequest(T, after=("1", "2")))
    for where in ("v::int = 1", "nosuch = 1", "true) TO STDOUT; DROP TABLE t; --"):
        with pytest.raises(ChunkError) as caught:
            read(chunks, ChunkRequest(T, where=where))
        assert "secret" not in str(caught.value)
    with pytest.raises(ChunkError, match="watermark"):
        chunks.write_watermark("low")
    sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'tidelog-%' AND datname = current_database()"
    )
    with pytest.raises(ChunkError, match="connection"):
        read(chunks, ChunkRequest(T))
    assert len(read(chunks, ChunkRequest(T, where="v = 'secret' -- why")).rows) == 1


def test_rows_hidden_by_a_policy_fail_the_chunk(
    schemas: NullRegistry, sql: Connection, database: str
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    sql.execute("DROP ROLE IF EXISTS limited")
    sql.execute("CREATE ROLE limited LOGIN")
    chunks = PostgresChunkReader(database.replace("postgres@", "limited@"), schemas)
    with pytest.raises(ChunkError, match="permission denied"):
        read(chunks, ChunkRequest(T))
    sql.execute("GRANT SELECT ON t TO limited")
    sql.execute("CREATE POLICY half ON t USING (id > 1); INSERT INTO t VALUES (1), (2)")
    with pytest.raises(ChunkError, match=r"row-level security would hide .* BYPASSRLS"):
        read(chunks, ChunkRequest(T))
    for given, taken in (
        ("ALTER ROLE limited BYPASSRLS", "ALTER ROLE limited NOBYPASSRLS"),
        ("ALTER TABLE t OWNER TO limited", "ALTER TABLE t FORCE ROW LEVEL SECURITY"),
    ):
        sql.execute(given)
        assert len(read(chunks, ChunkRequest(T)).rows) == 2
        sql.execute(taken)
        with pytest.raises(ChunkError, match="BYPASSRLS"):
            read(chunks, ChunkRequest(T))
    chunks.close()
    sql.execute("DROP OWNED BY limited; DROP ROLE limited")


def test_partitioned_inherited_and_case_insensitive(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY HASH (id)")
    for n in range(3):
        sql.execute(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {n})")
    sql.execute("INSERT INTO t SELECT generate_series(1, 100)")
    rows = dump(chunks, schemas, T, 7)
    assert [(row.new or {})["id"] for row in rows] == [str(n) for n in range(1, 101)]
    sql.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE child () INHERITS (parent)")
    sql.execute("INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2)")
    assert len(dump(chunks, schemas, TableName("public", "parent"), 10)) == 1


def test_catalogue_notices_what_changes_rows_without_events(database: str, sql: Connection) -> None:
    catalogue = PostgresCatalogue(database)

    def storage() -> str:
        shape = catalogue.shape(T)
        assert shape is not None
        return shape.storage

    assert catalogue.shape(T) is None
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    sql.execute("CREATE TEMP TABLE temporary (id int)")
    sql.execute("CREATE UNLOGGED TABLE unlogged (id int)")
    assert catalogue.tables(["public.*"]) == [T]
    assert catalogue.tables(["*.*"]) == [T]
    seen = [storage()]
    assert storage() == seen[0]
    for change in (
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD n int DEFAULT 5",
        "ALTER TABLE t ALTER v TYPE text USING v || 'x'",
        "TRUNCATE t_1",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE t DETACH PARTITION t_1",
    ):
        sql.execute(change)
        seen.append(storage())
    assert seen[0] == seen[1]
    assert len(set(seen)) == 6
    catalogue.close()


def test_catalogue_takes_patterns_as_all_else_does(database: str, sql: Connection) -> None:
    """Those that a shell, or SQL's LIKE, would read otherwise; see also the property test."""
    names = ["a1", "a[1]", "?x", "xx", "a*", "my.s", "a_", "a%"]
    for name in names:
        sql.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY)')
    catalogue = PostgresCatalogue(database)
    known = catalogue.tables(["*"])
    assert known == sorted(TableName("public", name) for name in names)
    for pattern in [*(f"public.{name}" for name in names), "*.a*", "public.my.s", "public.my.*"]:
        assert catalogue.tables([pattern]) == [t for t in known if matches([pattern], t)], pattern
        assert [*catalogue.versions([pattern])] == catalogue.tables([pattern])
