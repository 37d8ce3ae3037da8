"""DDL around chunks, and what changes a table's rows without a row event."""

from __future__ import annotations

import itertools
import threading

import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import LOCALLY, Live, at, replay, ten_rows
from tests.integration.windows.rules import Make, rule

from tidelog import app
from tidelog.capture import catalogue_watch
from tidelog.capture.catalogue_watch import CatalogueWatch

pytestmark = pytest.mark.integration


def partitioned(live: Live) -> Live:
    live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL) PARTITION BY RANGE (id)")
    for low, high in ((0, 5), (5, 10)):
        live.sql.execute(
            f"CREATE TABLE t_{low} PARTITION OF t FOR VALUES FROM ({low}) TO ({high})".encode()
        )
    live.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 9) i")
    live.sql.execute("CREATE SCHEMA aside")
    live.sql.execute("CREATE TABLE aside.t_10 (id int PRIMARY KEY, n int NOT NULL)")
    live.sql.execute("INSERT INTO aside.t_10 VALUES (10, 1), (11, 1)")
    live.snapshot = "initial"
    live.start()
    live.wait_for(live.completions, "the initial dump")
    return live


def dumped_again(live: Live, times: int = 2) -> None:
    """Wait for the automatic dump."""
    live.wait_for(lambda: len(live.completions()) >= times, "the table is dumped again")


@rule(mutations.snapshot_before_lock)
def test_rewrite_that_the_read_waits_for_does_not_empty_the_table(make: Make) -> None:
    """Rewrites are not MVCC-safe: under an older snapshot the table would have no rows."""
    live = ten_rows(make())
    with live.connect(autocommit=False) as rewriter:
        rewriter.execute("ALTER TABLE t ALTER n TYPE bigint")
        dump = live.dump()
        live.wait_for(live.chunk_reader_waits, "the read waits")
        rewriter.commit()
    live.dumped(dump)
    end = live.completions()[0].offset
    upto = [e for e in live.events("public.t") if e.offset < end]
    assert replay(upto) == live.source("t", ("id",))
    dumped_again(live)
    live.check()


@rule(mutations.schema_changes_ignored)
def test_schema_change_inside_the_window_voids_the_chunk(make: Make) -> None:
    """The chunk's lock holds DDL off, until its connection dies after the read."""
    live = ten_rows(make(poll_interval_s=60.0))

    def change() -> None:
        live.kill_chunk_reader()
        live.sql.execute("ALTER TABLE t ADD d int DEFAULT 7")
        live.sql.execute("INSERT INTO t VALUES (11, 2, 8)")

    with at("chunk.after_read", change):
        live.dumped(live.dump())
    events = live.check()
    assert all(e.row["d"] == "7" for e in events if e.op == "r" and e.row and e.key != ("11",))
    assert live.voided == {"schema": 1}


def test_ddl_that_does_not_get_its_lock_holds_up_no_window(live: Make) -> None:
    """A chunk that can't lock the table is read later; the log goes on meanwhile."""
    capture = ten_rows(live())
    capture.sql.execute("CREATE TABLE u (id int PRIMARY KEY)")
    capture.wait_for(lambda: "public.u" in capture.published(), "published")
    with capture.connect(autocommit=False) as ddl:
        ddl.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        dump = capture.dump()
        capture.wait_for(capture.chunk_reader_waits, "the read waits")
        capture.sql.execute("INSERT INTO u VALUES (1)")
        capture.wait_for(lambda: capture.events("public.u"), "the log goes on")
        capture.restart()  # also a capture that starts waits for no table's lock
        capture.sql.execute("INSERT INTO u VALUES (2)")
        capture.wait_for(
            lambda: any(e.key == ("2",) for e in capture.events("public.u")), "the log goes on"
        )
    capture.dumped(dump)
    capture.check()


@rule(mutations.storage_ignored)
def test_added_column_with_default_dumps_the_table(make: Make) -> None:
    live = ten_rows(make(snapshot="initial"))
    live.wait_for(live.completions, "the initial dump")
    live.sql.execute("ALTER TABLE t ADD d int DEFAULT 7")
    dumped_again(live)
    live.check()


@rule(mutations.storage_ignored)
def test_changed_type_dumps_the_table(make: Make) -> None:
    live = ten_rows(make(snapshot="initial"))
    live.wait_for(live.completions, "the initial dump")
    live.sql.execute("ALTER TABLE t ALTER n TYPE text USING (n * 2)::text")
    live.sql.execute("INSERT INTO t VALUES (11, '5')")
    dumped_again(live)
    live.check()


def test_rewrites_that_keep_rows_dump_nothing(live: Make) -> None:
    capture = ten_rows(live(snapshot="initial"))
    capture.wait_for(capture.completions, "the initial dump")
    for statement in ("VACUUM FULL t", "CLUSTER t USING t_pkey", "TRUNCATE t"):
        capture.sql.execute(statement.encode())
        capture.sql.execute("INSERT INTO t VALUES (99, 9) ON CONFLICT DO NOTHING")
        capture.one("SELECT pg_sleep(0.6)")  # several looks
    capture.check()
    assert len(capture.completions()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ATTACH PARTITION aside.t_10 FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE t DETACH PARTITION t_5",
        "TRUNCATE t_5",
    ],
    ids=["attach", "detach", "truncate of a leaf"],
)
def test_partitions_that_come_and_go_dump_the_table(live: Make, statement: str) -> None:
    capture = partitioned(live())
    capture.sql.execute(statement.encode())
    dumped_again(capture)
    capture.check()


@rule(mutations.absent_rows_stay, mutations.storage_ignored)
def test_rows_that_vanish_without_events_are_deleted(make: Make) -> None:
    live = partitioned(make())
    live.sql.execute("TRUNCATE t_5")
    dumped_again(live)
    events = live.check()
    assert replay(events) == live.source("t", ("id",))


def test_changes_made_while_capture_was_down_dump_the_table(live: Make) -> None:
    capture = partitioned(live())
    capture.wait_for(lambda: capture.one("SELECT count(*) FROM tick") == 0, "")
    capture.catch_up()
    capture.stop()
    capture.sql.execute("TRUNCATE t_5")
    capture.start()
    dumped_again(capture)
    capture.check()


@rule(mutations.new_tables_dumped_at_once)
def test_new_table_is_dumped_once_earlier_writers_have_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL publishes no change made before its table joined the publication."""
    may_look = threading.Event()
    look = CatalogueWatch.poll
    looks = itertools.count()
    looked = 0

    def looking(self: CatalogueWatch) -> object:
        nonlocal looked
        found = look(self) if may_look.is_set() else []
        looked = next(looks)
        return found

    live = ten_rows(make(snapshot="initial"))
    live.wait_for(live.completions, "the initial dump")
    monkeypatch.setattr(CatalogueWatch, "poll", looking)
    live.sql.execute("CREATE TABLE late (id int PRIMARY KEY, n int)")
    with live.connect(autocommit=False) as early:
        early.execute("INSERT INTO late VALUES (1, 1)")
        may_look.set()
        live.wait_for(lambda: "public.late" in live.published(), "it is published")
        before = looked
        live.wait_for(lambda: looked >= before + 3, "it is looked at")
        for _ in range(15):
            live.one("SELECT pg_sleep(0.1)")
            assert not live.completions("public.late")
        early.commit()
    live.sql.execute("INSERT INTO late VALUES (2, 1)")
    live.wait_for(lambda: live.completions("public.late"), "it is dumped")
    live.sql.execute("INSERT INTO late VALUES (3, 1)")
    live.check("public.late")


def test_dump_that_waits_for_an_old_transaction_says_so(
    live: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever that transaction does, and wherever: it holds up the snapshot."""
    monkeypatch.setattr(catalogue_watch, "REPORT_AFTER_S", 0.3)
    capture = ten_rows(live(snapshot="initial"))
    capture.wait_for(capture.completions, "the initial dump")

    def waiting() -> set[str]:
        return {entry["table"] for entry in app.status(capture.config).document.get("waiting", ())}

    def warnings() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if "public.late: its dump waits" in message]

    with capture.connect(autocommit=False, options=f"{LOCALLY} -c application_name=old") as old:
        old.execute("INSERT INTO tick VALUES (-1)")
        for table in ("late", "gone"):
            capture.sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)".encode())
        capture.wait_for(lambda: waiting() == {"public.late", "public.gone"}, "it is told")
        capture.wait_for(warnings, "it is logged")  # each table by itself, some time after it waits
        assert len(warnings()) == 1
        assert f"process {old.info.backend_pid} ('old')" in warnings()[0]
        capture.sql.execute("DROP TABLE gone")
        capture.wait_for(lambda: waiting() == {"public.late"}, "it is there no more")
        assert not capture.completions("public.late")
    capture.wait_for(lambda: capture.completions("public.late"), "it is dumped")
    capture.wait_for(lambda: not waiting(), "it waits no more")


@rule(mutations.refused_look_ends_capture)
def test_new_table_that_is_locked_is_published_later(make: Make) -> None:
    live = ten_rows(make(snapshot="initial"))
    live.wait_for(live.completions, "the initial dump")
    with live.connect(autocommit=False) as owner:
        owner.execute("CREATE TABLE late (id int PRIMARY KEY, n int)")
        owner.commit()
        owner.execute("LOCK TABLE late IN ACCESS EXCLUSIVE MODE")
        live.one("SELECT pg_sleep(1)")
        live.sql.execute("UPDATE t SET n = 2 WHERE id = 1")
        live.catch_up()
    live.wait_for(lambda: live.completions("public.late"), "it is dumped")
    assert live.failure is None
    live.check("public.late")


@pytest.mark.parametrize(
    ("snapshot", "down"),
    [
        pytest.param("initial", False, id="initial-live"),
        pytest.param("initial", True, id="initial-down", marks=pytest.mark.thorough),
        pytest.param("no_data", False, id="no_data-live", marks=pytest.mark.thorough),
        pytest.param("no_data", True, id="no_data-down"),
    ],
)
@pytest.mark.parametrize(
    "option",
    [
        "SET (publish = 'insert')",
        "DROP TABLE t; ALTER PUBLICATION {} ADD TABLE t WHERE (id < 3)",
        "DROP TABLE t",
    ],
    ids=["inserts-only", "row-filter", "dropped"],
)
def test_changes_that_the_publication_lost_are_made_good(
    live: Make, option: str, snapshot: str, down: bool
) -> None:
    """Capture mends its publication, and whoever asked for no dump at first gets one then."""
    capture = ten_rows(live(snapshot=snapshot))
    if "WHERE" in option and capture.sql.info.server_version < 150_000:
        pytest.skip("row filters came with PostgreSQL 15")
    if snapshot == "initial":
        capture.wait_for(capture.completions, "the initial dump")
    else:
        capture.dumped(capture.dump())
    if down:
        capture.stop()
    capture.sql.execute(f"ALTER PUBLICATION tidelog {option}".replace("{}", "tidelog").encode())
    capture.sql.execute("UPDATE t SET n = 2 WHERE id > 5")
    capture.sql.execute("DELETE FROM t WHERE id = 10")
    if down:
        capture.start()
    dumped_again(capture)
    capture.sql.execute("UPDATE t SET n = 3 WHERE id > 7")
    capture.check()
