"""Of our sessions and the application's that wait for each other, ours always gives way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest
from tests.support.postgres import PostgresServer

from tidelog.errors import ChunkBusyError, SourceBusyError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks.digests import PostgresDigests
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.connect import connect
from tidelog.spark.source_rows import read_rows, retry_while_busy

pytestmark = pytest.mark.integration

T = TableName("public", "t")
DEADLOCK_TIMEOUT_S = 1.0
WAITS = """
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND application_name = %s AND datname = current_database()
"""


@pytest.fixture
def dsn(postgres16: PostgresServer) -> Iterator[str]:
    dsn = postgres16.create_database("giving_way")
    postgres16.execute(
        "CREATE TABLE t (id int, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id)", "giving_way"
    )
    for number in (1, 2):
        postgres16.execute(
            f"CREATE TABLE t{number} PARTITION OF t FOR VALUES FROM ({number}00) TO ({number}99)",
            "giving_way",
        )
    yield dsn
    postgres16.drop_database("giving_way")


def both_wait(dsn: str, ours: Callable[[], object], name: str, first: str, second: str) -> None:
    """The application holds ``first``; ours waits for it, and holds what the application wants
    next. Nothing of the application's is ended.
    """
    over = threading.Event()

    def again_and_again() -> None:
        while not over.is_set():
            with suppress(SourceBusyError, ChunkBusyError):
                ours()

    thread = threading.Thread(target=again_and_again)
    with psycopg.connect(dsn) as application:
        application.execute(f"LOCK TABLE {first} IN ACCESS EXCLUSIVE MODE".encode())
        thread.start()
        try:
            waits = application.execute(WAITS, (name,)).fetchone()
            while waits == (0,):
                waits = application.execute(WAITS, (name,)).fetchone()
            # Ours would not look for a deadlock any more: the application, which waits last, would.
            time.sleep(DEADLOCK_TIMEOUT_S + 0.2)
            application.execute(f"LOCK TABLE {second} IN ACCESS EXCLUSIVE MODE".encode())
            application.commit()
        finally:
            over.set()
    thread.join(30)


def test_a_look_at_the_catalogue_gives_way(dsn: str) -> None:
    """As for CLUSTER or VACUUM FULL of catalogues."""
    catalogue = PostgresCatalogue(dsn)
    catalogue.tables(["*.*"])  # connected
    try:
        both_wait(
            dsn,
            lambda: catalogue.shape(T),
            "tidelog-catalogue",
            "pg_catalog.pg_inherits",
            "pg_catalog.pg_constraint, pg_catalog.pg_index",
        )
        assert catalogue.shape(T) is not None
    finally:
        catalogue.close()


def test_a_chunk_gives_way_to_ddl_on_partitions(dsn: str) -> None:
    chunks = PostgresChunkReader(dsn, NullRegistry(), lock_timeout_ms=60_000)

    def read() -> None:
        try:
            chunks.read(ChunkRequest(T))
        finally:
            chunks.release()

    try:
        both_wait(dsn, read, "tidelog-chunks", "t2", "t1")
        assert len(chunks.read(ChunkRequest(T)).rows) == 0
        chunks.release()
    finally:
        chunks.close()


def test_every_session_gives_way_before_a_deadlock_is_noticed(dsn: str) -> None:
    """Also where the server's deadlock_timeout is another, and where ours is shorter anyway."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("ALTER DATABASE giving_way SET deadlock_timeout = '300ms'")
    for settings, expected in (({}, "150ms"), ({"lock_timeout": "20"}, "20ms")):
        with connect(dsn, purpose="test", settings=settings) as connection:
            assert connection.execute("SHOW lock_timeout").fetchone() == (expected,)


def test_what_verify_reads_waits_for_ddl_that_takes_long(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its sessions gives way, and reads once the lock is gone."""
    reader, digests = PostgresChunkReader(dsn, NullRegistry(), strategy="snapshot"), None
    failed = [threading.Event() for _ in range(3)]

    def noted(which: int, read: Callable[[], object]) -> object:
        try:
            return read()
        except ChunkBusyError:
            failed[which].set()
            raise

    rows = PostgresChunkReader.read
    monkeypatch.setattr(
        PostgresChunkReader,
        "read",
        lambda self, request: noted(2, lambda: rows(self, request)),
    )
    request = ChunkRequest(T, limit_rows=10)
    with psycopg.connect(dsn, autocommit=True) as application:
        application.execute("INSERT INTO t VALUES (100, 1), (200, 2)")
        found = PostgresCatalogue(dsn)
        shape = found.shape(T)
        found.close()
        assert shape is not None
        schema = shape.schema
        digests = PostgresDigests(dsn)
        reads: list[Callable[[], object]] = [
            lambda: retry_while_busy(lambda: noted(0, lambda: digests.boundaries(request, 2))),
            lambda: retry_while_busy(
                lambda: noted(1, lambda: digests.digest(request, schema, ["n"]))
            ),
            lambda: sum(batch.num_rows for batch in read_rows(lambda: reader, schema, [request])),
        ]
        results: dict[int, object] = {}
        threads = [
            threading.Thread(target=lambda n=n, read=read: results.update({n: read()}))
            for n, read in enumerate(reads)
        ]
        with application.transaction():
            application.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            for thread in threads:
                thread.start()
            for event in failed:
                assert event.wait(60)
        for thread in threads:
            thread.join(60)
    digests.close()

    assert (results[0], results[2]) == ([], 2)
    assert getattr(results[1], "rows") == 2  # noqa: B009
