"""Changes without row events are stored together, and status shows the newest ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.unit.capture.test_capture_loop import ORDERS

from tidelog.capture.dumps.automatic import FAILED_SHOWN, UNLOGGED_KEY, AutomaticDumps
from tidelog.capture.dumps.state import DumpState, TableProgress, TableStatus
from tidelog.model.schema import TableName
from tidelog.ports import RowsUnlogged
from tidelog.sources.mysql.chunks.watermarks import BinlogSnapshot
from tidelog.state.sqlite import SqliteState

N = 400


class CountingState(SqliteState):
    """A state that counts its writes."""

    puts = 0

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self.puts += 1
        return super().put(key, value, expected_version)


def changed(number: int, xid: int = 7) -> RowsUnlogged:
    return RowsUnlogged(TableName("shop", f"t{number}"), "a statement", xid, "SET GLOBAL …")


def automatic_dumps(state: SqliteState, *, repeats: bool = True) -> AutomaticDumps:
    coordinator, watch = Mock(dumps=list), Mock()
    watch.leaves_out.return_value = False
    watch.known.return_value = set()
    for name in ("inserts_only", "left_out_columns"):
        setattr(watch, name, {})
    return AutomaticDumps(
        coordinator=coordinator,
        catalogue=Mock(),
        state=state,
        watch=lambda _: watch,
        snapshot=lambda: BinlogSnapshot(1 << 40),
        reached=lambda: 0,
        repeats=repeats,
    )


def test_a_statement_that_may_have_changed_all_tables_is_stored_at_once(tmp_path: Path) -> None:
    state = CountingState(tmp_path / "state.db")
    dumps = automatic_dumps(state)
    dumps.on_unlogged([changed(number, xid) for xid in (7, 8) for number in range(N)])
    assert state.puts == 2  # the tables, and what status shows
    stored = state.get(UNLOGGED_KEY)
    assert stored is not None
    assert len(stored.value) == N
    assert set(map(tuple, stored.value.values())) == {("a statement", 8)}
    assert automatic_dumps(state)._unlogged() == stored.value  # after a restart
    state.close()


def test_status_shows_the_newest_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SqliteState(tmp_path / "state.db")
    dumps = automatic_dumps(state)
    monkeypatch.setattr("time.time_ns", lambda: 1000 * 10**9)
    dumps.on_unlogged([changed(number) for number in range(N)])
    monkeypatch.setattr("time.time_ns", lambda: 2000 * 10**9)
    dumps.on_unlogged([changed(N)])
    shown = dumps.summary()["unlogged"]
    assert len(shown) == FAILED_SHOWN
    assert shown[0]["table"] == f"shop.t{N}"
    state.close()


@pytest.mark.parametrize(
    ("remedy", "status", "rest_ms"),
    [("SET GLOBAL …", "done", 20 * 500), ("SET GLOBAL …", "failed", 60_000), (None, "done", 500)],
)
def test_a_table_that_statements_change_rests_after_its_dump_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remedy: str | None, status: str, rest_ms: int
) -> None:
    """Without a remedy a foreign key changes it: such a dump rests as long as it took."""
    now = [1000.0]
    monkeypatch.setattr("time.time_ns", lambda: int(now[0] * 1e9))
    state, name = SqliteState(tmp_path / "state.db"), "shop.t1"
    initial = DumpState("start-1", 1, [TableProgress(name, started_ms=1, finished_ms=900_000)])
    dumps, requested = [initial], list[float]()

    def request(table: TableName, reason: str, now_ms: int) -> str:
        requested.append(now[0])
        progress = TableProgress(str(table), started_ms=now_ms, finished_ms=now_ms + 500)
        progress.status = TableStatus(status)
        dumps.append(DumpState(f"auto-{now_ms}", 2, [progress], requested_ms=now_ms))
        return dumps[-1].dump_id

    def turn(at: float, xid: int | None) -> None:
        now[0] = at
        found = automatic_dumps(state, repeats=False)  # capture was restarted
        found._coordinator = Mock(dumps=lambda: dumps, request_due=request)
        found._catalogue.shape.return_value = Mock(schema=ORDERS)  # type: ignore[attr-defined]
        found._catalogue.position.return_value = 1  # type: ignore[attr-defined]
        if xid is not None:
            found.on_unlogged([replace(changed(1, xid), remedy=remedy)])
        found.request_due()

    turn(1000, 7)
    turn(1000.4, 8)
    rested = 1000.5 + rest_ms / 1000
    turn(rested - 0.1, 9)
    assert requested == [1000], "the initial dump was not needed for statements"
    turn(rested + 0.1, None)
    turn(rested + 0.2, None)
    assert requested == [1000, rested + 0.1]
    state.close()


@pytest.mark.parametrize("dump_id", ["initial", "auto-1"])
def test_changes_while_a_dump_reads_the_table_wait_for_its_end(
    tmp_path: Path, dump_id: str
) -> None:
    state, requested = SqliteState(tmp_path / "state.db"), Mock(return_value="auto-2")
    read = TableProgress("shop.t1", started_ms=1, status=TableStatus.RUNNING)
    dumps = [DumpState(dump_id, 1, [read], reason="initial" if dump_id == "initial" else "")]
    found = automatic_dumps(state, repeats=False)
    found._coordinator = Mock(dumps=lambda: dumps, request_due=requested)
    found._catalogue.shape.return_value = Mock(schema=ORDERS)  # type: ignore[attr-defined]
    found._catalogue.position.return_value = 1  # type: ignore[attr-defined]
    cascade = RowsUnlogged(TableName("shop", "t1"), "a foreign key changes its rows", 7)
    for _ in range(3):
        found.on_unlogged([cascade])
        found.request_due()
    requested.assert_not_called()
    read.status, read.finished_ms = TableStatus.DONE, 2
    found.request_due()
    found.request_due()
    requested.assert_called_once()
    state.close()


def test_a_later_dump_that_somebody_requested_is_one_too(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    found = automatic_dumps(state)
    found.on_unlogged([changed(1)])
    found._forget_unlogged("shop.t1", ["a statement", 7])  # its dump was requested
    own = TableProgress("shop.t1", status=TableStatus.FAILED)
    dumps = [DumpState("auto-1", 1, [own])]
    found._coordinator = Mock(dumps=lambda: dumps)
    assert not found.summary()["unlogged"][0]["dumped"]
    theirs = TableProgress("shop.t1", status=TableStatus.RUNNING)
    dumps.append(DumpState("theirs", 2, [theirs]))
    assert not found.summary()["unlogged"][0]["dumped"]
    theirs.status = TableStatus.DONE
    assert found.summary()["unlogged"][0]["dumped"]
    state.close()
