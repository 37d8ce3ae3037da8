"""Tables that a configuration leaves out for a while, and tables that are new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import PLAIN, Dumped, Make, gate
from tests.behaviours.dumps.sources import series
from tests.behaviours.dumps.ways import ONE, Way, ways
from tests.integration.windows.live import replay

from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.control.commands import PauseDump, ResumeDump, StartDump
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration

ALL = ("public.*",)
SNAPSHOTS = ("initial", "no_data")


def two_tables(make: Make, snapshot: str = "initial", **options: Any) -> Dumped:
    """``t`` and ``u``, captured and dumped; capture has ended."""
    dumped = make(snapshot=snapshot, tables=ALL, **options)
    for table in ("t", "u"):
        dumped.sql.execute(f"CREATE TABLE {table} ({PLAIN}, a varchar(9))".encode())
        dumped.sql.execute(f"INSERT INTO {table} SELECT s.*, 'a' FROM ({series(12)}) s".encode())
    dumped.start()
    if snapshot == "initial":
        dumped.dumped("initial")
    else:
        dumped.dumped(dumped.dump("public.t", "public.u"))
    dumped.stop()
    return dumped


def capture_briefly(dumped: Dumped, tables: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    """A leader with these tables reads the log to its end, and ends before it has looked at the
    catalogue.
    """
    dumped.tables = tables
    with patch.context() as patched:
        patched.setattr(CatalogueWatch, "poll", lambda self: [])
        dumped.start()
        dumped.catch_up()
        assert [each["table"] for each in dumped.seen["left_out"]] == ["public.u"]
        dumped.stop()


def check_dumped_again(dumped: Dumped, times: int = 2) -> None:
    """With all tables captured again, ``u`` alone is dumped."""
    dumped.tables = ALL
    dumped.start()
    dumped.wait_for(lambda: len(dumped.completions("public.u")) == times, "u is dumped again")
    dumped.wait_for(lambda: not dumped.seen["left_out"], "nothing is left out")
    dumped.sql.execute("INSERT INTO u (id, n) VALUES (13, 200)")
    events = dumped.check("public.u")
    assert replay(events) == dumped.source("u", ("id",))
    assert len(dumped.completions("public.t")) == 1
    assert any("was not captured since" in dump["reason"] for dump in dumped.seen["dumps"])


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@ways(ONE)
def test_table_that_was_left_out_is_dumped_when_it_is_captured_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, snapshot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what changed its columns meanwhile is known."""
    dumped = two_tables(make, snapshot)
    dumped.sql.execute("UPDATE u SET n = 100 WHERE id <= 3")
    dumped.sql.execute("DELETE FROM u WHERE id = 12")
    dumped.sql.execute("ALTER TABLE u DROP COLUMN a")
    dumped.sql.execute("ALTER TABLE u ADD COLUMN b varchar(9)")
    dumped.sql.execute("UPDATE u SET n = 101, b = 'b' WHERE id = 4")
    capture_briefly(dumped, ("public.t*",), monkeypatch)
    assert "no longer captured, as source.tables says: public.u" in caplog.text
    assert [(n.aggregate_type, str(n.type)) for n in dumped.notices if n.dump_id == "public.u"] == [
        ("Table", "SKIPPED")
    ]
    check_dumped_again(dumped)


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@ways(ONE)
def test_table_that_was_created_while_it_was_left_out_is_dumped(
    make: Make, snapshot: str, way: Way
) -> None:
    """And one that no configuration named before is a new table, which no_data does not dump."""
    dumped = two_tables(make, snapshot)
    dumped.sql.execute("CREATE TABLE aside.other (id int PRIMARY KEY, n bigint NOT NULL)")
    dumped.sql.execute("INSERT INTO aside.other VALUES (1, 1)")
    dumped.tables = ("public.t*",)
    dumped.start()
    dumped.sql.execute(f"CREATE TABLE late ({PLAIN})")
    dumped.sql.execute("INSERT INTO late VALUES (1, 1)")
    dumped.catch_up()
    dumped.stop()
    dumped.tables = (*ALL, "aside.other")
    dumped.start()
    dumped.wait_for(lambda: dumped.completions("public.late"), "it is dumped")
    dumped.wait_for(lambda: len(dumped.completions("public.u")) == 2, "u is dumped again")
    dumped.sql.execute("INSERT INTO aside.other VALUES (2, 1)")
    dumped.sql.execute("INSERT INTO late VALUES (2, 1)")
    dumped.check("public.late")
    if snapshot == "no_data":
        assert [e.op for e in dumped.events("aside.other") if not e.control] == ["I"]
    else:
        dumped.wait_for(lambda: dumped.completions("aside.other"), "it is dumped")
        dumped.check("aside.other")


def tables_of_log(dumped: Dumped) -> set[str]:
    """The tables of which the event log has records or versions."""
    known = EventLog.open(dumped.directory / "log").schemas.tables()
    return {str(table) for table in known} | {event.table for event in dumped.events()}


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@ways(ONE)
def test_excluded_table_is_never_in_the_event_log(make: Make, snapshot: str) -> None:
    """Neither by the log, nor by any dump. Once it is not excluded any more, it is a new table."""
    dumped = make(snapshot=snapshot, tables=(*ALL, "!public.u"))
    for table in ("t", "u"):
        dumped.sql.execute(f"CREATE TABLE {table} ({PLAIN}, a varchar(9))".encode())
        dumped.sql.execute(f"INSERT INTO {table} SELECT s.*, 'a' FROM ({series(12)}) s".encode())
    dumped.start()
    for dump_id, tables in (("all", ("!public.u",)), ("two", ("public.t", "public.u"))):
        details = dumped.send(StartDump(dump_id=dump_id, tables=tables))
        assert "public.t" in details["tables"]
        assert "public.u" not in details["tables"]
        assert [each["table"] for each in details["rejected"]] == [tables[-1]]
        dumped.dumped(dump_id)
    for table in ("t", "u"):
        dumped.sql.execute(f"UPDATE {table} SET n = 100 WHERE id <= 3")
        dumped.sql.execute(f"INSERT INTO {table} (id, n) VALUES (13, 1)")
    dumped.check("public.t")
    assert "public.t" in tables_of_log(dumped)
    assert "public.u" not in tables_of_log(dumped)
    dumped.stop()
    dumped.tables = ALL
    dumped.start()
    dumped.sql.execute("INSERT INTO u (id, n) VALUES (14, 1)")
    if snapshot == "initial":
        dumped.wait_for(lambda: dumped.completions("public.u"), "u is dumped")
        assert replay(dumped.check("public.u")) == dumped.source("u", ("id",))
        assert any(dump["reason"] == "the table is new" for dump in dumped.seen["dumps"])
    else:
        dumped.catch_up()
        assert [e.op for e in dumped.events("public.u") if not e.control] == ["I"]


@ways(ONE)
def test_table_that_is_excluded_during_its_dump_is_read_no_further(make: Make) -> None:
    """Also by a dump that waits. It is dumped once it is not excluded any more."""
    dumped = make(snapshot="no_data", tables=ALL)
    for table in ("t", "u"):
        dumped.sql.execute(f"CREATE TABLE {table} ({PLAIN})".encode())
        dumped.sql.execute(f"INSERT INTO {table} {series(40)}".encode())
    with gate("chunk.after_read") as held:
        dumped.start()
        first = dumped.dump("public.u", "public.t")
        second = dumped.dump("public.u")
        dumped.reach(held)
        dumped.send(PauseDump())
    dumped.stop()
    end = EventLog.open(dumped.directory / "log").latest_offset()
    dumped.tables = (*ALL, "!public.u")
    dumped.start()
    dumped.sql.execute("UPDATE u SET n = 100 WHERE id = 1")
    dumped.send(ResumeDump())
    dumped.wait_for(lambda: dumped.progress(first)["status"] == "done", "t is dumped")
    dumped.wait_for(lambda: dumped.state(second)["status"] == "aborted", "nothing is left")
    dumped.catch_up()
    assert not [e for e in dumped.events("public.u") if e.offset >= end]
    reason = dumped.progress(first, "public.u")["reason"]
    assert reason == "source.tables no longer selects it"
    dumped.stop()
    dumped.tables = ALL
    dumped.start()
    dumped.wait_for(lambda: dumped.completions("public.u"), "u is dumped")
    assert replay(dumped.check("public.u")) == dumped.source("u", ("id",))


NEW_TABLE_MODES = {
    "initial": ("initial", ""),
    "initial_only": ("initial_only", ""),
    "when_needed": ("when_needed", ""),
    "always": ("always", ""),
    "no_data": ("no_data", ""),
    "configuration_based": (
        "configuration_based",
        "snapshot_configuration: {data: never, new_tables: false}",
    ),
}
MORE_MODES = ("initial_only", "when_needed", "always", "configuration_based")


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        pytest.param(
            mode,
            way,
            # MariaDB's log is read as MySQL's is: there one mode of each kind is enough.
            marks=[pytest.mark.thorough] * (way.source == "mariadb" and mode in MORE_MODES),
            id=f"{mode}-{way}",
        )
        for mode in NEW_TABLE_MODES
        for way in ONE
    ],
)
def test_new_table_is_complete_from_its_first_row(make: Make, mode: str, way: Way) -> None:
    """Also where nothing is dumped at the start: then once if the log may lack its first rows."""
    snapshot, lines = NEW_TABLE_MODES[mode]
    dumped = make(snapshot=snapshot, source_lines=lines)
    dumped.table(rows=6)
    wanted = mode not in ("no_data", "configuration_based")

    def create() -> None:
        dumped.sql.execute(f"CREATE TABLE late ({PLAIN})")
        for i in range(1, 7):
            dumped.sql.execute(f"INSERT INTO late VALUES ({i}, {i})")
        dumped.sql.execute("DELETE FROM late WHERE id = 3")
        dumped.sql.execute("UPDATE late SET n = 50 WHERE id = 4")

    if mode == "initial_only":
        with gate("chunk.after_read") as held:
            dumped.start()
            dumped.reach(held)
            create()
            dumped.wait_for(
                lambda: any(
                    table["table"] == "public.late"
                    for dump in dumped.seen["dumps"]
                    for table in dump["tables"]
                ),
                "its dump is asked for",
            )
        assert dumped.ended() is None
    else:
        dumped.start()
        create()
        if wanted or way.source == "postgres":
            dumped.wait_for(lambda: dumped.completions("public.late"), "it is dumped")
        dumped.sql.execute("INSERT INTO late VALUES (9, 60)")
        dumped.check("public.late")
    events = dumped.events("public.late")
    assert replay(events) == dumped.source("late", ("id",))
    if not wanted:
        assert len(dumped.completions("public.late")) == (1 if way.source == "postgres" else 0)
        assert not dumped.completions("public.t")
