"""Changes without row events are stored together, and status shows the newest ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tidelog.capture.dumps.automatic import FAILED_SHOWN, UNLOGGED_KEY, AutomaticDumps
from tidelog.model.schema import TableName
from tidelog.ports import RowsUnlogged
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


def automatic_dumps(state: SqliteState) -> AutomaticDumps:
    coordinator, watch = Mock(dumps=list), Mock()
    watch.leaves_out.return_value = False
    for name in ("inserts_only", "left_out_columns"):
        setattr(watch, name, {})
    return AutomaticDumps(
        coordinator=coordinator,
        catalogue=Mock(),
        state=state,
        watch=lambda _: watch,
        snapshot=Mock(),
        reached=lambda: 0,
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
    monkeypatch.setattr("time.time", lambda: 1000.0)
    dumps.on_unlogged([changed(number) for number in range(N)])
    monkeypatch.setattr("time.time", lambda: 2000.0)
    dumps.on_unlogged([changed(N)])
    shown = dumps.summary()["unlogged"]
    assert len(shown) == FAILED_SHOWN
    assert shown[0]["table"] == f"shop.t{N}"
    state.close()
