"""Chunks and the log that stands beside them, with writers that never rest."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.postgres.conftest import rows_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.errors import ChunkBusyError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, WatermarkSeen
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader
from tidelog.sources.mysql.stream.gtids import SeenGtids

pytestmark = pytest.mark.integration
T = TableName("shop", "t")
WRITERS = 8
CHUNKS = 150


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def durable(request: pytest.FixtureRequest) -> Iterator[MySqlFamilyServer]:
    """sync_binlog = 1 and innodb_flush_log_at_trx_commit = 1: commits take their time."""
    kind = MySqlServer if request.param == "mysql" else MariaDbServer
    with kind(fsync=True) as server:
        server.create_database("shop")
        yield server


@pytest.mark.parametrize("strategy", ["table", "gtid"])
def test_what_a_snapshot_claims_to_see_it_has_seen(
    durable: MySqlFamilyServer, strategy: Literal["table", "gtid"]
) -> None:
    """Each row counts its updates. So a chunk's row tells how many it saw: at least those that its
    snapshot claims, and none that the log holds only behind the place where it is emitted.
    """
    durable.execute("DROP TABLE IF EXISTS shop.t")
    durable.execute("CREATE TABLE shop.t (id int PRIMARY KEY, n int NOT NULL)")
    values = ", ".join(f"({row}, 0)" for row in range(1, WRITERS + 1))
    durable.execute(f"INSERT INTO shop.t VALUES {values}")
    seen = SeenGtids()
    log = LogCapture(durable, tables=("shop.t",), options={"seen": seen})
    chunks = MySqlChunkReader(durable.url, log.schemas, strategy=strategy, seen=seen)
    log.start()
    ended, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def write(row: int) -> None:
        with durable.connect("shop") as connection, connection.cursor() as cursor:
            while not ended.is_set():
                cursor.execute(f"UPDATE t SET n = n + 1 WHERE id = {row}")

    def follow() -> None:
        try:
            while not stop.is_set():
                log.poll(0.05)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(row,)) for row in range(1, WRITERS + 1)]
    follower = threading.Thread(target=follow)
    for thread in [*writers, follower]:
        thread.start()
    read: list[ChunkRows] = []
    busy = 0
    try:
        for number in range(CHUNKS):
            try:
                chunks.write_watermark(f"{number}:low")
                read.append(chunks.read(ChunkRequest(T)))
                chunks.write_watermark(f"{number}:high")
            except ChunkBusyError:
                busy += 1
            finally:
                chunks.release()
    finally:
        ended.set()
        for writer in writers:
            writer.join()
        stop.set()
        follower.join()
        chunks.close()
    assert not failures
    log.catch_up()
    log.reader.close()
    assert len(read) > CHUNKS // 2, f"{busy} chunks were too early"
    marks = {e.watermark: e.position for e in log.events if isinstance(e, WatermarkSeen)}
    updates = {str(row): [] for row in range(1, WRITERS + 1)}  # type: dict[str, list[int]]
    for record in log.rows:
        if record.kind == "U" and record.new:
            updates[str(record.new["id"])].append(record.position)
    claimed = 0
    for number, chunk in enumerate(read):
        end = marks[f"{number}:high"] if chunk.emit_at is None else chunk.emit_at
        for row in rows_of(chunk.rows, log.schemas):
            assert row.new is not None
            places = np.array(updates[str(row.new["id"])])
            count = int(row.new["n"] or 0)
            assert chunk.snapshot.visible(places).sum() <= count
            assert count <= (places < end).sum()
            claimed += int(chunk.snapshot.visible(places).sum())
    assert claimed > 0


@pytest.mark.parametrize("strategy", ["table", "gtid"])
def test_marks_stand_in_the_log_around_the_read(
    durable: MySqlFamilyServer, strategy: Literal["table", "gtid"]
) -> None:
    durable.execute("DROP TABLE IF EXISTS shop.t")
    durable.execute("CREATE TABLE shop.t (id int PRIMARY KEY, v text)")
    durable.execute("INSERT INTO shop.t VALUES (7, 'old'), (8, 'old')")
    seen = SeenGtids()
    log = LogCapture(durable, tables=("shop.t",), options={"seen": seen})
    chunks = MySqlChunkReader(durable.url, log.schemas, strategy=strategy, seen=seen)
    log.start()
    low, high = (f"{name}:{random.random()}" for name in ("low", "high"))
    try:
        durable.execute("UPDATE shop.t SET v = 'seen' WHERE id = 7")
        log.catch_up()
        chunks.write_watermark(low)
        chunk = chunks.read(ChunkRequest(T))
        durable.execute("UPDATE shop.t SET v = 'later' WHERE id = 8")
        chunks.write_watermark(high)
        chunks.release()
        log.catch_up()
    finally:
        chunks.close()
        log.reader.close()
    found: Any = {r.new["id"]: r.new["v"] for r in rows_of(chunk.rows, log.schemas) if r.new}
    assert found == {"7": "seen", "8": "old"}
    before, later = (row for row in log.rows if row.kind == "U")
    assert chunk.snapshot.visible(np.array([before.xid, later.xid])).tolist() == [True, False]
    if strategy == "gtid":
        assert log.watermarks == []
        assert chunk.emit_at is not None
        assert before.position < chunk.emit_at <= later.position
    else:
        assert log.watermarks == [low, high]
        marks = [e.position for e in log.events if isinstance(e, WatermarkSeen)]
        assert before.position < marks[0] < later.position < marks[1]
