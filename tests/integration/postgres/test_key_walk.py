"""Chunk bounds walk a table's key: exact sizes, every row once, whatever its type and skew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import rows_of

from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.chunks.sql import PostgresChunkSql, operator_schemas

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
T = TableName("public", "t")
Key = tuple[str | None, ...]


@pytest.fixture
def schemas() -> NullRegistry:
    return NullRegistry()


@pytest.fixture
def chunks(database: str, schemas: NullRegistry) -> Iterator[PostgresChunkReader]:
    reader = PostgresChunkReader(
        database, schemas, finder=PostgresSchemaFinder({"public.t": ["a", "b"]})
    )
    yield reader
    reader.close()


@pytest.fixture
def single(database: str, schemas: NullRegistry) -> Iterator[PostgresChunkReader]:
    """With a surrogate key of one column."""
    reader = PostgresChunkReader(
        database, schemas, finder=PostgresSchemaFinder({"public.t": ["a"]})
    )
    yield reader
    reader.close()


def read(chunks: PostgresChunkReader, request: ChunkRequest) -> ChunkRows:
    try:
        return chunks.read(request)
    finally:
        chunks.release()


def walk(
    chunks: PostgresChunkReader, schemas: NullRegistry, rows: int, where: str | None = None
) -> list[list[int]]:
    """Column ``n`` of the rows of each chunk, as a planner and readers behind it take them."""
    found = []
    after: Key | None = None
    while True:
        ends = chunks.boundaries(ChunkRequest(T, after=after, limit_rows=rows, where=where), 1)
        upto = ends[0] if ends else None
        chunk = read(
            chunks, ChunkRequest(T, after=after, upto=upto, limit_rows=rows + 1, where=where)
        )
        found.append([int((row.new or {})["n"] or 0) for row in rows_of(chunk.rows, schemas)])
        if upto is None:
            return found
        assert chunk.last_key == upto
        assert len(found[-1]) == rows
        after = upto


def whole(found: list[list[int]], count: int) -> bool:
    return sorted(n for chunk in found for n in chunk) == list(range(count))


# name → (key's columns, its definition, the INSERT's SELECT of them and n)
TABLES = {
    "int": ("a int PRIMARY KEY", "g - 50"),
    "skewed bigint": (
        "a bigint PRIMARY KEY",
        "CASE WHEN g < 60 THEN g ELSE g::bigint << (g - 45) END",
    ),
    "numeric with NaN": (
        "a numeric PRIMARY KEY",
        "CASE g WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' WHEN 2 THEN 'Infinity' "
        "ELSE ((g - 50) || '.' || repeat('0', g % 4))::numeric / 7 END",
    ),
    "float with NaN": (
        "a float8 PRIMARY KEY",
        "CASE g WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' ELSE sin(g) END",
    ),
    "uuid": ("a uuid PRIMARY KEY", "md5(g::text)::uuid"),
    "text C": ('a text COLLATE "C" PRIMARY KEY', "chr(32 + g % 90) || g || E'\\\\\\t\\n'"),
    "text of a locale": (
        'a text COLLATE "C.utf8" PRIMARY KEY',
        "chr(192 + g % 60) || CASE g % 2 WHEN 0 THEN 'X' ELSE 'x' END || g",
    ),
    "enum": ("a many PRIMARY KEY", "('v' || g)::many"),
    "timestamp": (
        "a timestamp PRIMARY KEY",
        "CASE g WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' ELSE '0001-01-01'::timestamp "
        "- interval '400 days' + g * interval '9 days 0.000001 s' END",
    ),
    "timestamptz": ("a timestamptz PRIMARY KEY", "'2024-03-31'::timestamptz + g * interval '7 m'"),
    "bytea": ("a bytea PRIMARY KEY", "decode(md5(g::text), 'hex')"),
    "domain": ("a code PRIMARY KEY", "('c' || g)::code"),
    "array": ("a int[] PRIMARY KEY", "ARRAY[g % 7, g]"),
    "char": ("a char(6) PRIMARY KEY", "g::text"),
    "inet": ("a inet PRIMARY KEY", "'10.0.0.0'::inet + g"),
    "composite": ("b text, a int, PRIMARY KEY (a, b)", "'k' || g, g % 3"),
    "four columns": (
        "b text, a int, c uuid, d date, PRIMARY KEY (a, b, c, d)",
        "(g % 2)::text, g % 3, md5((g % 5)::text)::uuid, '2024-01-01'::date + g",
    ),
    "unique NULLS NOT DISTINCT": (
        "a int, b text, UNIQUE NULLS NOT DISTINCT (a, b)",
        "CASE WHEN g % 4 = 0 THEN NULL ELSE g % 5 END, "
        "CASE WHEN g % 23 = 0 AND g % 4 = 1 THEN NULL ELSE 'k' || g END",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_in_one_chunk_of_exact_size(
    name: str, chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    columns, values = TABLES[name]
    sql.execute("CREATE DOMAIN code AS text CHECK (value <> '')")
    sql.execute(f"CREATE TYPE many AS ENUM ({', '.join(repr(f'v{g}') for g in range(100))})")
    sql.execute(f"CREATE TABLE t ({columns}, n int)".encode())
    sql.execute(f"INSERT INTO t SELECT {values}, g FROM generate_series(0, 99) g".encode())
    for rows in (1, 7, 50, 99, 100, 101):
        found = walk(chunks, schemas, rows)
        assert whole(found, 100), rows
        assert len(found) == 100 // rows + 1
    some = walk(chunks, schemas, 5, where="n % 3 = 0 -- a third")
    assert sorted(n for chunk in some for n in chunk) == list(range(0, 100, 3))
    everything = read(chunks, ChunkRequest(T))
    keys = everything.schema.key
    places = [everything.schema.column_names.index(column) for column in keys]
    rows_ = rows_of(everything.rows, schemas)
    wanted = tuple(tuple(list((row.new or {}).values())[p] for p in places) for row in rows_)
    assert wanted[-1] == everything.last_key
    given = read(chunks, ChunkRequest(T, keys=wanted[::-1]))
    assert [row.kind for row in rows_of(given.rows, schemas)] == ["r"] * 100
    assert given.rows.payload.tobytes() == everything.rows.payload.tobytes()


EXTENSION = """
CREATE SCHEMA ext;
CREATE TYPE ext.low;
CREATE FUNCTION ext.low_in(cstring) RETURNS ext.low
  AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION ext.low_out(ext.low) RETURNS cstring
  AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE ext.low (INPUT = ext.low_in, OUTPUT = ext.low_out, LIKE = text, COLLATABLE = true);
CREATE CAST (ext.low AS text) WITHOUT FUNCTION;
CREATE FUNCTION ext.cmp(ext.low, ext.low) RETURNS int IMMUTABLE STRICT LANGUAGE sql
  AS $$ SELECT bttextcmp(lower($1::text), lower($2::text)) $$;
"""
COMPARISON = """
CREATE FUNCTION ext.{name}(ext.low, ext.low) RETURNS bool IMMUTABLE STRICT LANGUAGE sql
  AS $$ SELECT ext.cmp($1, $2) {operator} 0 $$;
CREATE OPERATOR ext.{operator} (LEFTARG = ext.low, RIGHTARG = ext.low, FUNCTION = ext.{name});
"""
OPERATORS = """
CREATE OPERATOR CLASS ext.low_ops DEFAULT FOR TYPE ext.low USING btree AS OPERATOR 1 ext.<,
  OPERATOR 2 ext.<=, OPERATOR 3 ext.=, OPERATOR 4 ext.>=, OPERATOR 5 ext.>,
  FUNCTION 1 ext.cmp(ext.low, ext.low)
"""


def test_operators_of_an_extension_type_walk(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    """As citext: a type in a schema of its own, with its operators and operator class there."""
    sql.execute(EXTENSION)
    for name, operator in {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}.items():
        sql.execute(COMPARISON.format(name=name, operator=operator).encode())
    sql.execute(OPERATORS)
    sql.execute("CREATE TABLE t (a int, b ext.low, n int, PRIMARY KEY (a, b))")
    sql.execute(
        "INSERT INTO t SELECT g / 9, ext.low_in(chr(65 + g % 9 + 32 * (g % 2))::cstring), g "
        "FROM generate_series(0, 80) g"
    )
    for rows in (1, 5, 80):
        assert whole(walk(chunks, schemas, rows), 81)
    keys = (("3", "A"), ("3", "a"), ("3", "zz"))
    given = rows_of(read(chunks, ChunkRequest(T, keys=keys)).rows, schemas)
    assert sorted(row.kind for row in given) == ["a", "r"]


def test_null_is_an_ordinary_value_of_a_surrogate_key(
    chunks: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (a int, b int, n int, UNIQUE NULLS NOT DISTINCT (a, b))")
    sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO t VALUES (1, 1, 0), (1, NULL, 1), (2, 2, 2), (NULL, 1, 3), "
                "(NULL, NULL, 4)")  # fmt: skip
    assert walk(chunks, schemas, 1) == [[0], [1], [2], [3], [4], []]
    between = ChunkRequest(T, after=("1", "1"), upto=(None, "1"))
    assert [(row.new or {})["n"] for row in rows_of(read(chunks, between).rows, schemas)] == [
        "1", "2", "3"]  # fmt: skip
    keys = (("1", None), (None, None), (None, "7"), ("2", "2"), ("3", "3"))
    given = rows_of(read(chunks, ChunkRequest(T, keys=keys)).rows, schemas)
    assert [(row.kind, (row.new or row.old or {})["n"]) for row in given[:3]] == [
        ("r", "1"), ("r", "2"), ("r", "4")]  # fmt: skip
    absent = [(row.old or {})["a"] for row in given[3:]]
    assert sorted(absent, key=str) == ["3", None]


def test_rows_that_share_a_key_with_null_are_refused_not_lost(
    single: PostgresChunkReader, schemas: NullRegistry, sql: Connection
) -> None:
    """A plain UNIQUE index holds any number of NULLs: these rows can't be told apart."""
    sql.execute("CREATE TABLE t (a int UNIQUE, n int)")
    sql.execute("INSERT INTO t VALUES (1, 0), (2, 1), (NULL, 2)")
    for rows in (1, 2, 3, 4):
        assert whole(walk(single, schemas, rows), 3)
    sql.execute("INSERT INTO t VALUES (NULL, 3)")
    for rows in (1, 2, 3, 4, 5):
        with pytest.raises(ChunkRefusedError, match="can't be distinguished"):
            walk(single, schemas, rows)
    sql.execute("DELETE FROM t WHERE n = 3")
    assert whole(walk(single, schemas, 2), 3)


INDEXED = {
    "one column": ("a int PRIMARY KEY, b int", ("a",), ("5000",), ("6000",)),
    "composite": ("b int, a int, PRIMARY KEY (a, b)", ("a", "b"), ("5000", "5"), ("6000", "3")),
    "nullable": ("a int, b int, UNIQUE (a, b)", ("a", "b"), ("5000", "5"), ("6000", "3")),
    "in NULLs": ("a int, b int, UNIQUE (a, b)", ("a", "b"), (None, "5"), None),
}


@pytest.mark.parametrize("name", INDEXED)
def test_the_keys_index_serves_ranges_and_bounds(
    name: str, chunks: PostgresChunkReader, sql: Connection
) -> None:
    columns, key, after, upto = INDEXED[name]
    sql.execute(f"CREATE TABLE t ({columns}, n int, v text)".encode())
    sql.execute("INSERT INTO t (a, b, n, v) SELECT g, g, g, repeat('x', 200) "
                "FROM generate_series(0, 50000) g")  # fmt: skip
    sql.execute("VACUUM ANALYZE t")
    schema = read(chunks, ChunkRequest(T, limit_rows=1)).schema
    query = PostgresChunkSql(schema, key, operator_schemas(sql, schema, key), False)
    for statement, scan in (
        (query.range(after, upto, 100, None), "Index Scan"),
        (query.boundary(after, upto, 100, None), "Index Only Scan"),
    ):
        select = statement[len("COPY (") : -len(") TO STDOUT")]
        rows = sql.execute(f"EXPLAIN (ANALYZE, TIMING OFF, BUFFERS) {select}".encode()).fetchall()
        plan = "\n".join(row[0] for row in rows)
        assert scan in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Rows Removed" not in plan, plan
        (hit,) = [
            int(w.split("=")[1]) for w in plan.split("Planning")[0].split() if w.startswith("hit=")
        ][:1]
        assert hit < 120, plan  # pages: a part of the table's 1,500


@pytest.mark.parametrize("key", [("a",), ("a", "b")])
def test_ten_thousand_keys_are_looked_up_in_the_index(
    key: tuple[str, ...], chunks: PostgresChunkReader, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, UNIQUE (a, b))")
    sql.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 30000) g")
    sql.execute("VACUUM ANALYZE t")
    schema = read(chunks, ChunkRequest(T, limit_rows=1)).schema
    query = PostgresChunkSql(schema, key, ("pg_catalog",) * len(key), False)
    wanted = [(str(n),) * len(key) for n in range(3, 40000, 4)]
    from tidelog.sources.postgres.chunks.rows import _BY_INDEX

    sql.execute(_BY_INDEX.replace(b"LOCAL ", b""))
    for statement in (query.of_keys(wanted, None), query.absent_keys(wanted)):
        assert len(statement) < 40 * len(wanted)  # an array, not an expression for each key
        select = statement[len("COPY (") : -len(") TO STDOUT")]
        plan = "\n".join(row[0] for row in sql.execute(f"EXPLAIN {select}".encode()).fetchall())
        assert "Index" in plan, plan
        assert "Seq Scan" not in plan, plan
    given = read(chunks, ChunkRequest(T, keys=tuple(wanted), key_columns=key))
    assert len(given.rows) == len(wanted)
    assert (given.rows.kind == ord("a")).sum() == 2500
