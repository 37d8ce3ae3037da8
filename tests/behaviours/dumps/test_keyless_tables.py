"""Tables without a key: each is dumped under one snapshot, while it is written to.

The oracle counts equal rows: those of the newest complete dump, and then each change that the log
holds from the dump's first offset on, in the log's order. A row that is deleted must be there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate, quietly
from tests.behaviours.dumps.sources import series
from tests.behaviours.dumps.ways import ONE, TWO, only, ways
from tests.integration.postgres.conftest import UNCHANGED
from tests.integration.windows.live import Row, _images, at, crash

from tidelog.capture.dumps import snapshot_dumps
from tidelog.control.commands import CancelDump, PauseDump, ResumeDump
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind
from tidelog.sources.postgres.stream.log_reader import PostgresLogReader

pytestmark = pytest.mark.integration

HEAP = "public.heap"
Cells = tuple[str | None, ...]


def make_heap(dumped: Dumped, rows: int = 300, width: int = 1) -> None:
    """A table without a key, with many equal rows; the log has whole old rows."""
    dumped.sql.execute(b"CREATE TABLE heap (v int, w varchar(40), x text)")
    of_each = f"i % 7, 'w', repeat('x', {width})"
    dumped.sql.execute(f"INSERT INTO heap {series(rows, of_each)}".encode())
    if dumped.on.kind == "postgres":
        dumped.sql.execute(b"ALTER TABLE heap REPLICA IDENTITY FULL")


def source_rows(dumped: Dumped) -> Counter[Cells]:
    _, rows = dumped.on.texts(dumped.sql, "heap")
    return Counter(tuple(row) for row in rows)


def logged_rows(dumped: Dumped) -> Counter[Cells]:
    """The table's rows by the event log."""
    log = EventLog.open(dumped.directory / "log")
    rows: list[tuple[int, RecordKind, int, dict[str, Row]]] = []
    done = None
    for ref in log.segments(log.head_offset):
        for batch in log.batches(ref):
            for record in batch.to_pylist():
                kind = RecordKind(record["kind"])
                if kind is RecordKind.CONTROL or not record["schema_id"]:
                    continue
                schema = log.schemas.get(record["schema_id"])
                if str(schema.table) == HEAP:
                    images = (
                        {} if kind is RecordKind.TRUNCATE else _images(record["payload"], schema)
                    )
                    rows.append((record["offset"], kind, record["ordinal"], images))
    for event in dumped.events(HEAP):
        control = event.control or {}
        if control.get("type") == "dump-completed" and "rows_ordinal" in control:
            done = control
    assert done is not None, "no dump of it is complete"
    assert not done["delete_absent"], "no output may delete rows for it"
    found = Counter(
        tuple(images["N"].values())
        for _, kind, ordinal, images in rows
        if kind is RecordKind.DUMP_ROW and ordinal == done["rows_ordinal"]
    )
    for offset, kind, _, images in rows:
        if offset < done["first_offset"] or kind is RecordKind.DUMP_ROW:
            continue
        if kind is RecordKind.TRUNCATE:
            found.clear()
        old = images.get("O") or images.get("K")
        if old is not None:
            found[tuple(old.values())] -= 1
            assert found[tuple(old.values())] >= 0, f"a row is deleted that is not there: {old}"
        if "N" in images:
            new = {c: (old or {})[c] if v == UNCHANGED else v for c, v in images["N"].items()}
            found[tuple(new.values())] += 1
    return +found


def check_heap(dumped: Dumped) -> None:
    dumped.catch_up()
    assert logged_rows(dumped) == source_rows(dumped)


@contextmanager
def heap_writers(dumped: Dumped, seed: int, count: int = 2) -> Iterator[None]:
    """Sessions that insert equal rows, and change and delete some or all of the equal ones."""
    stop = threading.Event()

    def write(rng: random.Random) -> None:
        with dumped.connect() as connection:
            while not stop.is_set():
                v, w = rng.randrange(7), rng.choice("wxyz")
                statements = (
                    f"INSERT INTO heap (v, w) VALUES ({v}, '{w}'), ({v}, '{w}'), ({v}, NULL)",
                    f"UPDATE heap SET w = '{rng.choice('wxyz')}' WHERE v = {v} AND w = '{w}'",
                    f"DELETE FROM heap WHERE v = {v} AND w = '{w}'",
                )
                quietly(dumped, connection, rng.choices(statements, (6, 2, 1))[0])
                time.sleep(0.004)

    threads = [
        threading.Thread(target=write, args=(random.Random(f"{seed} {n}"),)) for n in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@ways(TWO)
def test_rows_of_a_dump_and_later_changes_are_the_table(make: Make) -> None:
    dumped = make(snapshot="initial", dump_lines="delay_ms: 5")
    make_heap(dumped)
    with heap_writers(dumped, seed=1):
        dumped.start()
        dumped.dumped("initial")
        dumped.dumped(dumped.dump(HEAP))
    check_heap(dumped)
    assert dumped.seen["failed"] == []


@ways(TWO)
def test_a_dump_that_a_crash_ends_begins_anew_and_its_rows_count_once(make: Make) -> None:
    dumped = make(snapshot="initial", chunk_rows=20)
    make_heap(dumped, 1200, width=3000)  # MySQL's rows come in buffers of a megabyte
    with heap_writers(dumped, seed=2):
        with at("keyless.read", crash, hit=2):
            dumped.start(wait=False)
            dumped.crashes()
        dumped.start()
        dumped.dumped("initial")
    check_heap(dumped)
    begun = [
        e.offset for e in dumped.events(HEAP) if (e.control or {}).get("type") == "dump-started"
    ]
    first = min(e.offset for _, events in dumped.chunks(HEAP) for e in events)
    assert begun[0] < first < begun[-1], "rows of the first reading are in the event log, too"


@ways(ONE)
def test_initial_only_ends_with_tables_without_a_key(make: Make) -> None:
    dumped = make(snapshot="initial_only")
    dumped.table(rows=12)
    make_heap(dumped, 30)
    dumped.sql.execute(b"CREATE TABLE nothing (v int)")
    dumped.start(wait=False)
    assert dumped.ended() is None
    assert logged_rows(dumped) == source_rows(dumped)
    assert len(dumped.rows_of("initial")) == 12


@ways(ONE)
def test_the_log_flows_and_other_dumps_are_read_meanwhile(make: Make) -> None:
    dumped = make(snapshot="initial")
    make_heap(dumped, 50)
    dumped.table(rows=12)
    with gate("keyless.read") as held:
        dumped.start()
        dumped.reach(held)
        dumped.wait_for(
            lambda: dumped.progress("initial")["status"] == "done", "the other table is dumped"
        )
        dumped.do("INSERT INTO heap (v, w) VALUES (1, 'later')", "DELETE FROM heap WHERE v = 3")
        dumped.catch_up()
        assert dumped.progress("initial", HEAP)["status"] == "running"
    dumped.dumped("initial")
    check_heap(dumped)


@ways(only("postgres", ONE))
def test_a_dump_waits_for_the_log_to_reach_its_snapshot(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that the snapshot shows would otherwise come behind the dump's first record."""
    dumped, flows, poll = make(), threading.Event(), PostgresLogReader.poll
    flows.set()

    def slow_poll(reader: PostgresLogReader, timeout_s: float) -> Any:
        return poll(reader, timeout_s) if flows.wait(timeout_s) else ()

    monkeypatch.setattr(PostgresLogReader, "poll", slow_poll)
    make_heap(dumped, 50)
    dumped.start()
    flows.clear()
    dumped.do("INSERT INTO heap (v, w) VALUES (6, 'is in the snapshot')")
    dump = dumped.dump(HEAP)
    time.sleep(1.0)
    assert dumped.progress(dump, HEAP)["status"] == "pending"
    flows.set()
    dumped.dumped(dump)
    check_heap(dumped)


@ways(ONE)
def test_a_dump_that_is_paused_begins_anew_and_a_cancelled_one_is_no_dump(make: Make) -> None:
    dumped = make()
    make_heap(dumped, 50)
    dumped.start()
    with gate("keyless.read") as held:
        dump = dumped.dump(HEAP)
        dumped.reach(held)
        dumped.send(PauseDump(dump_id=dump))
    dumped.do("DELETE FROM heap WHERE v = 3")
    dumped.send(ResumeDump(dump_id=dump))
    dumped.dumped(dump)
    check_heap(dumped)
    with gate("keyless.read") as held:
        cancelled = dumped.dump(HEAP)
        dumped.reach(held)
        dumped.send(CancelDump(dump_id=cancelled))
    dumped.dumped(cancelled, "aborted")
    dumped.do("INSERT INTO heap (v, w) VALUES (3, 'w')")
    check_heap(dumped)


@ways(ONE)
def test_a_blocking_dump_reads_tables_without_a_key(make: Make) -> None:
    dumped = make()
    dumped.table(rows=12)
    make_heap(dumped, 50)
    dumped.start()
    dumped.dumped(dumped.dump(HEAP, "public.t", mode="blocking"))
    dumped.do("DELETE FROM heap WHERE v = 3", "INSERT INTO heap (v, w) VALUES (4, 'w')")
    check_heap(dumped)
    dumped.check()


@ways(ONE)
def test_rows_with_a_condition_are_no_state_of_the_table(make: Make) -> None:
    dumped = make(snapshot="initial")
    make_heap(dumped, 50)
    dumped.start()
    dumped.dumped("initial")
    dumped.dumped(dumped.dump(HEAP, where="v < 3"))
    check_heap(dumped)


@ways(only("postgres", ONE))
def test_wide_rows_and_partitions_are_read_in_pieces(make: Make) -> None:
    dumped = make(snapshot="initial", dump_lines="chunk_bytes: 64KiB")
    dumped.sql.execute(b"CREATE TABLE heap (v int, w text) PARTITION BY RANGE (v)")
    for low in (0, 3, 6):
        dumped.sql.execute(
            f"CREATE TABLE heap_{low} PARTITION OF heap FOR VALUES FROM ({low}) TO ({low + 3})"
        )
        dumped.sql.execute(f"ALTER TABLE heap_{low} REPLICA IDENTITY FULL")
    dumped.sql.execute(b"ALTER TABLE heap REPLICA IDENTITY FULL")
    dumped.sql.execute(
        b"INSERT INTO heap SELECT i % 9, CASE WHEN i % 20 = 0 THEN (SELECT string_agg(md5(i::text "
        b"|| n), '') FROM generate_series(1, 2500) n) ELSE 'w' END FROM generate_series(1, 150) i"
    )
    dumped.sql.execute(b"DELETE FROM heap WHERE v = 4")
    dumped.start()
    dumped.dumped("initial")
    dumped.do("UPDATE heap SET v = 4 WHERE v = 1", "DELETE FROM heap WHERE v = 8")
    check_heap(dumped)
    assert len(dumped.chunks(HEAP)) > 5


@ways(only("postgres", ONE))
def test_ddl_waits_for_no_dump_and_the_table_is_read_again(make: Make) -> None:
    """Also if the table gets a key: then it is read by it."""
    dumped = make(snapshot="initial")
    make_heap(dumped)
    with gate("keyless.read") as held:
        dumped.start(wait=False)
        dumped.reach(held)
        dumped.sql.execute(b"SET lock_timeout = 2000")
        dumped.sql.execute(b"ALTER TABLE heap ADD COLUMN y int DEFAULT 5")
    dumped.dumped("initial")
    check_heap(dumped)
    with gate("keyless.read") as held:
        dump = dumped.dump(HEAP)
        dumped.reach(held)
        dumped.sql.execute(b"ALTER TABLE heap ADD COLUMN id serial PRIMARY KEY")
    dumped.dumped(dump)
    by_key = [key for key in dumped.rows_of(dump, HEAP) if key]
    assert len(by_key) == len(set(by_key)) == source_rows(dumped).total()


@ways(ONE)
def test_a_table_that_gets_a_key_before_it_is_read_is_read_by_it(make: Make) -> None:
    """Rows with a key that come behind later changes of them would replace these in copies."""
    dumped = make()
    make_heap(dumped, 50)
    dumped.sql.execute(b"CREATE TABLE other (v int)")
    dumped.start()
    with gate("keyless.read") as held:
        dumped.dump("public.other")
        dumped.reach(held)
        dump = dumped.dump(HEAP)
        dumped.wait_for(lambda: dumped.progress(dump, HEAP).get("started_ms"), "it was looked up")
        dumped.sql.execute(b"ALTER TABLE heap ADD COLUMN id serial PRIMARY KEY")
    dumped.dumped(dump)
    [done] = [
        control
        for event in dumped.events(HEAP)
        if (control := event.control or {}).get("type") == "dump-completed"
        and control["dump_id"] == dump
    ]
    assert done["delete_absent"]
    assert "rows_ordinal" not in done
    by_key = [key for key in dumped.rows_of(dump, HEAP) if key]
    assert len(by_key) == len(set(by_key)) == source_rows(dumped).total()


@ways(only("mysql", ONE))
def test_a_table_that_takes_the_name_behind_the_snapshot_is_read_again(make: Make) -> None:
    """What was written to it under its former name is in no record of the table."""
    dumped = make()
    make_heap(dumped, 50)
    dumped.sql.execute(b"CREATE TABLE fresh LIKE heap")
    dumped.start()
    with gate("keyless.begun") as held:
        dump = dumped.dump(HEAP)
        dumped.reach(held)
        dumped.do("INSERT INTO fresh (v, w) VALUES (1, 'fresh')")
        dumped.sql.execute(b"RENAME TABLE heap TO stale, fresh TO heap")
        dumped.wait_for(lambda: dumped.progress(dump, HEAP).get("due"), "capture joins the dump")
    dumped.dumped(dump)
    check_heap(dumped)


@ways(only("mariadb", ONE))
def test_a_table_whose_engine_has_no_snapshots_is_not_dumped(make: Make) -> None:
    dumped = make(snapshot="initial")
    dumped.sql.execute("CREATE TABLE heap (v int, w text) ENGINE = MyISAM")
    dumped.do("INSERT INTO heap (v, w) VALUES (1, 'a')")
    dumped.start()
    dumped.dumped("initial")
    assert "ENGINE = InnoDB" in dumped.progress("initial", HEAP)["reason"]
    assert dumped.rows_of("initial", HEAP) == []


@ways(only("postgres", ONE))
def test_an_old_transaction_delays_the_dump_of_a_table_without_a_key(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_dumps, "SNAPSHOT_S", 0.2)
    dumped = make()
    make_heap(dumped, 50)
    dumped.start()
    with dumped.connect(autocommit=False) as old:
        old.execute(b"INSERT INTO heap (v, w) VALUES (6, 'old')")
        dump = dumped.dump(HEAP)
        dumped.wait_for(lambda: dumped.seen["dump_counters"]["failed"] > 3, "it is tried again")
        assert dumped.progress(dump, HEAP)["status"] == "pending"
    dumped.dumped(dump)
    check_heap(dumped)
