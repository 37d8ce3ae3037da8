"""Blocking dumps: all tables as they stand at one position of the log, which waits there."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.test_changes_during_dumps import writers
from tests.behaviours.dumps.ways import ONE, STRATEGIES, TWO, Way, ways
from tests.integration.windows.live import Event, Key, Row, at, crash, replay

from tidelog.capture.dumps import dump_notifications
from tidelog.capture.dumps import snapshot_dumps as blocking
from tidelog.control.commands import CancelDump
from tidelog.errors import ChunkError, ConnectionLostError
from tidelog.ports import BlockingReader
from tidelog.sources.mysql.chunks.blocking import MySqlBlockingReader
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader

pytestmark = pytest.mark.integration

ONE_OF_EACH = [
    Way("table", 1),
    Way("snapshot", 4),
    Way("table", 4, "mysql"),
    Way("gtid", 1, "mariadb"),
]
READERS: dict[str, Any] = {
    "postgres": PostgresBlockingReader,
    "mysql": MySqlBlockingReader,
    "mariadb": MySqlBlockingReader,
}


def as_dumped(dumped: Dumped, table: str, dump_id: str) -> tuple[dict[Key, Row], dict[Key, Row]]:
    """The table by the rows that the dump brought, and by the records before the first of them."""
    events = dumped.events(table)
    rows = [e for c, es in dumped.chunks(table) if c.dump_id == dump_id for e in es]
    before = [e for e in events if e.offset < rows[0].offset]
    return {e.key: e.row or {} for e in rows}, replay(before)


@ways(STRATEGIES)
def test_tables_are_read_at_one_position(make: Make) -> None:
    """Debezium: executeBlockingSnapshot, executeBlockingSnapshotWhileStreaming. Each transaction
    moves an amount from one table to the other: the rows of both show all of it or nothing.
    """
    dumped = make()
    for table in ("a", "b"):
        dumped.table(
            table,
            "id int PRIMARY KEY, n bigint NOT NULL, amount int NOT NULL",
            series(12, "i, 1, 100"),
        )
    dumped.start()
    dumped.dumped(dumped.dump("public.a", "public.b"))
    stop, chance = threading.Event(), random.Random(1)

    def move() -> None:
        with dumped.connect(autocommit=False) as connection:
            while not stop.wait(0.003):
                for table, amount in (("a", -1), ("b", 1)):
                    connection.execute(
                        f"UPDATE {table} SET n = {N}, amount = amount + {amount} "
                        f"WHERE id = {chance.randint(1, 12)}".encode()
                    )
                connection.commit()

    thread = threading.Thread(target=move)
    thread.start()
    try:
        dump = dumped.dump("public.a", "public.b", mode="blocking")
        dumped.dumped(dump)
    finally:
        stop.set()
        thread.join()
    total = 0
    for table in ("public.a", "public.b"):
        rows, before = as_dumped(dumped, table, dump)
        assert len(rows) == 12
        total += sum(int(row["amount"] or 0) for row in rows.values())
        assert rows == before, "the rows stand exactly where the log stands"
        dumped.check(table)
    assert total == 24 * 100


@ways(STRATEGIES)
def test_writers_of_all_kinds_go_on(make: Make) -> None:
    """Debezium: executeMultipleBlockingSnapshots."""
    dumped = make(chunk_rows=11)
    dumped.table(rows=80)
    dumped.start()
    dumped.dumped(dumped.dump())
    with writers(dumped, 2, 100):
        for _ in range(2):
            dump = dumped.dump(mode="blocking")
            dumped.dumped(dump)
            rows, before = as_dumped(dumped, "public.t", dump)
            assert rows == before
    dumped.check()


@ways(TWO)
def test_idle_source(make: Make) -> None:
    """Debezium: executeBlockingSnapshotJustAfterInitialSnapshotAndNoEventStreamedYet,
    executeBlockingSnapshotWhenSnapshotModeIsNever.
    """
    dumped = make()
    dumped.table(rows=12)
    dumped.start()
    dump = dumped.dump(mode="blocking")
    dumped.dumped(dump)
    assert dumped.rows_of(dump) == [(str(i),) for i in range(1, 13)]
    dumped.check()
    kinds = {n.to_json()["aggregate_type"] for n in dumped.notices}
    assert kinds == {"Blocking Snapshot"}
    assert dumped.notifications(dump) == [
        ("STARTED", ""),
        ("TABLE_SCAN_COMPLETED", "public.t SUCCEEDED"),
        ("COMPLETED", ""),
    ]


@pytest.mark.parametrize("error", [ChunkError, ConnectionLostError])
@ways(ONE_OF_EACH)
def test_failed_dump_does_not_leave_the_log_held(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Debezium: anErrorDuringBlockingSnapshotShouldNotLeaveTheStreamingPaused,
    anErrorDuringBlockingSnapshotShouldLeaveTheConnectorInAGoodState,
    aFailedBlockingSnapshotShouldNotCauseInitialSnapshotOnRestart.
    """
    dumped = make()
    dumped.table(rows=12)
    dumped.start()
    reader = READERS[dumped.on.kind]
    read = reader.read

    def failing(self: BlockingReader, request: object) -> object:
        raise error("it does not work")

    monkeypatch.setattr(reader, "read", failing)
    dump = dumped.dump(mode="blocking")
    dumped.dumped(dump, "aborted")
    assert "does not work" in dumped.progress(dump)["reason"]
    assert dumped.notifications(dump)[-2:] == [
        ("TABLE_SCAN_COMPLETED", "public.t SQL_EXCEPTION"),
        ("ABORTED", ""),
    ]
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.check()
    if dumped.on.kind == "postgres":
        assert dumped.one("SELECT count(*) FROM pg_replication_slots WHERE temporary") == 0
    monkeypatch.setattr(reader, "read", read)
    dumped.restart()
    dumped.catch_up()
    assert not dumped.completions(), "nothing is dumped that nobody asked for"
    dumped.dumped(dumped.dump(mode="blocking"))
    dumped.dumped(dumped.dump())
    dumped.check()


@ways(ONE_OF_EACH)
def test_failure_in_between_is_made_up_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt takes another snapshot; what the first one brought does no harm."""
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    reader = READERS[dumped.on.kind]
    read, calls = reader.read, []

    def failing(self: BlockingReader, request: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            dumped.do("DELETE FROM t WHERE id = 2", f"UPDATE t SET n = {N} WHERE id IN (4, 18)")
            raise ConnectionLostError("gone")
        return read(self, request)

    monkeypatch.setattr(reader, "read", failing)
    dump = dumped.dump(mode="blocking")
    dumped.dumped(dump)
    check_but_for_repeated_rows(dumped, dump)


def check_but_for_repeated_rows(dumped: Dumped, dump: str) -> None:
    """An attempt that failed leaves rows behind; those of the next one are newer or equal."""
    dumped.catch_up()
    events: list[Event] = dumped.events("public.t")
    last = dumped.completions()[-1].control
    assert last is not None
    assert last["dump_id"] == dump
    now = dumped.source("t", ("id",))
    assert replay([e for e in events if e.offset >= last["first_offset"]]) == now
    assert replay(events) == now
    newest: dict[Key, int] = {}
    for e in events:
        if e.row is not None:
            assert e.n >= newest.get(e.key, 0), f"{e.key} went back"
            newest[e.key] = e.n


@pytest.mark.parametrize("point", ["blocking.held", "blocking.read"])
@ways(ONE_OF_EACH)
def test_crash_in_the_middle(make: Make, point: str) -> None:
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with at(point, crash, hit=1 if point == "blocking.held" else 3):
        dump = dumped.dump(mode="blocking")
        dumped.crashes()
    dumped.do("DELETE FROM t WHERE id = 2", f"UPDATE t SET n = {N} WHERE id IN (4, 18)")
    dumped.start()
    dumped.dumped(dump)
    check_but_for_repeated_rows(dumped, dump)


@ways(ONE_OF_EACH)
def test_cancelled_dump_lets_the_log_go(make: Make) -> None:
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with gate("blocking.read", hit=2) as held:
        dump = dumped.dump(mode="blocking")
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 1")
        dumped.send(CancelDump(dump_id=dump))
        held.open()
        dumped.dumped(dump, "aborted")
    dumped.check()
    assert not dumped.completions()


@ways(ONE_OF_EACH)
def test_beside_a_dump_in_chunks(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 20")
    dumped.table(rows=60)
    dumped.table("u", rows=20)
    dumped.start()
    chunked = dumped.dump("public.t")
    dumped.passed(chunked, 2)
    dumped.do(f"UPDATE t SET n = {N} WHERE id IN (1, 59)")
    blocking = dumped.dump("public.t", "public.u", mode="blocking")
    dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 58)")
    dumped.dumped(blocking)
    dumped.dumped(chunked)
    dumped.check()
    dumped.check("public.u")


@ways([Way("table", 1), Way("message", 4), Way("snapshot", 4)])
def test_beside_rows_to_read_again(make: Make) -> None:
    """Records without their large value supersede rows of a chunk, whose keys are read again: while
    the log waits for the other dump, and behind it. Of the binlog: see `test_row_images`.
    """
    dumped = make(chunk_rows=4)
    dumped.table(
        columns=f"id int PRIMARY KEY, n bigint NOT NULL, large {dumped.on.large_text}",
        rows=series(12, "i, 1, repeat(md5(i::text), 300)"),
    )
    dumped.start()
    dumped.do("ALTER TABLE t ALTER large SET STORAGE EXTERNAL", "UPDATE t SET large = large || 'x'")
    with gate("blocking.held") as held:
        with gate("chunk.after_read") as read:
            chunked = dumped.dump()
            dumped.reach(read)
            dumped.do(f"UPDATE t SET n = {N} WHERE id IN (1, 2)")
            blocking = dumped.dump(mode="blocking")
            read.open()
            dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 3)")
        dumped.do(f"UPDATE t SET n = {N}, id = 50 WHERE id = 4")
        held.open()
        dumped.dumped(blocking)
    dumped.dumped(chunked)
    dumped.catch_up()
    assert any(e.partial for e in dumped.events("public.t"))
    dumped.check()


@ways(ONE_OF_EACH)
def test_bad_table_does_not_hold_up_the_rest(make: Make) -> None:
    """Debezium: readsSchemaOnlyForSignaledTables."""
    dumped = make()
    dumped.table(rows=12)
    dumped.table("u", rows=12)
    dumped.start()
    with gate("blocking.held") as held:
        dump = dumped.dump("public.t", "public.u", mode="blocking")
        dumped.reach(held)
        dumped.sql.execute("DROP TABLE t")
        held.open()
        dumped.wait_for(
            lambda: dumped.state(dump)["status"] in ("completed", "aborted"), "the dump ends"
        )
    assert dumped.progress(dump)["status"] == "failed"
    assert dumped.progress(dump, "public.u")["status"] == "done"
    dumped.check("public.u")


@ways(ONE_OF_EACH)
def test_progress_is_told_while_a_table_is_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debezium: BlockingSnapshot's IN_PROGRESS. Not in one go when the table has ended, also where
    chunks are durable before the next one is read.
    """
    read = blocking._read

    def slowly(*given: Any) -> Any:
        time.sleep(0.2)
        return read(*given)

    monkeypatch.setattr(blocking, "_read", slowly)
    monkeypatch.setattr(dump_notifications, "PROGRESS_EVERY_S", 0.0)
    dumped = make(chunk_rows=2)
    dumped.table(rows=20)
    dumped.start()
    with gate("blocking.read", hit=8) as held:
        dump = dumped.dump(mode="blocking")
        dumped.reach(held)
        told = [str(notice.type) for notice in dumped.notices if notice.dump_id == dump]
        assert told.count("IN_PROGRESS") >= 5
        held.open()
        dumped.dumped(dump)


@pytest.mark.parametrize("mode", ["blocking", "incremental"])
@ways(ONE)
def test_a_read_table_can_be_altered_while_the_state_store_is_away(
    make: Make, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is a file that another process has locked. The log goes on, too."""
    monkeypatch.setattr(blocking, "STORE_WAIT_S", 0.3)
    dumped = make(lease="30s")
    dumped.table(rows=20)
    dumped.sql.execute("CREATE TABLE u (id int PRIMARY KEY, n bigint NOT NULL)")
    dumped.start()
    dumped.on.unnote(dumped.sql, "t")  # what triggers write to is locked with the table
    point = {"blocking": "blocking.read", "incremental": "chunk.after_read"}[mode]
    path, since = str(dumped.directory / "state.db"), dumped.seen["since_ms"]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with gate(point, hit=2) as held:
            dump = dumped.dump(mode=mode)
            dumped.reach(held)
            other.execute("BEGIN EXCLUSIVE")
        with dumped.connect(autocommit=False) as ddl:
            ddl.execute(dumped.on.locks("t"))  # as ALTER TABLE does
        dumped.do(f"INSERT INTO u VALUES (1, {N})")
        dumped.wait_for(
            lambda: any(e.op == "I" for e in dumped.events("public.u")), "the log goes on"
        )
        other.execute("ROLLBACK")
    dumped.dumped(dump)
    assert dumped.seen["since_ms"] == since, "its leadership has lasted"
    events = dumped.events("public.t")
    assert replay(events) == dumped.source("t", ("id",))
