"""Keys that were stored for a dump stay until their command has come, and go a week after."""

from __future__ import annotations

from pathlib import Path

from tidelog.app.sources.keys import KEEP_MS, discard_unused, store_keys
from tidelog.capture.dumps.refetch_queue import KeySets
from tidelog.config import parse_config
from tidelog.state.sqlite import SqliteState
from tidelog.system.processes import unix_ms


def test_keys_whose_command_has_yet_to_come_are_kept(tmp_path: Path) -> None:
    config = parse_config(
        "source: {kind: postgres, url: 'postgresql://host/shop'}\nlog: {path: log}\n"
        f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}",
        "test",
        tmp_path,
        {},
    )
    name, count = store_keys(config, [("1",), ("2",)])
    assert count == 2
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    now_ms = unix_ms()
    discard_unused(state, (), now_ms)
    assert KeySets(state).names() == {name}
    discard_unused(state, (), now_ms + KEEP_MS + 60_000)
    assert KeySets(state).names() == set()
    state.close()
