"""`PostgresBlockingReader`: one snapshot that stands exactly at a position of the log."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import (
    PATIENCE_S,
    Capture,
    Row,
    rows_of,
)
from tests.support.postgres import PostgresServer

from tidelog.errors import ChunkError, ChunkRefusedError, ChunkVoidError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader, create_slot_command
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.connect import connect_replication

pytestmark = pytest.mark.integration

Connection = psycopg.Connection[Any]
T, U = TableName("public", "t"), TableName("public", "u")
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=[None, 18], ids=["asked for", "18"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(request.param, {"max_prepared_transactions": 20}) as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    name = f"blocking_{next(_numbers)}"
    yield server.create_database(name)
    for (gid,) in server.execute("SELECT gid FROM pg_prepared_xacts", name):
        server.execute(f"ROLLBACK PREPARED '{gid}'", name)
    server.drop_database(name)


@pytest.fixture
def schemas() -> NullRegistry:
    return NullRegistry()


@pytest.fixture
def blocking(database: str, schemas: NullRegistry) -> Iterator[PostgresBlockingReader]:
    reader = PostgresBlockingReader(database, schemas)
    yield reader
    reader.close()


def content(
    reader: PostgresBlockingReader, schemas: NullRegistry, table: TableName = T
) -> dict[str, str]:
    """The table's ``v`` by ``id``, read in ranges of 7."""
    found: dict[str, str] = {}
    after: tuple[str | None, ...] | None = None
    while True:
        got = reader.read(ChunkRequest(table, after=after, limit_rows=7))
        for row in rows_of(got.rows, schemas):
            assert row.new is not None
            found[str(row.new["id"])] = str(row.new["v"])
        if got.exhausted:
            return found
        after = got.last_key


def replay(rows: list[Row], before: int) -> dict[str, str]:
    state: dict[str, str] = {}
    for row in rows:
        if row.position < before and row.table == str(T):
            if row.new is None:
                assert row.old is not None
                del state[str(row.old["id"])]
            else:
                state[str(row.new["id"])] = str(row.new["v"])
    return state


def write(dsn: str, writer: int, stop: threading.Event) -> None:
    """Transactions of one writer on rows of its own: savepoints, rollbacks, two phases."""
    random_ = random.Random(writer)
    values = itertools.count(1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.is_set():
            connection.execute("BEGIN")
            for _ in range(random_.randint(1, 3)):
                key = writer * 1000 + random_.randrange(10)
                connection.execute("SAVEPOINT s")
                if random_.random() < 0.2:
                    connection.execute("DELETE FROM t WHERE id = %s", (key,))
                else:
                    connection.execute(
                        "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET "
                        "v = excluded.v",
                        (key, next(values)),
                    )
                if random_.random() < 0.2:
                    connection.execute("ROLLBACK TO s")
            if random_.random() < 0.1:
                time.sleep(0.02)
            end = random_.random()
            if end < 0.1:
                connection.execute("ROLLBACK")
            elif end < 0.2:
                connection.execute(f"PREPARE TRANSACTION 'p{writer}'")
                connection.execute(f"COMMIT PREPARED 'p{writer}'")
            else:
                connection.execute("COMMIT")


@contextmanager
def writers(dsn: str, count: int) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=write, args=(dsn, n, stop)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def test_snapshot_holds_what_committed_before_its_position_and_nothing_else(
    database: str, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    capture = Capture(database)
    capture.start()
    taken = []
    with writers(database, 8):
        for _ in range(12):
            reader = PostgresBlockingReader(database, schemas, tables=[T])
            try:
                position = reader.begin(PATIENCE_S)
                read = reader.read(ChunkRequest(T, limit_rows=1000))
                assert read.emit_at == position
                taken.append((position, read.snapshot, content(reader, schemas)))
            finally:
                reader.close()
    rows = capture.catch_up(sql)
    capture.reader.close()
    xids = np.array([row.xid for row in rows])
    positions = np.array([row.position for row in rows])
    split = 0
    for position, snapshot, found in taken:
        assert found == replay(rows, position)
        before = positions < position
        assert (snapshot.visible(xids) == before).all()
        split += bool(before.any() and (xids[before].max() > xids[~before].min()))
    assert split, "no snapshot divided interleaved transactions: nothing was tested"


def test_log_resumes_at_the_position(
    blocking: PostgresBlockingReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    blocking.begin(PATIENCE_S)
    sql.execute("INSERT INTO t VALUES (2, 2)")
    sql.execute("UPDATE t SET v = 3 WHERE id = 1")
    assert content(blocking, schemas) == {"1": "1"}


def test_rows_are_as_an_incremental_chunk_reads_them(
    blocking: PostgresBlockingReader, database: str, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w numeric)")
    sql.execute("INSERT INTO t SELECT g, repeat('x', g), 'NaN' FROM generate_series(1, 50) g")
    request = ChunkRequest(T, after=("10",), upto=("40",), limit_rows=20, where="id % 3 > 0")
    chunks = PostgresChunkReader(database, schemas)
    usual = chunks.read(request)
    chunks.release()
    chunks.close()
    blocking.begin(PATIENCE_S)
    ours = blocking.read(request)
    assert rows_of(ours.rows, schemas) == rows_of(usual.rows, schemas)
    assert (ours.last_key, ours.exhausted, ours.schema) == (
        usual.last_key,
        usual.exhausted,
        usual.schema,
    )


CHANGES = [
    "ALTER TABLE t ALTER v TYPE bigint",
    "TRUNCATE t",
    "ALTER TABLE t ADD w int DEFAULT 7",
    "ALTER TABLE t RENAME v TO w",
    "DROP TABLE t",
]


@pytest.mark.parametrize("change", CHANGES)
def test_table_changed_between_snapshot_and_lock_is_never_read(
    change: str, blocking: PostgresBlockingReader, schemas: NullRegistry, sql: Connection
) -> None:
    for table in "tu":
        sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
        sql.execute(f"INSERT INTO {table} VALUES (1, 1)".encode())
    blocking.begin(PATIENCE_S)
    sql.execute(change.encode())
    with pytest.raises(ChunkError, match=r"after the snapshot|does not exist") as error:
        blocking.read(ChunkRequest(T))
    assert isinstance(error.value, ChunkVoidError) == (not change.startswith("DROP"))
    assert content(blocking, schemas, U) == {"1": "1"}


def test_partition_truncated_between_snapshot_and_lock_is_noticed(
    blocking: PostgresBlockingReader, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    blocking.begin(PATIENCE_S)
    sql.execute("TRUNCATE t1")
    with pytest.raises(ChunkVoidError, match="dump it again"):
        blocking.read(ChunkRequest(T))


class AlteredWhileBeginning(PostgresBlockingReader):
    """Another session's DDL comes between the snapshot and the locks."""

    def __init__(self, *arguments: Any, ddl: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ddl, self.imports = ddl, 0

    def _import(self, name: str) -> None:
        super()._import(name)
        self.imports += 1
        if self.imports == 1:
            self.ddl()


def test_another_snapshot_is_taken_if_a_table_changed_before_it_was_locked(
    database: str, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    reader = AlteredWhileBeginning(
        database,
        schemas,
        tables=[T, TableName("public", "missing")],
        ddl=lambda: sql.execute("ALTER TABLE t ALTER v TYPE bigint"),
    )
    reader.begin(PATIENCE_S)
    assert reader.imports == 2
    assert content(reader, schemas) == {"1": "1"}
    with pytest.raises(ChunkError, match="does not exist"):
        reader.read(ChunkRequest(TableName("public", "missing")))
    reader.close()


def test_ddl_waits_for_a_locked_table_and_writes_do_not(
    database: str, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    reader = PostgresBlockingReader(database, schemas, tables=[T])
    reader.begin(PATIENCE_S)
    sql.execute("INSERT INTO t VALUES (1, 1)")
    sql.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        sql.execute("ALTER TABLE t ALTER v TYPE bigint")
    reader.close()
    sql.execute("ALTER TABLE t ALTER v TYPE bigint")


def test_refused_read_leaves_the_snapshot(
    blocking: PostgresBlockingReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    blocking.begin(PATIENCE_S)
    sql.execute("UPDATE t SET v = 2")
    with pytest.raises(ChunkRefusedError):
        blocking.read(ChunkRequest(T, where="nonsense = 1"))
    with pytest.raises(ChunkError, match="does not exist"):
        blocking.read(ChunkRequest(U))
    assert content(blocking, schemas) == {"1": "1"}


def test_locked_table_is_reported_and_the_rest_continues(
    database: str, schemas: NullRegistry, sql: Connection
) -> None:
    for table in "tu":
        sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
    reader = PostgresBlockingReader(database, schemas, lock_timeout_ms=200)
    reader.begin(PATIENCE_S)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(ChunkError, match="conflicting lock"):
            reader.read(ChunkRequest(T))
        assert content(reader, schemas, U) == {}
    assert content(reader, schemas) == {}
    reader.close()


def vanishes(sql: Connection, of: str = "slot or session") -> None:
    """The server ends what belonged to a closed connection a moment later."""
    left = (
        "SELECT slot_name FROM pg_replication_slots UNION ALL SELECT backend_type "
        "FROM pg_stat_activity WHERE application_name = 'tidelog-blocking' "
        "AND datname = current_database() AND %s <> 'slot'"
    )
    deadline = time.monotonic() + 5
    while found := sql.execute(left, (of,)).fetchall():
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.parametrize("prepared", [False, True])
def test_transaction_that_stays_open_is_named_and_nothing_is_left(
    prepared: bool, blocking: PostgresBlockingReader, database: str, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (4711, 1)")
        if prepared:
            other.execute("PREPARE TRANSACTION 'left'")
        begun = time.monotonic()
        with pytest.raises(ChunkError) as error:
            blocking.begin(0.5)
        assert time.monotonic() - begun < 3
        text = str(error.value)
        who = "prepared transaction 'left'" if prepared else f"process {other.info.backend_pid}"
        assert f"Open, the oldest first: {who}" in text
        assert "4711" not in text
        assert "INSERT" not in text
        vanishes(sql)
        other.execute("COMMIT PREPARED 'left'" if prepared else "COMMIT")
    blocking.begin(PATIENCE_S)


def test_close_gives_up_everything_at_any_time(
    blocking: PostgresBlockingReader, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    blocking.close()
    blocking.begin(PATIENCE_S)
    vanishes(sql, of="slot")  # it is needed no more
    blocking.read(ChunkRequest(T))
    blocking.close()
    blocking.close()
    vanishes(sql)
    with pytest.raises(ChunkError, match="gone"):
        blocking.read(ChunkRequest(T))


def test_lost_connection_is_an_error_and_another_snapshot_can_be_taken(
    blocking: PostgresBlockingReader, schemas: NullRegistry, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    blocking.begin(PATIENCE_S)
    sql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = "
        "'tidelog-blocking' AND datname = current_database()"
    )
    with pytest.raises(ChunkError, match="connection was lost"):
        blocking.read(ChunkRequest(T))
    with pytest.raises(ChunkError):
        blocking.read(ChunkRequest(T))
    blocking.begin(PATIENCE_S)
    assert content(blocking, schemas) == {}


def test_command_of_release_14_gives_a_snapshot_too(database: str) -> None:
    """Newer servers still read it."""
    pgconn = connect_replication(database, purpose="blocking")
    result = pgconn.exec_(create_slot_command("old", 140_000).encode())
    assert result.get_value(0, 2), pgconn.get_error_message()
    pgconn.finish()
