"""A condition of the signal table runs no code of the roles that made the table and its types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

from tidelog.control.plain_conditions import names
from tidelog.errors import ChunkBusyError, ChunkError, ChunkRefusedError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration

T = TableName("app", "t")

# Each function raises: whoever runs it sees that it ran, and as whom.
MADE = """
CREATE TYPE pair AS (a int);
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TYPE plainmood AS ENUM ('calm', 'wild');
CREATE DOMAIN code AS text CHECK (length(VALUE) > 0);
CREATE TYPE span AS RANGE (SUBTYPE = int);
CREATE TABLE t (id int PRIMARY KEY, p pair, ps pair[], m mood, ms mood[], pm plainmood, c code,
  s span, "É" pair, é int, n int, g int GENERATED ALWAYS AS (n + 1) STORED);
INSERT INTO t VALUES (1, ROW(1), ARRAY[ROW(1)::pair], 'calm', '{calm}', 'calm', 'x', '[1,2)',
  ROW(1), 1, 1);
CREATE FUNCTION ran() RETURNS text LANGUAGE plpgsql AS $$
  BEGIN RAISE EXCEPTION 'ran as %', current_user; END $$;
CREATE FUNCTION cast_pair(pair) RETURNS text LANGUAGE sql AS 'SELECT app.ran()';
CREATE FUNCTION cast_mood(mood) RETURNS text LANGUAGE sql AS 'SELECT app.ran()';
CREATE FUNCTION cast_moods(mood[]) RETURNS text LANGUAGE sql AS 'SELECT app.ran()';
CREATE FUNCTION cast_row(t) RETURNS text LANGUAGE sql AS 'SELECT app.ran()';
CREATE CAST (pair AS text) WITH FUNCTION cast_pair AS IMPLICIT;
CREATE CAST (mood AS text) WITH FUNCTION cast_mood AS IMPLICIT;
CREATE CAST (t AS text) WITH FUNCTION cast_row AS IMPLICIT;
CREATE FUNCTION equal(int, numeric) RETURNS boolean LANGUAGE sql AS 'SELECT app.ran() IS NULL';
CREATE OPERATOR = (LEFTARG = int, RIGHTARG = numeric, FUNCTION = equal);
"""

REFUSED = [
    *(
        "p = 'x'",
        "p::text = 'x'",
        "lower(p) = 'x'",
        "coalesce(p, p) IS NULL",
        "n = 1 OR p LIKE 'x'",
    ),
    *("m = 'calm'", "m LIKE 'c'", "ms IS NULL", "ps IS NULL", "s IS NULL", '"É" IS NULL'),
    *("t = 'x'", "t::text = 'x'", "T IS NULL", '"t" IS NULL', "É = 1", "absent = 1"),
    *("current_user = 'x'", '"N" = 1', f"{'n' * 64} = 1"),
]
TAKEN = [
    *("n = 1.0", "pm = 'calm'", "c = 'x'", 'N = 1 AND "n" = 1', "g = 2", '"é" = 1'),
    *("c IN ('x', 'y')", "coalesce(c, 'y') = 'x'", "id BETWEEN 0 AND 5.5"),
]


@pytest.fixture
def app(database: str, postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A role without rights but to a schema of its own."""
    name = "app_" + database.rsplit("/", 1)[1]
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA app AUTHORIZATION {name}".encode())
        with psycopg.connect(
            database, user=name, autocommit=True, options="-c search_path=app"
        ) as connection:
            connection.execute(MADE.encode())
            yield connection
        sql.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def of_signal(condition: str) -> ChunkRequest:
    return ChunkRequest(T, limit_rows=10, where=condition, where_names=names(condition))


def test_a_condition_of_the_signal_table_runs_nobodys_code(
    database: str, app: psycopg.Connection[Any]
) -> None:
    reader = PostgresChunkReader(database, NullRegistry())
    blocking = PostgresBlockingReader(database, NullRegistry(), tables=[T])
    try:
        # The operator's may, and what is refused below does run code.
        with pytest.raises(ChunkError, match="P0001") as ran:
            reader.read(ChunkRequest(T, limit_rows=10, where="p = 'x'"))
        assert not isinstance(ran.value, ChunkRefusedError)
        reader.release()
        blocking.begin(timeout_s=60)
        for condition in REFUSED:
            for read in (reader.read, blocking.read):
                with pytest.raises(ChunkRefusedError, match=r"app\.t: the condition names") as why:
                    read(of_signal(condition))
                assert "calm" not in str(why.value)
                reader.release()
            with pytest.raises(ChunkRefusedError, match="the condition names"):
                reader.boundaries(of_signal(condition), 1)
        for condition in TAKEN:
            assert len(reader.read(of_signal(condition)).rows) == 1, condition
            reader.release()
        assert len(blocking.read(of_signal(TAKEN[0])).rows) == 1
    finally:
        reader.close()
        blocking.close()


def test_no_operator_is_found_by_a_path_that_a_tables_functions_need(
    database: str, app: psycopg.Connection[Any]
) -> None:
    """A table whose index function relies on its author's search_path is read with that path."""
    app.execute(
        "CREATE FUNCTION inner_one(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE FUNCTION outer_one(int) RETURNS int IMMUTABLE LANGUAGE sql "
        "AS 'SELECT inner_one($1)';"
        "CREATE TABLE u AS SELECT id, n FROM t; ALTER TABLE u ADD PRIMARY KEY (id);"
        "CREATE INDEX ON u (outer_one(n))"
    )
    reader = PostgresChunkReader(database, NullRegistry())
    whole = ChunkRequest(TableName("app", "u"), limit_rows=10)
    try:
        with pytest.raises(ChunkRefusedError, match="inner_one"):
            reader.read(replace(whole, where="n = 1.0", where_names=("n",)))
        reader.release()
        with suppress(ChunkBusyError):  # the next read has the path
            reader.read(whole)
        reader.release()
        assert len(reader.read(whole).rows) == 1
        reader.release()
        with pytest.raises(ChunkError, match="P0001"):  # the operator's
            reader.read(replace(whole, where="n = 1.0"))
        reader.release()
        with suppress(ChunkRefusedError):  # unless the server has the index in its cache by now
            assert len(reader.read(replace(whole, where="n = 1.0", where_names=("n",))).rows) == 1
    finally:
        reader.close()
