"""The contract of `tidelog.ports.ChunkReader`, over every strategy and two releases of PostgreSQL.

The log is read beside the chunks, by the log reader that capture uses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, Row, rows_of
from tests.support.postgres import PostgresServer

from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ChunkVoidError,
)
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration
T = TableName("public", "t")
CASES = [(strategy, v) for strategy in ("table", "message", "snapshot") for v in (16, 18)]


@dataclass
class Source:
    """A database, its log, and chunk readers over it."""

    dsn: str
    strategy: Any
    schemas: NullRegistry
    sql: psycopg.Connection[Any]
    chunks: PostgresChunkReader
    log: Capture

    def read(self, request: ChunkRequest) -> ChunkRows:
        try:
            return self.chunks.read(request)
        finally:
            self.chunks.release()

    def rows(self, chunk: ChunkRows) -> list[Row]:
        return rows_of(chunk.rows, self.schemas)

    def ids(self, chunk: ChunkRows) -> list[str | None]:
        return self.ids_of(chunk, "id")

    def ids_of(self, chunk: ChunkRows, column: str) -> list[str | None]:
        return [(row.new or row.old or {})[column] for row in self.rows(chunk)]


@pytest.fixture(params=CASES, ids=[f"{strategy}-{v}" for strategy, v in CASES])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    strategy, version = request.param
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    name = f"chunks_{strategy}_{version}"
    dsn = server.create_database(name)
    schemas = NullRegistry()
    chunks = PostgresChunkReader(
        dsn, schemas, strategy=strategy, lock_timeout_ms=300, statement_timeout_ms=2_000
    )
    log = Capture(dsn, schemas=schemas, tables=["public.*"], options={"strategy": strategy})
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        sql.execute("INSERT INTO t SELECT g, 'old' FROM generate_series(1, 100) g")
        if strategy == "snapshot":  # creates nothing itself
            for publication, kinds in (("tidelog", "insert, update, delete, truncate"),
                                       ("tidelog_inserts", "insert, truncate")):  # fmt: skip
                sql.execute(
                    f"CREATE PUBLICATION {publication} WITH (publish = '{kinds}', "
                    "publish_via_partition_root = true)".encode()
                )
            sql.execute("ALTER PUBLICATION tidelog ADD TABLE t")
        log.start()
        yield Source(dsn, strategy, schemas, sql, chunks, log)
    chunks.close()
    log.reader.close()
    server.drop_database(name)


def placed(source: Source, between: Callable[[], None]) -> tuple[ChunkRows, int, int]:
    """A chunk, with ``between`` after its SELECT; the positions of its low and its end."""
    source.chunks.write_watermark("low")
    chunk = source.chunks.read(ChunkRequest(T))
    between()
    source.chunks.write_watermark("high")
    source.chunks.release()
    source.log.catch_up(source.sql)
    if chunk.emit_at is not None:
        assert source.log.watermarks == []
        return chunk, 0, chunk.emit_at
    assert source.log.watermarks == ["low", "high"]
    marks = [e.position for e in source.log.events if hasattr(e, "watermark")]
    return chunk, marks[0], marks[1]


def test_what_the_read_sees_lies_before_its_end_in_the_log(source: Source) -> None:
    source.sql.execute("UPDATE t SET v = 'seen' WHERE id = 7")

    def change() -> None:
        source.sql.execute("UPDATE t SET v = 'later' WHERE id = 8")

    chunk, low, end = placed(source, change)
    values = {row.new["id"]: row.new["v"] for row in source.rows(chunk) if row.new}
    assert (values["7"], values["8"]) == ("seen", "old")
    seen, later = source.log.rows
    assert seen.position < (low or end)
    assert chunk.snapshot.visible(np.array([seen.xid, later.xid])).tolist() == [True, False]
    if source.strategy == "snapshot":
        assert later.position >= end
    else:
        assert low < later.position < end


def test_open_transactions_are_not_seen(source: Source) -> None:
    """Their subtransactions have ids of their own, but the log and the snapshot know the top one's.

    A prepared transaction is in progress, whoever prepared it.
    """
    with psycopg.connect(source.dsn) as writer:
        writer.execute("SAVEPOINT a")
        writer.execute("UPDATE t SET v = 'sub' WHERE id = 1")
        writer.execute("SAVEPOINT b")
        writer.execute("UPDATE t SET v = 'sub' WHERE id = 2")
        chunk, _, _ = placed(source, lambda: None)
        writer.commit()
    assert {row.new["v"] for row in source.rows(chunk) if row.new} == {"old"}
    source.log.catch_up(source.sql)
    assert len(source.log.rows) == 2
    xids = np.array([row.xid for row in source.log.rows])
    assert not chunk.snapshot.visible(xids).any()
    assert len(set(xids)) == 1


def test_ddl_waits_until_release_and_writers_do_not(source: Source) -> None:
    source.chunks.read(ChunkRequest(T))
    source.sql.execute("INSERT INTO t VALUES (101, 'new')")
    source.sql.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        source.sql.execute("ALTER TABLE t ADD w int")
    source.chunks.write_watermark("high")
    source.chunks.release()
    source.sql.execute("ALTER TABLE t ADD w int")


def test_rows_of_a_chunk_have_the_schema_they_were_read_under(source: Source) -> None:
    before = source.read(ChunkRequest(T, limit_rows=1))
    source.sql.execute("ALTER TABLE t ADD w int DEFAULT 5")
    after = source.read(ChunkRequest(T, limit_rows=1))
    assert before.schema.schema_id != after.schema.schema_id
    assert source.rows(before)[0].new == {"id": "1", "v": "old"}
    assert source.rows(after)[0].new == {"id": "1", "v": "old", "w": "5"}


def test_ranges_walk_the_whole_table_and_boundaries_foretell_them(source: Source) -> None:
    after, found, last_keys = None, [], []
    foretold = source.chunks.boundaries(ChunkRequest(T, limit_rows=30), 10)
    while True:
        chunk = source.read(ChunkRequest(T, after=after, limit_rows=30))
        found += source.ids(chunk)
        if chunk.exhausted:
            break
        after = chunk.last_key
        last_keys.append(after)
    assert found == [str(n) for n in range(1, 101)]
    assert foretold == last_keys == [("30",), ("60",), ("90",)]
    assert source.chunks.boundaries(ChunkRequest(T, limit_rows=30), 2) == foretold[:2]
    inside = ChunkRequest(T, after=("10",), upto=("20",), limit_rows=30, where="id % 2 = 0")
    assert source.ids(source.read(inside)) == ["12", "14", "16", "18", "20"]
    assert source.chunks.boundaries(inside, 1) == []


def test_boundary_holds_no_lock_and_no_snapshot(source: Source) -> None:
    source.chunks.boundaries(ChunkRequest(T, limit_rows=10), 2)
    source.sql.execute("SET lock_timeout = '100ms'")
    source.sql.execute("ALTER TABLE t ADD w int")
    assert source.chunks.boundaries(ChunkRequest(T, limit_rows=10), 1) == [("10",)]


def test_given_keys_come_as_rows_or_as_absent(source: Source) -> None:
    chunk = source.read(ChunkRequest(T, keys=(("3",), ("900",), ("1",), ("3",))))
    assert [(row.kind, (row.new or row.old or {})["id"]) for row in source.rows(chunk)] == [
        ("r", "1"),
        ("r", "3"),
        ("a", "900"),
    ]


def test_bounds_of_another_key_void_the_chunk(source: Source) -> None:
    request = ChunkRequest(T, after=("5",), key_columns=("v",))
    with pytest.raises(ChunkVoidError, match="has changed since the dump began"):
        source.read(request)
    with pytest.raises(ChunkVoidError, match="has changed since the dump began"):
        source.chunks.boundaries(request, 1)
    assert len(source.read(ChunkRequest(T, after=("5",), key_columns=("id",))).rows) == 95


def test_failed_read_releases_and_the_next_one_works(source: Source) -> None:
    with psycopg.connect(source.dsn) as ddl:
        ddl.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        for ask in (source.read, lambda request: source.chunks.boundaries(request, 1)):
            with pytest.raises(ChunkError, match="lock"):
                ask(ChunkRequest(T))
    slow = ChunkRequest(T, where="pg_sleep(0.1) IS NOT NULL", limit_rows=100)
    for ask in (source.read, lambda request: source.chunks.boundaries(request, 1)):
        with pytest.raises(ChunkTooSlowError):
            ask(slow)
    source.sql.execute("SET lock_timeout = '100ms'")
    source.sql.execute("ALTER TABLE t ADD w int")
    assert len(source.read(ChunkRequest(T)).rows) == 100


def test_snapshots_of_now_follow_older_ones(source: Source) -> None:
    first = source.chunks.current_snapshot()
    source.sql.execute("SELECT pg_current_xact_id()")
    second = source.chunks.current_snapshot()
    assert second.follows(first)
    assert not first.follows(second)


def test_closing_from_another_thread_ends_what_is_being_read(source: Source) -> None:
    """A capture that ends, or leads no more, holds no lock until its SELECT is done."""
    failures: list[BaseException] = []

    def read() -> None:
        try:
            source.read(ChunkRequest(T, where="pg_sleep(0.015) IS NOT NULL", limit_rows=100))
        except ChunkError as failure:
            failures.append(failure)

    reading = threading.Thread(target=read)
    reading.start()
    time.sleep(0.3)
    began = time.monotonic()
    source.chunks.close()
    reading.join(10)
    assert failures
    assert time.monotonic() - began < 1.0
    with pytest.raises(ChunkLostError):
        source.chunks.current_snapshot()


def test_missing_privilege_is_refused_and_named(source: Source) -> None:
    source.sql.execute("DROP ROLE IF EXISTS nobody_reads")
    source.sql.execute("CREATE ROLE nobody_reads LOGIN")
    url = source.dsn.replace("postgres@", "nobody_reads@")
    reader = PostgresChunkReader(url, source.schemas, strategy="snapshot")
    try:
        with pytest.raises(ChunkRefusedError, match="permission denied for table t"):
            reader.read(ChunkRequest(T))
    finally:
        reader.close()
        source.sql.execute("DROP ROLE nobody_reads")


def test_a_read_that_is_spread_gives_the_rows_of_one_snapshot(source: Source) -> None:
    source.sql.execute("INSERT INTO t SELECT g, 'old' FROM generate_series(101, 3500) g")
    chunk = source.read(ChunkRequest(T, limit_rows=10_000))
    at_once = source.rows(chunk)
    assert chunk.rested_s == 0.0
    changing = threading.Event()

    def change() -> None:
        with psycopg.connect(source.dsn, autocommit=True) as sql:
            changing.set()
            sql.execute("UPDATE t SET v = 'new' WHERE id > 2000")

    thread = threading.Timer(0.1, change)
    thread.start()
    chunk = source.chunks.read(ChunkRequest(T, limit_rows=3_400, spread_s=1.0))
    assert changing.is_set()
    source.chunks.release()
    thread.join()
    assert source.rows(chunk) == at_once[:3_400]
    assert (chunk.last_key, chunk.exhausted) == (("3400",), False)
    assert 0.3 < chunk.rested_s <= 1.0
    rest = source.read(ChunkRequest(T, after=chunk.last_key, spread_s=1.0))
    assert (source.ids(rest)[0], rest.exhausted, rest.rested_s) == ("3401", True, 0.0)


def test_rows_wider_than_a_slice_are_read_when_spread(source: Source) -> None:
    source.sql.execute(
        "INSERT INTO t SELECT g, repeat('x', 20000) FROM generate_series(101, 900) g"
    )
    at_once = source.read(ChunkRequest(T))
    spread = source.read(ChunkRequest(T, limit_rows=900, spread_s=0.05))
    assert source.rows(spread) == source.rows(at_once)
    assert len(spread.rows) == 900


def test_functions_of_an_index_are_found_by_the_tables_search_path(source: Source) -> None:
    """As `vaccluster` of PostgreSQL's own tests: the planner looks into the index's function."""
    if source.sql.info.server_version >= 170_000:
        pytest.skip("it makes no such index: functions are looked into under a safe search_path")
    for statement in (
        "CREATE SCHEMA shop",
        "SET search_path = shop",
        "CREATE TABLE c (i int PRIMARY KEY)",
        "CREATE FUNCTION f(c int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT c'",
        "CREATE FUNCTION g(c int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT f(c)'",
        "CREATE INDEX ON c (g(i))",
        "INSERT INTO c VALUES (1), (2)",
    ):
        source.sql.execute(statement.encode())
    request = ChunkRequest(TableName("shop", "c"), limit_rows=2)
    with pytest.raises(ChunkBusyError, match='read again with search_path "shop", public'):
        source.read(request)
    assert source.ids_of(source.read(request), "i") == ["1", "2"]
    assert source.chunks.boundaries(request, 1) == [("2",)]


def large_rows(source: Source) -> None:
    source.sql.execute(
        "INSERT INTO t SELECT g, repeat(md5(g::text), 4000) FROM generate_series(101, 160) g"
    )


@pytest.mark.parametrize("spread_s", [0.0, 0.05])
def test_rows_larger_than_expected_end_a_range_early(source: Source, spread_s: float) -> None:
    large_rows(source)
    found: list[str | None] = []
    request, limit, cut = ChunkRequest(T, limit_bytes=1 << 20, spread_s=spread_s), 1 << 20, 0
    while True:
        chunk = source.chunks.read(request)
        assert chunk.rows.payload_bytes <= limit + 10_000
        found += source.ids(chunk)
        if not chunk.exhausted and not cut:
            cut += 1
            source.sql.execute("SET lock_timeout = 100")
            with pytest.raises(psycopg.errors.LockNotAvailable):  # the lock outlives the cut
                source.sql.execute("ALTER TABLE t ADD c int")
        source.chunks.release()
        if chunk.exhausted:
            break
        request = replace(request, after=chunk.last_key)
    assert cut
    assert found == [str(number) for number in range(1, 161)]


def test_a_row_larger_than_a_chunk_comes_alone(source: Source) -> None:
    large_rows(source)
    chunk = source.read(ChunkRequest(T, after=("120",), limit_bytes=1_000))
    assert (source.ids(chunk), chunk.last_key, chunk.exhausted) == (["121"], ("121",), False)


def test_keys_of_large_rows_are_read_as_far_as_there_is_room(source: Source) -> None:
    large_rows(source)
    keys = [(str(number),) for number in (*range(90, 161), 900)]
    kinds: list[tuple[str, str | None]] = []
    while keys:
        request = ChunkRequest(T, keys=tuple(keys), limit_bytes=1 << 20)
        chunk = source.read(request)
        assert chunk.keys_read
        assert chunk.rows.payload_bytes <= (1 << 20) + 130_000  # its last row may not fit
        kinds += [(row.kind, (row.new or row.old or {})["id"]) for row in source.rows(chunk)]
        del keys[: chunk.keys_read]
    assert sorted(kinds) == sorted([*(("r", str(n)) for n in range(90, 161)), ("a", "900")])


def test_rows_that_share_a_key_are_found_when_spread(source: Source) -> None:
    """A slice that begins behind a key would leave out the other row of that key."""
    source.sql.execute("CREATE TABLE n (a int, b text, UNIQUE (a))")
    source.sql.execute("INSERT INTO n SELECT g, 'b' FROM generate_series(1, 999) g")
    source.sql.execute("INSERT INTO n VALUES (NULL, 'first'), (NULL, 'second')")
    chunks = PostgresChunkReader(
        source.dsn,
        source.schemas,
        strategy=source.strategy,
        finder=PostgresSchemaFinder({"public.n": ["a"]}),
    )
    try:
        with pytest.raises(ChunkRefusedError, match="share a key"):
            chunks.read(ChunkRequest(TableName("public", "n"), spread_s=0.2))
    finally:
        chunks.release()
        chunks.close()


def test_a_table_that_can_not_be_captured_any_more_is_a_chunk_that_failed(source: Source) -> None:
    """Any other error would end capture, and not only the table."""
    reader = PostgresChunkReader(
        source.dsn,
        source.schemas,
        strategy=source.strategy,
        finder=PostgresSchemaFinder(exclude_columns=["public.t.v"]),
    )
    try:
        assert reader.read(ChunkRequest(T)).schema.column_names == ("id",)
        reader.release()
        source.sql.execute("UPDATE t SET v = id")
        source.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)")
        with pytest.raises(ChunkError, match="excludes v, by which its rows are matched"):
            reader.read(ChunkRequest(T))
    finally:
        reader.close()
