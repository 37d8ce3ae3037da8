"""Strategy ``snapshot``: nothing is written, and every emission point is sound and reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, rows_of
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import publication_sql

from tidelog.errors import PreflightError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.chunks.watermarks import WalLayout
from tidelog.sources.postgres.connect import lsn_value

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
T = TableName("public", "t")
READ_ONLY = "?options=-c%20default_transaction_read_only%3Don"
MIB16 = 16 << 20


@pytest.mark.parametrize(
    ("insert", "end"),
    [
        (5 * MIB16 + 40, 5 * MIB16),  # behind the long header of a segment's first page
        (5 * MIB16 + 8192 + 24, 5 * MIB16 + 8192),  # behind a page's header
        (5 * MIB16 + 8192 + 40, 5 * MIB16 + 8192 + 40),  # 16 bytes of a record precede it
        (5 * MIB16 + 8192 + 32, 5 * MIB16 + 8192 + 32),
        (5 * MIB16 + 8192, 5 * MIB16 + 8192),
        (5 * MIB16 + 64, 5 * MIB16 + 64),
    ],
)
def test_only_a_bare_page_header_is_taken_off(insert: int, end: int) -> None:
    assert WalLayout(8192, MIB16).end_of_records(insert) == end


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    settings = {"max_prepared_transactions": "5", "autovacuum": "off"}
    with PostgresServer(version=request.param, settings=settings) as found:
        yield found


@dataclass
class Source:
    """A source whose publications its owner made, and readers that can't write."""

    dsn: str
    sql: Connection
    chunks: PostgresChunkReader
    log: Capture
    begin: int = 0

    def read(self) -> ChunkRows:
        try:
            return self.chunks.read(ChunkRequest(T))
        finally:
            self.chunks.release()

    def lsn(self, function: str) -> int:
        row = self.sql.execute(f"SELECT {function}()::text".encode()).fetchone()
        assert row is not None
        return lsn_value(row[0])

    def reached(self, position: int) -> Callable[[], bool]:
        return lambda: (
            self.begin >= position
            or bool(self.log.resumes and self.log.resumes[-1].acknowledge >= position)
        )


@pytest.fixture
def source(server: PostgresServer) -> Iterator[Source]:
    dsn = server.create_database("readonly")
    schemas = NullRegistry()
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        sql.execute("INSERT INTO t SELECT g, 'old' FROM generate_series(1, 10) g")
        set_up = publication_sql(Publications("tidelog", ["public.*"], strategy="snapshot"), sql)
        for statement in set_up:
            sql.execute(statement.encode())
        sql.execute("VACUUM t")
        chunks = PostgresChunkReader(dsn + READ_ONLY, schemas, strategy="snapshot")
        log = Capture(
            dsn + READ_ONLY,
            schemas=schemas,
            tables=["public.*"],
            options={"strategy": "snapshot"},
        )
        log.reader._slot = "readonly"
        source = Source(dsn, sql, chunks, log)
        source.begin = log.start().acknowledge
        yield source
        chunks.close()
        log.reader.close()
    server.drop_database("readonly")


def test_nothing_but_the_slot_is_ever_made(source: Source) -> None:
    def objects() -> list[tuple[Any, ...]]:
        return source.sql.execute(
            "SELECT 'c', oid::text, xmin::text FROM pg_class UNION ALL "
            "SELECT 'p', oid::text, xmin::text FROM pg_publication UNION ALL "
            "SELECT 'r', oid::text, xmin::text FROM pg_publication_rel UNION ALL "
            "SELECT 'n', oid::text, xmin::text FROM pg_namespace ORDER BY 1, 2"
        ).fetchall()

    before = objects()
    log = source.lsn("pg_current_wal_insert_lsn")
    xid = source.sql.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
    for _ in range(3):
        source.chunks.write_watermark("low")
        chunk = source.read()
        source.chunks.write_watermark("high")
        source.chunks.boundaries(ChunkRequest(T, limit_rows=3), 2)
        source.log.publish()
        assert chunk.emit_at is not None
        source.log.until(source.reached(chunk.emit_at))
    assert objects() == before
    assert source.lsn("pg_current_wal_insert_lsn") == log
    after = source.sql.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
    assert after == xid


def test_tables_that_are_not_published_are_refused_with_sql(source: Source) -> None:
    source.sql.execute("CREATE TABLE late (id int PRIMARY KEY)")
    assert source.log.publish() == []  # while it runs, it is just not captured
    fresh = Capture(source.dsn, options={"strategy": "snapshot"}, tables=["public.*"])
    fresh.reader._slot = "fresh"
    with pytest.raises(PreflightError) as refused:
        fresh.start()
    fresh.reader.close()
    assert 'ALTER PUBLICATION "tidelog" ADD TABLE ONLY "public"."late"' in str(refused.value)


def test_position_behind_a_page_header_is_reached_on_an_idle_source(source: Source) -> None:
    message = "SELECT pg_logical_emit_message(false, 'x', repeat('x', %s))"
    at = source.lsn("pg_current_wal_insert_lsn")
    source.sql.execute(message, (800,))
    overhead = (source.lsn("pg_current_wal_insert_lsn") - at - 800) % 8168 % 24 + 48
    for tried in range(overhead - 24, overhead + 32, 8):
        at = source.lsn("pg_current_wal_insert_lsn")
        room = 8192 - at % 8192
        source.sql.execute(message, (room - tried + (8168 if room < 1000 else 0),))
        at = source.lsn("pg_current_wal_insert_lsn")
        if at % 8192 == 24:
            break
    assert at % 8192 == 24
    chunk = source.read()
    assert chunk.emit_at == at - 24
    source.log.until(source.reached(chunk.emit_at), timeout_s=5)


def test_position_behind_a_segments_header_is_reached_on_an_idle_source(source: Source) -> None:
    source.sql.execute("SELECT pg_switch_wal()")
    at = source.lsn("pg_current_wal_insert_lsn")
    assert at % MIB16 == 40
    chunk = source.read()
    assert chunk.emit_at == at - 40
    source.log.until(source.reached(chunk.emit_at), timeout_s=5)


def test_prepared_transaction_is_in_progress_under_its_top_level_id(source: Source) -> None:
    with psycopg.connect(source.dsn) as writer:
        writer.execute("UPDATE t SET v = 'top' WHERE id = 1")
        writer.execute("SAVEPOINT s")
        writer.execute("UPDATE t SET v = 'sub' WHERE id = 2")
        writer.execute("RELEASE s")
        writer.execute("PREPARE TRANSACTION 'p'")
        writer.rollback()
    before = source.read()
    source.sql.execute("COMMIT PREPARED 'p'")
    after = source.read()
    source.log.catch_up(source.sql)
    assert [(row.new or {})["v"] for row in source.log.rows] == ["top", "sub"]
    xids = np.array([row.xid for row in source.log.rows])
    assert not before.snapshot.visible(xids).any()
    assert after.snapshot.visible(xids).all()
    assert before.emit_at is not None
    assert after.emit_at is not None
    assert before.emit_at <= source.log.rows[0].position < after.emit_at
    values = [[(row.new or {})["v"] for row in rows_of(chunk.rows, source.log.schemas)][:2]
              for chunk in (before, after)]  # fmt: skip
    assert values == [["old", "old"], ["top", "sub"]]


def test_commits_that_are_not_flushed_yet_precede_the_emission_point(source: Source) -> None:
    with psycopg.connect(source.dsn, autocommit=True) as writer:
        writer.execute("SET synchronous_commit = off")
        for n in range(20):
            writer.execute("UPDATE t SET v = %s WHERE id = 1", (str(n),))
            chunk = source.read()
            rows = rows_of(chunk.rows, source.log.schemas)
            assert [r.new["v"] for r in rows if r.new and r.new["id"] == "1"] == [str(n)]
            assert chunk.emit_at is not None
            source.log.until(source.reached(chunk.emit_at))
            assert source.log.rows[-1].new == {"id": "1", "v": str(n)}
            assert source.log.rows[-1].position < chunk.emit_at


def test_unflushed_writes_of_an_open_transaction_do_not_hold_up_later_chunks(
    source: Source,
) -> None:
    """The log they stand in is flushed late on an idle source, but no chunk has seen them."""
    first = source.read()
    with psycopg.connect(source.dsn) as writer:
        writer.execute("SELECT pg_current_xact_id()")
        opened = source.read()
        for n in range(3):
            writer.execute("UPDATE t SET v = 'open' WHERE id = %s", (n + 1,))
            chunk = source.read()
            assert chunk.emit_at == opened.emit_at == first.emit_at
        assert source.lsn("pg_current_wal_insert_lsn") > chunk.emit_at
        assert chunk.emit_at is not None
        source.log.until(source.reached(chunk.emit_at), timeout_s=5)
        writer.commit()
    later = source.read()
    source.log.catch_up(source.sql)
    assert later.emit_at is not None
    assert source.log.rows[-1].position < later.emit_at
