"""Rows that can't be read: found, reported with their range, and all others are dumped."""

from __future__ import annotations

import json

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import ONE, READERS, Way, only, ways

from tidelog.capture.dumps import chunk_planner
from tidelog.capture.dumps.state import DumpState
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


def with_broken_rows(dumped: Dumped, rows: int, broken: tuple[int, ...]) -> None:
    """A table some of whose rows the server itself can't read any more."""
    before, columns, value, breaks = dumped.on.broken(broken)
    for statement in before:
        dumped.sql.execute(statement)
    dumped.table(columns=columns, rows=series(rows, f"i, 1, {value}"))
    for statement in breaks:
        dumped.sql.execute(statement)
    dumped.sql.execute("TRUNCATE TABLE aside.ledger")


def failed_ranges(dumped: Dumped, dump_id: str) -> list[tuple[object, object]]:
    state = SqliteState(dumped.config.state.url)
    document = state.get(DUMP_PREFIX + dump_id)
    state.close()
    assert document is not None
    return [(r.low, r.high) for r in DumpState.from_json(document.value).tables[0].failed]


@pytest.mark.parametrize("broken", [(8,), (1, 14, 15, 30)], ids=str)
@ways([Way("table", 1), Way("snapshot", 4), Way("gtid", 1, "mysql"), Way("table", 4, "mariadb")])
def test_only_rows_that_cannot_be_read_are_missing(make: Make, broken: tuple[int, ...]) -> None:
    dumped = make(chunk_rows=10)
    with_broken_rows(dumped, 30, broken)
    dumped.start()
    dump = dumped.dump(where=dumped.on.reads)
    dumped.do(f"UPDATE t SET n = {N} WHERE id IN (3, 29)")
    dumped.dumped(dump, "aborted")
    dumped.catch_up()
    brought = set(dumped.rows_of(dump)) | {("3",), ("29",)}
    assert brought == {(str(i),) for i in range(1, 31) if i not in broken}
    progress = dumped.progress(dump)
    assert progress["status"] == "failed"
    assert "could not be read" in progress["reason"]
    assert str(broken[0]) not in progress["reason"].split(), "no values"
    covered = failed_ranges(dumped, dump)
    keys = {
        i
        for low, high in covered
        for i in range(
            1 + int(low[0] if isinstance(low, tuple) else 0),
            1 + int(high[0] if isinstance(high, tuple) else 30),
        )
    }
    assert keys == set(broken), "the ranges are exactly those rows"
    assert not dumped.completions(), "the table is not complete"
    assert (
        json.dumps(dumped.notifications(dump)[1])
        == '["TABLE_SCAN_COMPLETED", "public.t SQL_EXCEPTION"]'
    )


@ways([Way("table", 4)])  # whose chunks are planned
def test_range_cut_more_often_than_order_has_room_for_fails_its_table(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress can't be told any more; it must not wait for ever."""
    monkeypatch.setattr(chunk_planner, "RESTS", 1)
    dumped = make(chunk_rows=10)
    with_broken_rows(dumped, 30, (8, 9, 10, 14, 15, 17))
    dumped.start()
    progress = dumped.dumped(dumped.dump(), "aborted")["tables"][0]
    assert "so many chunks that they could not be kept in order" in progress["reason"]


@ways(READERS)
def test_mended_rows_are_dumped_by_the_next_dump(make: Make) -> None:
    dumped = make(chunk_rows=10)
    with_broken_rows(dumped, 20, (7,))
    dumped.start()
    dumped.dumped(dumped.dump(where=dumped.on.reads), "aborted")
    dumped.sql.execute(dumped.on.mends)
    dumped.do(f"UPDATE t SET n = {N}{dumped.on.mended} WHERE id = 7")
    dumped.dumped(dumped.dump())
    dumped.check()


@ways(only("postgres", READERS))  # elsewhere only a condition fails, and keys take none
def test_given_keys_that_cannot_be_read(make: Make) -> None:
    dumped = make(chunk_rows=10)
    with_broken_rows(dumped, 20, (7, 11))
    dumped.start()
    dump = dumped.dump(keys=[(str(i),) for i in range(5, 15)])
    dumped.dumped(dump, "aborted")
    dumped.catch_up()
    assert set(dumped.rows_of(dump)) == {(str(i),) for i in range(5, 15) if i not in (7, 11)}
    assert dumped.progress(dump)["failed_ranges"] == 2


@ways(READERS)
def test_read_that_takes_too_long_is_halved(make: Make) -> None:
    """Each row takes its time: a chunk of ten is too slow, one of some rows is not."""
    dumped = make(chunk_rows=10, dump_lines="statement_timeout_ms: 400")
    dumped.table(rows=12)
    dumped.start()
    dump = dumped.dump(where=f"{dumped.on.sleeps}(0.07) IS NOT NULL")
    dumped.dumped(dump)
    assert len(dumped.rows_of(dump)) == 12
    assert max(c.rows_read for c, _ in dumped.chunks()) < 10
    dumped.check()


@ways(READERS)
def test_restart_while_a_row_cannot_be_read(make: Make) -> None:
    """What failed is known as failed; the rest is not read again."""
    dumped = make(chunk_rows=10, dump_lines="delay_ms: 100")
    with_broken_rows(dumped, 60, (4,))
    dumped.start()
    dump = dumped.dump(where=dumped.on.reads)
    dumped.passed(dump, 2)
    dumped.restart()
    dumped.dumped(dump, "aborted")
    rows = dumped.rows_of(dump)
    assert sorted(int(key[0] or 0) for key in rows) == [i for i in range(1, 61) if i != 4]


@ways(only("postgres", ONE))
def test_condition_that_ends_its_own_connection_fails_its_dump(make: Make) -> None:
    """It is not tried for ever, and no other dump and no record waits for it."""
    dumped = make()
    dumped.table()
    dumped.start()
    deadly = "pg_terminate_backend(pg_backend_pid())"
    dump = dumped.dump(where=deadly)
    state = dumped.dumped(dump, "aborted")
    assert "3 times: check the dump's condition" in state["tables"][0]["reason"]
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 1")
    dumped.dumped(dumped.dump())
    dumped.check()
