"""What is logged and not yet visible: no snapshot may count it as seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.integration.postgres.conftest import rows_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.blocking import MySqlBlockingReader
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader

pytestmark = pytest.mark.integration

_SEMI_SYNC = {
    "rpl_semi_sync_master_enabled": True,
    "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
    "rpl_semi_sync_master_timeout": 60_000,
    "rpl_semi_sync_master_wait_no_slave": True,
}


@pytest.fixture
def waiting() -> Iterator[tuple[MariaDbServer, int]]:
    """A primary whose commits wait for a replica that never answers, and how its binlog ended
    before an UPDATE of ``shop.t`` that waits so.
    """
    with MariaDbServer() as server:
        server.create_database("shop")
        server.execute("CREATE TABLE shop.t (id int PRIMARY KEY, v text)")
        server.execute("INSERT INTO shop.t VALUES (1, 'old')")
        catalogue = MySqlCatalogue(server.url)
        before = catalogue.position()
        server.execute("SET " + ", ".join(f"GLOBAL {n} = {v!r}" for n, v in _SEMI_SYNC.items()))
        writer = threading.Thread(
            target=lambda: server.execute("UPDATE shop.t SET v = 'new' WHERE id = 1")
        )
        writer.start()
        deadline = time.monotonic() + 10
        while catalogue.position() == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        catalogue.close()
        try:
            yield server, before
        finally:
            server.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            writer.join(20)


def test_mariadb_counts_as_done_what_no_select_sees(waiting: tuple[MariaDbServer, int]) -> None:
    """Marks by ``gtid_binlog_pos``, as others read them, lose here: low = high, and between them
    the SELECT returns the old row of an update that the log holds before them.
    """
    server, _ = waiting
    with server.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        low = cursor.fetchone()
        cursor.execute("SELECT v FROM t")
        assert cursor.fetchone() == ("old",)
        cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        assert cursor.fetchone() == low
        cursor.execute("SHOW BINLOG EVENTS IN 'binlog.000001'")
        logged = [row for row in cursor.fetchall() if row[2] == "Gtid"]
    assert low is not None
    assert low[0].split("-")[2] == logged[-1][5].split("-")[2].split(" ")[0]  # the update's own


def test_the_snapshots_own_position_closes_it(waiting: tuple[MariaDbServer, int]) -> None:
    server, before = waiting
    schemas = NullRegistry()
    chunks = MySqlChunkReader(server.url, schemas, strategy="gtid")
    try:
        chunk = chunks.read(ChunkRequest(TableName("shop", "t")))
        chunks.release()
        assert [row.new for row in rows_of(chunk.rows, schemas)] == [{"id": "1", "v": "old"}]
        # The update begins where the log ended: it is not visible, and follows the rows.
        assert chunk.emit_at == before
        assert not chunk.snapshot.visible(np.array([before])).any()
        assert chunks.current_snapshot().position == before
    finally:
        chunks.close()
    blocking = MySqlBlockingReader(server.url, schemas)
    try:
        assert blocking.begin(5) == before
    finally:
        blocking.close()


def test_blocking_reads_stand_exactly_at_their_position(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """While eight writers commit, each row's counter must be what the log before the position made
    it: the sum tells how many commits the snapshot holds, the position how many the log does.
    """
    server, table = mysql_family, TableName(mysql_family_database, "t")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)", table.namespace)
    server.execute(
        "INSERT INTO t VALUES (1,0),(2,0),(3,0),(4,0),(5,0),(6,0),(7,0),(8,0)", table.namespace
    )
    start = MySqlCatalogue(server.url)
    begun = start.position()
    stop = threading.Event()

    def write(row: int) -> None:
        with server.connect(table.namespace) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"UPDATE t SET n = n + 1 WHERE id = {row}")

    writers = [threading.Thread(target=write, args=(row,)) for row in range(1, 9)]
    for writer in writers:
        writer.start()
    schemas, found = NullRegistry(), []
    try:
        for _ in range(5):
            reader = MySqlBlockingReader(server.url, schemas, tables=[table])
            position = reader.begin(10)
            time.sleep(0.05)
            rows = rows_of(reader.read(ChunkRequest(table)).rows, schemas)
            reader.close()
            found.append((position, sum(int((row.new or {})["n"] or 0) for row in rows)))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
        start.close()
    files = [row[0] for row in server.execute("SHOW BINARY LOGS")]
    ends = []
    # Bytes: other tests' statements in the log are in any character set.
    with server.connect(use_unicode=False) as connection, connection.cursor() as cursor:
        for file in files:
            number = int(str(file).rsplit(".", 1)[1])
            cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
            ends += [number << 39 | int(row[4]) for row in cursor.fetchall() if row[2] == b"Xid"]
    for position, commits in found:
        assert sum(begun < end <= position for end in ends) == commits
