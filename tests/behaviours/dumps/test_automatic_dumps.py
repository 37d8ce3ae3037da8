"""What changes rows without row events is made good by one dump, whoever notices first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N
from tests.behaviours.dumps.test_schema_changes import (
    CHANGES,
    COLUMNS,
    ROWS,
    Changed,
    at_rest,
    gives_the_table,
)
from tests.behaviours.dumps.ways import BINLOG, TWO, Way, ways
from tests.integration.windows.rules import impatient

from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.dumps import table_dump
from tidelog.capture.dumps.automatic import AutomaticDumps
from tidelog.capture.session.loop import CaptureLoop
from tidelog.control.commands import CancelDump

pytestmark = pytest.mark.integration

RENAMED = "ALTER TABLE t RENAME COLUMN v TO vv"
ADDED = "ALTER TABLE t ADD x varchar(9) DEFAULT 'd'"
ANEW = ("ALTER TABLE t DROP w", "ALTER TABLE t ADD w int")


def captured(make: Make, *others: str, **options: Any) -> Dumped:
    """A table of 30 rows, dumped, of which the log has shown one; ``others`` beside it."""
    dumped: Dumped = make(snapshot="initial", **options)
    dumped.table(columns=COLUMNS, rows=ROWS)
    for name in others:
        dumped.table(name, rows=30)
    dumped.ledgers.clear()
    dumped.on.unnote(dumped.sql, "t")
    dumped.start()
    dumped.dumped("initial")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 30")
    dumped.catch_up()
    return dumped


def automatic(dumped: Dumped) -> list[dict[str, Any]]:
    return [d for d in dumped.seen["dumps"] if d["dump_id"].startswith("auto-")]


def dumped_again(dumped: Dumped, times: int = 1) -> None:
    """The table was dumped so often by itself, and no more."""
    dumped.wait_for(lambda: len(dumped.completions()) >= 1 + times, "it is dumped again")
    at_rest(dumped)
    assert len(dumped.completions()) == 1 + times, [d["reason"] for d in automatic(dumped)]


def altered(dumped: Dumped, statements: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By several statements, as if they were one: nobody asks for a dump between them, which a
    loaded machine leaves time for.
    """
    with monkeypatch.context() as patch:
        patch.setattr(AutomaticDumps, "request_due", lambda self: None)
        patch.setattr(CatalogueWatch, "poll", lambda self: [])
        for statement in statements:
            dumped.sql.execute(statement)


@pytest.mark.parametrize("changed", [c for c in CHANGES if c.again], ids=str)
@ways(TWO)
def test_change_is_dumped_once(
    make: Make, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped = captured(make)
    altered(dumped, changed.spelled(dumped.on.kind), monkeypatch)
    dumped.do(changed.write)
    dumped_again(dumped)
    gives_the_table(dumped, changed.key)


@pytest.mark.parametrize("change", [(RENAMED,), ANEW], ids=["renamed", "dropped and added"])
@ways(TWO)
def test_change_without_a_write_is_dumped_once(
    make: Make, change: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is written later, which shows the log's reader the new shape, adds none."""
    dumped = captured(make)
    altered(dumped, change, monkeypatch)
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
    at_rest(dumped)
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


@ways(TWO)
def test_log_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped = captured(make)
    with monkeypatch.context() as patch:
        patch.setattr(CatalogueWatch, "poll", lambda self: [])
        dumped.sql.execute(RENAMED)
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
        dumped.wait_for(lambda: len(dumped.completions()) > 1, "the log has it dumped")
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


@ways(TWO)
def test_catalogue_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its look leaves to the log what that has told of already."""
    dumped = captured(make)
    at_rest(dumped)
    with monkeypatch.context() as patch:
        patch.setattr(AutomaticDumps, "request_due", lambda self: None)
        dumped.sql.execute(ADDED)
        dumped.catch_up()
        time.sleep(1)  # several looks
        dumped.wait_for(lambda: dumped.on.kind != "postgres" or automatic(dumped), "a dump")
        assert len(automatic(dumped)) == (dumped.on.kind == "postgres")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


@ways(TWO)
def test_catalogue_that_is_far_ahead_of_the_log(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the log, which may tell of the same change."""
    dumped = captured(make)
    take = CaptureLoop._handle
    behind = [True]

    def slowly(self: CaptureLoop, event: Any) -> None:
        while behind[0] and not self._stopped.is_set():
            time.sleep(0.02)
        take(self, event)

    monkeypatch.setattr(CaptureLoop, "_handle", slowly)
    dumped.sql.execute(RENAMED)
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
    time.sleep(2)
    assert automatic(dumped) == []
    behind[0] = False
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


@ways(TWO)
def test_change_during_its_dump_is_dumped_once_more(make: Make) -> None:
    """The dump under way began before it."""
    dumped = captured(make)
    with gate("chunk.after_low", hit=3) as held:
        dumped.sql.execute(ADDED)
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
        dumped.reach(held)
        dumped.sql.execute("ALTER TABLE t ADD y int NOT NULL DEFAULT 8")
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 8")
        time.sleep(1)  # log and catalogue show it meanwhile
        held.open()
    dumped_again(dumped, times=2)
    gives_the_table(dumped, ("id",))


@ways(BINLOG)
def test_change_that_the_catalogue_does_not_show_is_dumped_once_more(make: Make) -> None:
    dumped: Dumped = make(snapshot="initial")
    for statement in dumped.on.partitioned("t", range(0, 40, 10)):
        dumped.sql.execute(statement)
    dumped.sql.execute("INSERT INTO t SELECT i, 1 FROM aside.series WHERE i BETWEEN 1 AND 35")
    dumped.start()
    dumped.dumped("initial")
    with gate("chunk.after_low", hit=3) as held:
        dumped.sql.execute("ALTER TABLE t TRUNCATE PARTITION p20")
        dumped.reach(held)
        dumped.sql.execute("ALTER TABLE t TRUNCATE PARTITION p0")
        time.sleep(1)
        held.open()
    dumped_again(dumped, times=2)
    dumped.check()


@ways(TWO)
def test_change_back_is_a_change(make: Make) -> None:
    dumped = captured(make)
    for statement, times in ((RENAMED, 1), ("ALTER TABLE t RENAME COLUMN vv TO v", 2)):
        dumped.sql.execute(statement)
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 7")
        dumped_again(dumped, times)
        gives_the_table(dumped, ("id",))


@ways(TWO)
def test_dump_that_serves_a_change_is_cancelled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was another's, who could not know that it was needed: there is one more."""
    monkeypatch.setattr(table_dump, "SMALL_TABLES_AHEAD", 0)  # the other table is not begun
    dumped = captured(make, "u", parallelism=1)
    at_rest(dumped)
    before = len(automatic(dumped))
    with gate("chunk.after_low") as held:
        dump = dumped.dump("public.u", "public.t")
        dumped.reach(held)
        dumped.do(ADDED)
        dumped.do(f"UPDATE t SET n = {N} WHERE id = 2")
        dumped.wait_for(lambda: dumped.progress(dump).get("due"), "the dump serves the change, too")
        assert len(automatic(dumped)) == before
        dumped.send(CancelDump(dump_id=dump))
        held.open()
        dumped_again(dumped)
    assert len(automatic(dumped)) == before + 1
    gives_the_table(dumped, ("id",))


@ways(BINLOG)
def test_dump_that_was_cancelled_makes_nothing_good(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue had it dumped; that was cancelled when the log told of the change."""
    dumped = captured(make)
    told: list[Any] = []
    with monkeypatch.context() as patch, gate("chunk.after_low", hit=3) as held:
        patch.setattr(AutomaticDumps, "on_unlogged", lambda self, seen: told.append((self, seen)))
        dumped.sql.execute(ADDED)
        dumped.reach(held)
        dumped.wait_for(lambda: automatic(dumped), "it is shown")
        dumped.send(CancelDump(dump_id=automatic(dumped)[0]["dump_id"]))
    ((automatic_dumps, seen),) = told
    automatic_dumps.on_unlogged(seen)
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


@ways(BINLOG)
def test_what_the_catalogue_had_dumped_is_known_when_the_log_tells(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped = captured(make)
    told: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(AutomaticDumps, "on_unlogged", lambda self, seen: told.append((self, seen)))
        dumped.sql.execute(ADDED)
        dumped.wait_for(lambda: len(dumped.completions()) > 1, "the catalogue has it dumped")
    ((automatic_dumps, seen),) = told
    automatic_dumps.on_unlogged(seen)
    at_rest(dumped)
    dumped_again(dumped)
    gives_the_table(dumped, ("id",))


def covers_everything(patch: pytest.MonkeyPatch) -> None:
    """Whatever the log tells of counts as seen by the dump before."""
    patch.setattr(AutomaticDumps, "_covers", lambda self, table, xid: table in self._asked)


def known_too_early(patch: pytest.MonkeyPatch) -> None:
    """What the catalogue shows counts as dumped, though no dump was asked for since."""
    patch.setattr(CatalogueWatch, "_differ", lambda self, known, found: False)
    patch.setattr(AutomaticDumps, "_judge", lambda self, seen, reached: True)


@pytest.mark.parametrize(
    ("broken", "behaviour", "way"),
    [
        (
            covers_everything,
            test_change_that_the_catalogue_does_not_show_is_dumped_once_more,
            BINLOG[0],
        ),
        (known_too_early, test_change_during_its_dump_is_dumped_once_more, TWO[0]),
    ],
    ids=["covers everything", "known too early"],
)
def test_dumps_left_out_wrongly_are_noticed(
    broken: Callable[[pytest.MonkeyPatch], None],
    behaviour: Callable[[Make], None],
    way: Way,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        behaviour(impatient(make))
