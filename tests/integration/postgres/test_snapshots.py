"""What snapshots say of transactions that are still open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import PATIENCE_S
from tests.support.postgres import PostgresServer

from tidelog.errors import ChunkError
from tidelog.model.records import in_ranges
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration

Connection = psycopg.Connection[Any]


def test_open_transaction_above_all_that_ended_is_not_over(database: str, sql: Connection) -> None:
    """A snapshot's ``xmax`` is one more than the greatest xid that has ended, not that began."""
    sql.execute("CREATE TABLE t (id int)")
    chunks = PostgresChunkReader(database, NullRegistry())
    with psycopg.connect(database) as other:
        other.execute("INSERT INTO t VALUES (1)")
        first = chunks.current_snapshot()
        again = chunks.current_snapshot()
        assert again.xmin >= first.xmax, "no other transaction ended in between"
        assert not again.follows(first)
        other.commit()
    assert chunks.current_snapshot().follows(first)
    chunks.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def slot_waits_for(sql: Connection) -> list[int]:
    """Sessions whose transactions the making of the slot waits for."""
    rows = sql.execute(
        "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity "
        "WHERE backend_type = 'walsender'"
    )
    return [row[0] for row in rows]


def test_blocking_snapshot_waits_for_what_is_logged_and_not_over() -> None:
    """A commit that the log shows, and that the server has not finished, counts as visible."""
    with PostgresServer(
        16, {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    ) as server:
        dsn = server.dsn()
        sql, first, second = (psycopg.connect(dsn, autocommit=True) for _ in range(3))
        hung = psycopg.connect(dsn, options="-c synchronous_commit=on")
        sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        reader = PostgresBlockingReader(dsn, NullRegistry())
        begun: list[int | ChunkError] = []

        def begin() -> None:
            try:
                begun.append(reader.begin(30))
            except ChunkError as error:
                begun.append(error)

        # The server builds the snapshot in steps, each of which waits for who is open.
        first.execute("BEGIN; INSERT INTO t VALUES (1)")
        beginning = threading.Thread(target=begin)
        beginning.start()
        until(lambda: slot_waits_for(sql) == [first.info.backend_pid])
        second.execute("BEGIN; INSERT INTO t VALUES (2)")
        first.execute("COMMIT")
        until(lambda: slot_waits_for(sql) == [second.info.backend_pid])
        hung.execute("INSERT INTO t VALUES (3)")
        committing = threading.Thread(target=hung.commit)
        committing.start()
        hangs = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: sql.execute(hangs).fetchone() == (1,))
        second.execute("COMMIT")
        until(lambda: not slot_waits_for(sql))  # the slot is made
        beginning.join(1.0)
        assert not begun, "the snapshot counts a transaction as committed that is not over"
        hung.cancel()
        committing.join(PATIENCE_S)
        beginning.join(PATIENCE_S)
        assert isinstance(begun[0], int), begun
        assert len(reader.read(ChunkRequest(TableName("public", "t"))).rows) == 3
        reader.close()
        for connection in (sql, first, second, hung):
            connection.close()


@pytest.mark.parametrize("version", [16, 18])
def test_blocking_snapshot_knows_what_committed_while_it_was_begun(version: int) -> None:
    """PostgreSQL gives such a snapshot with an ``xmax`` below its ``xmin``."""
    with PostgresServer(version, {"autovacuum": "off"}) as server:
        dsn = server.dsn()
        sql = psycopg.connect(dsn, autocommit=True)
        first, second, between, third = (psycopg.connect(dsn) for _ in range(4))
        sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        reader = PostgresBlockingReader(dsn, NullRegistry())
        positions: list[int] = []
        insert = "INSERT INTO t VALUES (%s) RETURNING pg_current_xact_id()::text::int8"

        first.execute(insert, (1,))
        beginning = threading.Thread(target=lambda: positions.append(reader.begin(PATIENCE_S)))
        beginning.start()
        until(lambda: slot_waits_for(sql) == [first.info.backend_pid])
        second.execute(insert, (2,))
        committed = between.execute(insert, (3,)).fetchone()
        between.commit()
        first.rollback()
        until(lambda: slot_waits_for(sql) == [second.info.backend_pid])
        later = third.execute(insert, (4,)).fetchone()
        second.rollback()  # nothing has committed since the server began to count
        beginning.join(PATIENCE_S)
        third.commit()
        assert positions, "no snapshot"
        chunk = reader.read(ChunkRequest(TableName("public", "t")))
        assert len(chunk.rows) == 1
        assert committed is not None
        assert later is not None
        xids = np.array([*committed, *later])
        assert chunk.snapshot.visible(xids).tolist() == [True, False]
        assert in_ranges(chunk.snapshot.invisible_ranges(later[0]), xids).tolist() == [False, True]
        reader.close()
        for connection in (sql, first, second, between, third):
            connection.close()
