"""Capture that ends or dies during a dump, and continues it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.sources import N, PostgresSource
from tests.behaviours.dumps.test_changes_during_dumps import writers
from tests.behaviours.dumps.ways import EVERY, ONE, READERS, TWO, only, ways
from tests.integration.windows.live import at, crash

from tidelog.app import reset, reset_plan
from tidelog.app.capture.recovery import PASSED_KEY
from tidelog.control.commands import CancelDump
from tidelog.errors import GapError, SourceChangedError, UsageError
from tidelog.model.records import Resume
from tidelog.ports import LogEvent
from tidelog.sources.postgres.stream.log_reader import PostgresLogReader
from tidelog.state.opening import open_state

pytestmark = pytest.mark.integration

SLOW = "delay_ms: 100"


def slow(make: Make, rows: int = 40) -> Dumped:
    dumped = make(dump_lines=SLOW)
    dumped.table(rows=rows)
    dumped.start()
    return dumped


@ways(EVERY)
def test_restart_in_the_middle_reads_no_finished_chunk_again(make: Make) -> None:
    """Debezium: snapshotOnlyWithRestart."""
    dumped = slow(make)
    dump = dumped.dump()
    dumped.passed(dump, 3)
    dumped.stop()
    before = dumped.rows_of(dump)
    assert 0 < len(before) < 40
    dumped.start()
    dumped.dumped(dump)
    assert len(dumped.rows_of(dump)) == 40
    assert dumped.rows_of(dump)[: len(before)] == before
    dumped.check()


@ways(EVERY)
def test_updates_with_restart(make: Make) -> None:
    """Debezium: updatesWithRestart. Writers go on while capture is down."""
    dumped = slow(make, rows=60)
    with writers(dumped, 2, 90):
        dump = dumped.dump()
        dumped.passed(dump, 2)
        dumped.restart()
        dumped.passed(dump, 5)
        dumped.restart()
        dumped.dumped(dump)
    dumped.check()


POINTS = [
    "chunk.after_low",
    "chunk.after_read",
    "chunk.after_high",
    "window.closed",
    "chunk.durable_before_progress",
    "put.before_link",
    "put.after_fsync",
]


@pytest.mark.parametrize("point", POINTS)
@ways(TWO)
def test_crash_at_any_point_of_a_chunk(make: Make, point: str) -> None:
    """Dies there, in the third chunk or so, while rows change; each row still comes once."""
    dumped = make()
    dumped.table(rows=40)
    dumped.start()
    # A put's failpoint is met by the log's own segments too.
    with at(point, crash, hit=6 if point.startswith("put") else 3):
        dump = dumped.dump()
        for low in range(1, 40, 8):
            dumped.do(f"UPDATE t SET n = {N} WHERE id IN ({low}, {41 - low})")
        dumped.crashes()
    dumped.do("DELETE FROM t WHERE id = 17", f"UPDATE t SET id = 50, n = {N} WHERE id = 2")
    dumped.start()
    dumped.dumped(dump)
    dumped.check()


@ways(READERS)
def test_restart_redoes_no_finished_table(make: Make) -> None:
    """Debezium: whenSnapshotMultipleTablesAndConnectorRestartsThenOnlyNotAlreadyProcessedTable…"""
    dumped = make(dump_lines="delay_ms: 60")
    names = ("public.a", "public.b", "public.c")
    for name in names:
        dumped.table(name, rows=20)
    dumped.start()
    dump = dumped.dump(*names)
    dumped.wait_for(
        lambda: any(dumped.progress(dump, name)["status"] == "done" for name in names),
        "a table is done",
    )
    dumped.stop()
    chunks = {name: len(dumped.chunks(name)) for name in names}
    done = [name for name in names if dumped.completions(name)]
    assert done
    assert len(done) < 3
    dumped.start()
    dumped.dumped(dump)
    for name in names:
        assert len(dumped.rows_of(dump, name)) == 20
        assert len(dumped.completions(name)) == 1
        assert name not in done or len(dumped.chunks(name)) == chunks[name]
        dumped.check(name)


@ways(READERS)
def test_stop_then_another_dump_after_a_restart(make: Make) -> None:
    """Debezium: stopCurrentIncrementalSnapshotWithoutCollectionsAndTakeNewNewIncrementalSnapshot…,
    …WithAllCollections….
    """
    dumped = slow(make)
    first = dumped.dump()
    dumped.passed(first, 2)
    dumped.send(CancelDump())
    dumped.dumped(first, "aborted")
    dumped.restart()
    second = dumped.dump()
    dumped.dumped(second)
    assert len(dumped.rows_of(second)) == 40
    assert len(dumped.rows_of(first)) < 40
    assert [done.control["dump_id"] for done in dumped.completions() if done.control] == [second]
    dumped.check()


@ways(only("postgres", ONE))  # a slot
def test_recreated_slot_is_noticed(make: Make) -> None:
    """It would silently skip what was written in between."""
    dumped = slow(make)
    dumped.dumped(dumped.dump())
    dumped.catch_up()
    dumped.stop()
    dumped.on.lose_log(dumped.sql, [f"UPDATE t SET n = {N} WHERE id = 3"])
    assert isinstance(dumped.on, PostgresSource)
    slot = dumped.on.database
    dumped.one("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')::text", slot)
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, GapError), failure


@ways(only("mysql", ONE) + only("mariadb", ONE))
def test_purged_log_is_noticed(make: Make) -> None:
    dumped = slow(make)
    dumped.dumped(dumped.dump())
    dumped.catch_up()
    dumped.stop()
    dumped.on.lose_log(dumped.sql, [f"UPDATE t SET n = {N} WHERE id = 3"])
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, GapError), failure


@ways(only("mysql", ONE) + only("mariadb", ONE))
def test_log_begun_anew_is_noticed(make: Make) -> None:
    """RESET MASTER: positions of the new log mean other transactions."""
    dumped = slow(make)
    dumped.dumped(dumped.dump())
    dumped.catch_up()
    dumped.stop()
    dumped.sql.execute("RESET MASTER")
    dumped.do(f"UPDATE t SET n = {N} WHERE id <= 40")
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, SourceChangedError | GapError), failure


@ways(READERS)
def test_lost_log_with_when_needed_dumps_again(make: Make) -> None:
    dumped = make(snapshot="when_needed")
    dumped.table(rows=20)
    dumped.start()
    dumped.dumped("initial")
    dumped.catch_up()
    dumped.stop()
    changes = (
        "DELETE FROM t WHERE id = 4",
        f"UPDATE t SET n = {N} WHERE id = 5",
        f"INSERT INTO t VALUES (40, {N})",
    )
    dumped.on.lose_log(dumped.sql, changes)
    dumped.sql.execute("TRUNCATE TABLE aside.ledger")
    dumped.start()
    dumped.wait_for(lambda: len(dumped.completions()) == 2, "it is dumped again")
    dumped.check()
    assert [e for e in dumped.events() if e.control and e.control["type"] == "gap"]
    dumped.stop()
    state = open_state(dumped.config.state.location)  # what an alert rests on, also after a restart
    passed = state.get(PASSED_KEY)
    state.close()
    assert passed is not None
    assert abs(passed.value["at_ms"] / 1000 - time.time()) < 600


@ways(READERS)
def test_a_reset_is_the_consent_to_one_gap(make: Make) -> None:
    dumped = make(snapshot="initial")
    dumped.table(rows=20)
    dumped.start()
    dumped.dumped("initial")
    dumped.catch_up()
    with pytest.raises(UsageError, match="leads: stop capture first"):
        reset(dumped.config)
    dumped.stop()
    for consented in (True, False):
        changes = ("DELETE FROM t WHERE id = 4", f"UPDATE t SET n = {N} WHERE id = 5")
        dumped.on.lose_log(dumped.sql, changes)
        dumped.sql.execute("TRUNCATE TABLE aside.ledger")
        if not consented:
            dumped.start(wait=False)
            assert isinstance(dumped.ended(), GapError)
            continue
        dumped.sql.execute("CREATE TABLE keyless (v int)")
        plan = reset_plan(dumped.config).to_dict()
        assert "t" in [t.rpartition(".")[2] for t in plan["tables"]]
        assert "keyless" in [t.rpartition(".")[2] for t in plan["tables"]]
        assert plan["not_dumped"] == []
        dumped.sql.execute("DROP TABLE keyless")
        reset(dumped.config)
        dumped.start()
        dumped.wait_for(lambda: len(dumped.completions()) == 2, "it is dumped again")
        dumped.check()
        assert [e for e in dumped.events() if e.control and e.control["type"] == "gap"]
        dumped.stop()


@ways(only("postgres", ONE))
def test_a_reset_is_the_consent_to_a_gap_behind_the_start_too(make: Make) -> None:
    """A log that is broken inside is known as such once it is read."""
    dumped = make(snapshot="initial")
    dumped.table(rows=20)
    dumped.start()
    dumped.dumped("initial")
    dumped.catch_up()
    dumped.stop()
    broken = threading.Event()
    broken.set()
    poll, start_over = PostgresLogReader.poll, PostgresLogReader.start_over

    def polled(reader: PostgresLogReader, timeout_s: float) -> Iterator[LogEvent]:
        if broken.is_set():
            raise GapError("the log is broken here")
        yield from poll(reader, timeout_s)

    def started_over(reader: PostgresLogReader, missed: Resume) -> Resume:
        broken.clear()
        return start_over(reader, missed)

    dumped.patch.setattr(PostgresLogReader, "poll", polled)
    dumped.patch.setattr(PostgresLogReader, "start_over", started_over)
    dumped.start(wait=False)
    assert isinstance(dumped.ended(), GapError)
    reset(dumped.config)
    dumped.start()
    dumped.wait_for(lambda: len(dumped.completions()) == 2, "it is dumped again")
    dumped.check()
    broken.set()  # this one nobody consented to
    assert isinstance(dumped.ended(), GapError)


@pytest.mark.parametrize("capture", ["is down", "reads on", "reads nothing"])
@ways(only("postgres", ONE))
def test_dropped_publication_with_when_needed_dumps_again(make: Make, capture: str) -> None:
    """What was written without it can't be decoded. No start by hand is needed."""
    dumped = make(snapshot="when_needed")
    dumped.table(rows=20)
    dumped.start()
    dumped.dumped("initial")
    dumped.catch_up()
    if capture == "is down":
        dumped.stop()
    dumped.sql.execute("DROP PUBLICATION tidelog")
    if capture != "reads nothing":  # then the look at the catalogue finds it out
        dumped.sql.execute("DELETE FROM t WHERE id = 4")
        dumped.sql.execute(f"UPDATE t SET n = {N} WHERE id = 5")
        dumped.sql.execute("TRUNCATE TABLE aside.ledger")
    if capture == "is down":
        dumped.start()
    dumped.wait_for(lambda: len(dumped.completions()) == 2, "it is dumped again")
    dumped.check()
    assert [e for e in dumped.events() if e.control and e.control["type"] == "gap"]


@ways(READERS)
def test_paused_dump_stays_paused_over_a_restart(make: Make) -> None:
    """Debezium: testPauseDuringSnapshot."""
    from tidelog.control.commands import PauseDump, ResumeDump

    dumped = slow(make, rows=100)
    dump = dumped.dump()
    dumped.passed(dump, 2)
    dumped.send(PauseDump())
    dumped.wait_for(lambda: dumped.state(dump)["status"] == "paused", "it is paused")
    dumped.wait_for(lambda: not dumped.seen["windows"], "what was begun has ended")
    rows = len(dumped.rows_of(dump))
    dumped.do(f"UPDATE t SET n = {N} WHERE id IN (1, 39)")
    dumped.catch_up()  # the log goes on
    dumped.restart()
    threading.Event().wait(0.5)
    assert dumped.state(dump)["status"] == "paused"
    assert len(dumped.rows_of(dump)) == rows < 100
    dumped.send(ResumeDump())
    dumped.dumped(dump)
    dumped.check()
    assert ("PAUSED", "") in dumped.notifications(dump)
    assert ("RESUMED", "") in dumped.notifications(dump)
