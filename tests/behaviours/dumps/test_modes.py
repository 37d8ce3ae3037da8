"""What is dumped at start, by ``source.snapshot`` and ``source.snapshot_mode``."""

from __future__ import annotations

import pytest
from tests.behaviours.dumps.dumped import Make
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import READERS, TWO, ways
from tests.integration.windows.live import at, crash

from tidelog.errors import IncompleteDumpError

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


def test_initial_only_ends_with_an_error_that_names_what_it_lacks(make: Make) -> None:
    dumped = make(snapshot="initial_only")
    dumped.table(rows=12)
    dumped.sql.execute("CREATE TABLE keyless (n int)")
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, IncompleteDumpError)
    assert "public.keyless" in str(failure)
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
