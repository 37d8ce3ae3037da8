"""Commands for running dumps, and the notifications that they cause."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import READERS, TWO, Way, ways

from tidelog.control.commands import CancelDump, SetDumpOptions
from tidelog.eventlog.reader import EventLog
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


@ways(READERS)
def test_stopped_dump_leaves_the_log_as_it_is(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 100")
    dumped.table(rows=40)
    dumped.start()
    dump = dumped.dump()
    dumped.passed(dump, 2)
    dumped.send(CancelDump(dump_id=dump))
    dumped.dumped(dump, "aborted")
    rows = len(dumped.rows_of(dump))
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.check()
    assert len(dumped.rows_of(dump)) == rows
    assert not dumped.completions()
    assert dumped.notifications(dump) == [
        ("STARTED", ""),
        ("ABORTED", ""),
    ]


@pytest.mark.parametrize("which", ["begun", "waiting"])
@ways(READERS)
def test_some_tables_of_a_dump_are_stopped(make: Make, which: str, way: Way) -> None:
    """Debezium: removeStartedCapturedCollectionFromInProgressIncrementalSnapshot,
    removeNotYetCapturedCollectionFromInProgressIncrementalSnapshot.
    """
    dumped = make(dump_lines="delay_ms: 60")
    tables = [f"public.t{i}" for i in range(way.parallelism + 1)]
    for table in tables:
        dumped.table(table, rows=100)
    dumped.start()
    dump = dumped.dump(*tables)
    dumped.passed(dump, 1, tables[0])
    stopped = tables[0] if which == "begun" else tables[-1]
    dumped.send(CancelDump(dump_id=dump, tables=(stopped,)))
    dumped.send(SetDumpOptions(delay_ms=0))
    dumped.dumped(dump)
    assert dumped.progress(dump, stopped)["status"] == "cancelled"
    assert not dumped.completions(stopped)
    assert len(dumped.rows_of(dump, stopped)) < 100
    for table in tables:
        if table != stopped:
            assert len(dumped.rows_of(dump, table)) == 100
        dumped.check(table)
    aborted = [n.data["data_collections"] for n in dumped.notices if n.type == "ABORTED"]
    assert aborted == [stopped]
    assert dumped.notifications(dump)[-1] == ("COMPLETED", "")


def test_notifications_of_a_dump(make: Make) -> None:
    """Debezium: testNotification, notificationCorrectlySentOnItsTopic. Types, statuses, order; in
    process and in the event log.
    """
    dumped = make()
    dumped.table(rows=12)
    dumped.table("nothing", rows=0)
    dumped.start()
    dump = dumped.dump("public.t", "public.nothing")
    dumped.dumped(dump)
    assert dumped.notifications(dump) == [
        ("STARTED", ""),
        ("TABLE_SCAN_COMPLETED", "public.t SUCCEEDED"),
        ("TABLE_SCAN_COMPLETED", "public.nothing EMPTY"),
        ("COMPLETED", ""),
    ]
    dumped.check()
    logged = [
        e.control["notification"]
        for e in dumped.events()
        if e.control and "notification" in e.control
    ]
    assert logged == [n.to_json() for n in dumped.notices]
    assert {n["aggregate_type"] for n in logged} == {"Incremental Snapshot"}
    [scanned] = [n for n in logged if n["additional_data"].get("status") == "SUCCEEDED"]
    assert scanned["additional_data"]["total_rows_scanned"] == "12"


def test_parallelism_changes_at_run_time(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 30", chunk_rows=2)
    dumped.table(rows=80)
    dumped.start()
    dump = dumped.dump()
    for readers, chunks in ((4, 5), (2, 14), (8, 22), (1, 30)):
        dumped.passed(dump, chunks)
        dumped.send(SetDumpOptions(parallelism=readers))
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN ({readers * 10}, 79)")
    dumped.dumped(dump)
    dumped.check()
    dumped.restart()
    assert dumped.seen["dump_options"]["parallelism"] == 1, "it survives a restart"
    dumped.dumped(dumped.dump())
    dumped.check()


@ways(READERS)
def test_chunk_rows_change_at_run_time(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 50", chunk_rows=3)
    dumped.table(rows=90)
    dumped.start()
    dump = dumped.dump()
    dumped.passed(dump, 3)
    dumped.send(SetDumpOptions(chunk_rows=20, delay_ms=0))
    dumped.dumped(dump)
    assert max(chunk.rows_read for chunk, _ in dumped.chunks()) == 20
    dumped.check()


@ways(READERS)
def test_rows_per_second(make: Make) -> None:
    """The limit is far below what this machine reads now, whatever else it does."""
    dumped = make(chunk_rows=10)
    dumped.table(rows=120)
    dumped.start()

    def seconds() -> float:
        begun = time.monotonic()
        dumped.dumped(dumped.dump())
        return time.monotonic() - begun

    limited_s = 2.0 + 3 * seconds()
    dumped.send(SetDumpOptions(rows_per_second=round(120 / limited_s)))
    assert limited_s / 2 <= seconds() <= 5 * limited_s
    dumped.check()


def test_rows_that_wait_are_bounded(make: Make) -> None:
    """With 8 readers and a log that stands still, chunks are begun only as far as memory is."""
    dumped = make(parallelism=8, chunk_rows=4, dump_lines="buffer_bytes: 1MiB")
    dumped.table(
        columns="id int PRIMARY KEY, n bigint NOT NULL, large " + dumped.on.large_text,
        rows=series(80, "i, 1, repeat(md5(concat(i)), 3000)"),
    )
    dumped.start()
    with gate("window.closed", hit=3) as held:
        dump = dumped.dump()
        dumped.reach(held)
        time.sleep(0.5)
        dumped.wait_for(lambda: dumped.seen["windows"], "windows are open")
        waiting = sum(window["bytes"] for window in dumped.seen["windows"])
        held.open()
        dumped.dumped(dump)
    # One chunk each that began before the sizes were known, and the limit.
    assert waiting <= (1 << 20) + 8 * 4 * 100_000
    dumped.check()


@ways(READERS)
@pytest.mark.parametrize("how", ["rows", "keys", "blocking"])
def test_large_rows_come_in_chunks_of_few(make: Make, how: str) -> None:
    """No chunk takes much more than `chunk_bytes`, though small rows come first."""
    dumped = make(chunk_rows=1_000, dump_lines="chunk_bytes: 1MiB")
    dumped.table(
        columns="id int PRIMARY KEY, n bigint NOT NULL, large " + dumped.on.large_text,
        rows=series(150, "i, 1, CASE WHEN i > 50 THEN repeat(md5(concat(i)), 3000) END"),
    )
    dumped.start()
    keys = [(str(number),) for number in (*range(40, 151), 999)]
    scopes: dict[str, dict[str, Any]] = {
        "rows": {},
        "keys": {"keys": keys},
        "blocking": {"mode": "blocking"},
    }
    dump = dumped.dump(**scopes[how])
    dumped.dumped(dump)
    log = EventLog.open(dumped.directory / "log")
    sizes = [meta.payload_bytes for meta, chunk in log.chunks() if chunk.dump_id == dump]
    # MySQL's rows are taken as they arrive, up to a mebibyte at once.
    assert max(sizes) <= (2 << 20) + 100_000
    assert len(sizes) <= 24
    assert len(dumped.rows_of(dump)) == (111 if how == "keys" else 150)
    dumped.check()


@ways(READERS)
def test_two_dumps_share_the_readers(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 20")
    for table in ("public.a", "public.b"):
        dumped.table(table, rows=60)
    dumped.start()
    first, second = dumped.dump("public.a"), dumped.dump("public.b")
    dumped.dumped(first)
    dumped.dumped(second)
    order = [
        chunk.dump_id
        for chunk, _ in sorted(
            (pair for table in ("public.a", "public.b") for pair in dumped.chunks(table)),
            key=lambda pair: pair[1][0].offset,
        )
    ]
    begun = order.index(second)
    between = order[begun : len(order) - 1 - order[::-1].index(first)]
    assert len(between) >= 8, order
    assert abs(between.count(first) - between.count(second)) <= 4, order
    dumped.check("public.a")
    dumped.check("public.b")


@ways(READERS)
def test_two_dumps_of_one_table_at_once(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 10")
    dumped.table(rows=40)
    dumped.start()
    first, second = dumped.dump(), dumped.dump()
    for low in range(1, 40, 4):
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN ({low}, {41 - low})")
    dumped.dumped(first)
    dumped.dumped(second)
    dumped.check()


@ways(TWO)
def test_a_scheduled_dump_is_made_once_for_what_was_missed(make: Make) -> None:
    monthly = 'dumps: [{name: often, cron: "0 0 1 * *", tables: ["*.t"]}]'
    dumped = make(dump_lines=f"delay_ms: 0\n{monthly}")
    dumped.table(rows=20)
    state = SqliteState(f"sqlite:///{dumped.directory}/state.db")
    asked = "2020-01-01T00:00:00+00:00"
    state.put("schedule/often", {"asked": asked, "times": ["0 0 1 * *", "UTC"]}, None)
    dumped.start()
    dumped.wait_for(lambda: scheduled(dumped), "the dump is asked for")
    [dump] = scheduled(dumped)
    dumped.dumped(dump)
    assert len(dumped.rows_of(dump)) == 20
    document = state.get("schedule/often")
    state.close()
    assert document is not None
    assert document.value["asked"] != asked
    assert scheduled(dumped) == [dump]
    dumped.check()


def scheduled(dumped: Dumped) -> list[str]:
    found = (dump["dump_id"] for dump in dumped.seen.get("dumps", ()))
    return [dump_id for dump_id in found if dump_id.startswith("often-")]


def test_an_urgent_dump_overtakes_one_that_runs_and_does_not_stop_it(make: Make) -> None:
    dumped = make(dump_lines="delay_ms: 20", chunk_rows=2)
    dumped.table(rows=300)
    dumped.table("public.urgent", rows=60)
    dumped.start()
    large = dumped.dump()
    dumped.passed(large, 3)
    urgent = dumped.dump("public.urgent", priority=5)
    dumped.dumped(urgent)
    dumped.send(SetDumpOptions(delay_ms=0))
    dumped.dumped(large)
    order = [chunk.dump_id for _, chunk in EventLog.open(dumped.directory / "log").chunks()]
    places = [place for place, dump_id in enumerate(order) if dump_id == urgent]
    others = places[-1] - places[0] + 1 - len(places)
    assert len(places) == 30
    # One chunk of four, and those that were being read or waited for their watermarks.
    assert 5 <= others <= 14
    dumped.check()
    dumped.check("public.urgent")
