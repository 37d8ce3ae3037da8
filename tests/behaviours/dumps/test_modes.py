"""What is dumped at start, by ``source.snapshot`` and ``source.snapshot_mode``."""

from __future__ import annotations

import pytest
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import ONE, READERS, TWO, only, ways
from tests.integration.windows.live import at, crash
from tests.support.undumpable import KEYS, undumpable

from tidelog.control.commands import CancelDump
from tidelog.errors import ConfigError, IncompleteDumpError
from tidelog.ext import Snapshotter

pytestmark = pytest.mark.integration

MODES = pytest.mark.parametrize("mode", ["incremental", "blocking"])


@MODES
@ways(TWO)
def test_initial_dumps_once_in_the_life_of_the_log(make: Make, mode: str) -> None:
    """Debezium: executeBlockingSnapshotWhenASnapshotAlreadyExecuted."""
    dumped = make(snapshot="initial", source_lines=f"snapshot_mode: {mode}")
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.restart()
    dumped.check()
    assert len(dumped.completions()) == 1
    assert {n.aggregate_type for n in dumped.notices} == {"Initial Snapshot"}


@MODES
@ways(TWO)
def test_initial_only_ends(make: Make, mode: str) -> None:
    dumped = make(snapshot="initial_only", source_lines=f"snapshot_mode: {mode}")
    dumped.table(rows=12)
    dumped.start(wait=False)
    assert dumped.ended() is None
    assert len(dumped.completions()) == 1
    assert len(dumped.rows_of("initial")) == 12


@ways(only("postgres", ONE))
def test_initial_only_ends_with_an_error_that_names_what_it_lacks(make: Make) -> None:
    dumped = make(snapshot="initial_only", source_lines=f"keys: {KEYS}")
    dumped.table(rows=12)
    dumped.sql.execute(undumpable("unread"))
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, IncompleteDumpError)
    assert "public.unread" in str(failure)
    assert len(dumped.rows_of("initial")) == 12


def test_initial_only_that_died_goes_on_and_ends(make: Make) -> None:
    dumped = make(snapshot="initial_only")
    dumped.table(rows=20)
    with at("chunk.durable_before_progress", crash, hit=3):
        dumped.start(wait=False)
        dumped.crashes()
    dumped.start(wait=False)
    assert dumped.ended() is None
    assert len(dumped.rows_of("initial")) == 20


@MODES
@ways(TWO)
def test_always_dumps_at_every_start(make: Make, mode: str) -> None:
    dumped = make(snapshot="always", source_lines=f"snapshot_mode: {mode}")
    dumped.table(rows=12)
    dumped.start()
    for starts in (1, 2):
        dumped.wait_for(lambda n=starts: len(dumped.completions()) == n, "it is dumped")  # type: ignore[misc]
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 3", "DELETE FROM t WHERE id = 4")
        if starts == 1:
            dumped.restart()
    dumped.check()


def test_always_ends_what_an_earlier_start_began(make: Make) -> None:
    dumped = make(snapshot="always", dump_lines="delay_ms: 300")
    dumped.table(rows=30)
    dumped.start()
    dumped.wait_for(lambda: len(dumped.chunks()) > 1, "the first dump is under way")
    dumped.restart()
    dumped.wait_for(
        lambda: sorted(d["status"] for d in dumped.seen["dumps"]) == ["aborted", "completed"],
        "one dump is given up, the other is complete",
    )
    dumped.check()


@ways(only("postgres", ONE))
def test_always_does_not_begin_again_what_was_cancelled(make: Make) -> None:
    """A lost connection is no start."""
    dumped = make(snapshot="always", dump_lines="delay_ms: 300")
    dumped.table(rows=60)
    dumped.start()
    dumped.wait_for(lambda: len(dumped.chunks()) > 1, "the dump is under way")
    [dump] = [dump["dump_id"] for dump in dumped.seen["dumps"]]
    dumped.send(CancelDump(dump_id=dump))
    since = dumped.seen["since_ms"]
    dumped.sql.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
        "WHERE active AND database = current_database()"
    )
    dumped.wait_for(lambda: dumped.seen["since_ms"] > since, "it leads anew")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.catch_up()
    assert [d["dump_id"] for d in dumped.seen["dumps"]] == [dump]


@ways(only("postgres", ONE))
def test_each_start_that_ends_tells_what_it_lacks(make: Make) -> None:
    lines = f"snapshot_configuration: {{data: always, stream: false}}\n  keys: {KEYS}"
    dumped = make(snapshot="configuration_based", source_lines=lines)
    dumped.table(rows=12)
    dumped.start(wait=False)
    assert dumped.ended() is None
    dumped.sql.execute(undumpable("unread"))
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, IncompleteDumpError)
    assert "public.unread" in str(failure)
    assert "dump start-" in str(failure)


@ways(READERS)
def test_no_data_dumps_nothing_until_asked(make: Make) -> None:
    dumped = make(snapshot="no_data")
    dumped.table(rows=12)
    dumped.start()
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.catch_up()
    assert [e.op for e in dumped.events("public.t")] == ["U"]
    dumped.dumped(dumped.dump())
    dumped.check()


@ways(READERS)
def test_when_needed_dumps_as_initial_does(make: Make) -> None:
    dumped = make(snapshot="when_needed")
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.restart()
    dumped.check()
    assert len(dumped.completions()) == 1


@ways(TWO)
def test_rows_inserted_while_the_initial_dump_runs(make: Make) -> None:
    """Debezium: shouldStreamInsertedRowDuringSnapshotOfSameTable,
    shouldStreamInsertedRowDuringSnapshotWhileTableIsWaitingForSnapshot.
    """
    dumped = make(snapshot="initial", dump_lines="delay_ms: 20")
    for table in ("a", "b"):
        dumped.table(table, rows=20)
    dumped.start()
    for i in range(21, 41):
        dumped.do(f"INSERT INTO a VALUES ({i}, {N})", f"INSERT INTO b VALUES ({i}, {N})")
    dumped.dumped("initial")
    dumped.check("public.a")
    dumped.check("public.b")


@ways(READERS)
def test_new_table_is_dumped_after_a_restart(make: Make) -> None:
    """Debezium: shouldSnapshotNewlyAddedTableToIncludeListAfterRestart."""
    dumped = make(snapshot="initial")
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.stop()
    dumped.sql.execute("CREATE TABLE late (id int PRIMARY KEY, n bigint NOT NULL)")
    dumped.sql.execute("INSERT INTO late " + series(12))
    dumped.start()
    dumped.wait_for(lambda: dumped.completions("public.late"), "it is dumped")
    dumped.check("public.late")
    dumped.check()
    assert len(dumped.completions()) == 1


# ---------------------------------------------------------------- decided one by one


def test_configured_by_decision_new_tables_alone_are_dumped(make: Make) -> None:
    decisions = "snapshot_configuration: {data: never, new_tables: true}"
    dumped = make(snapshot="configuration_based", source_lines=decisions)
    dumped.table(rows=12)
    dumped.start()
    dumped.sql.execute("CREATE TABLE late (id int PRIMARY KEY)")
    dumped.sql.execute("INSERT INTO late VALUES (1)")
    dumped.wait_for(lambda: dumped.completions("public.late"), "the new table is dumped")
    assert {event.table for event in dumped.events() if event.op == "r"} == {"public.late"}


def test_configured_to_dump_and_end(make: Make) -> None:
    decisions = "snapshot_configuration: {data: always, stream: false}"
    dumped = make(snapshot="configuration_based", source_lines=decisions)
    dumped.table(rows=12)
    for times in (1, 2):
        dumped.start(wait=False)
        assert dumped.ended() is None
        assert len(dumped.completions()) == times


class EverySecondStart(Snapshotter):
    """As a user would write it."""

    asked: list[tuple[bool, bool]] = []  # noqa: RUF012 - of the whole test

    def should_snapshot(self, begun: bool, unfinished: bool) -> bool:
        self.asked.append((begun, unfinished))
        return len(self.asked) % 2 == 1


def test_a_class_decides(make: Make) -> None:
    EverySecondStart.asked.clear()
    dumped = make(
        snapshot="custom", source_lines=f"snapshot_class: {__name__}:{EverySecondStart.__name__}"
    )
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.restart()
    dumped.catch_up()
    assert len(dumped.completions()) == 1
    dumped.restart()
    dumped.wait_for(lambda: len(dumped.completions()) == 2, "it is dumped again")
    assert EverySecondStart.asked == [(False, False), (True, False), (True, False)]
    dumped.check()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:Thing", "can't be created"),
        ("tidelog.errors:TidelogError", "is not derived from tidelog.ext.Snapshotter"),
    ],
)
def test_a_class_that_can_t_decide_is_refused(make: Make, name: str, message: str) -> None:
    dumped = make(snapshot="custom", source_lines=f"snapshot_class: {name}")
    dumped.table(rows=1)
    with pytest.raises(ConfigError, match=message):
        dumped.start()


@pytest.mark.parametrize(
    "lines", ["snapshot_class: a:B", "snapshot_configuration: {stream: false}"]
)
def test_details_of_another_mode_are_refused(make: Make, lines: str) -> None:
    dumped = make(snapshot="initial", source_lines=lines)
    with pytest.raises(ConfigError, match="need each other"):
        dumped.start()
