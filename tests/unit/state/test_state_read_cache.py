"""The read cache lists keys once and reads each document at most once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.app.base.instances import InstanceRegistration
from tidelog.app.overview.reader import StatusReader
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import load_config
from tidelog.errors import StateConflictError
from tidelog.ports import Document
from tidelog.state.opening import MeteredStateStore, StateReadCache, open_state


def test_each_is_read_once_and_what_the_list_lacks_is_not_asked_for(tmp_path: Path) -> None:
    store = open_state(f"sqlite:///{tmp_path}/state.db")
    store.put("a/1", "one", 0)
    state = MeteredStateStore(store)
    seen = StateReadCache(state)
    store.put("a/2", "two", 0)
    assert seen.keys("a/") == seen.keys("") == ["a/1"]
    assert seen.get("a/1") == seen.get("a/1") == Document("one", 1)
    assert seen.get("a/2") is None
    with pytest.raises(StateConflictError):
        seen.put("a/1", "other", 7)
    assert seen.put("a/1", "other", 1) == 2
    seen.delete("a/2")
    assert state.summary()["requests"] == {"get": 1, "put": 2, "delete": 1, "keys": 1}
    assert StateReadCache(store).keys("") == ["a/1"]
    store.close()


def test_a_status_costs_a_list_and_a_look_at_each_document_of_it(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d', tables: ['public.*']}\n"
        f"log: {{path: '{tmp_path}/log'}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
    )
    config = load_config(file)
    with StatusReader(config) as reader:
        store = reader._state
        store.put(STATUS_KEY, {"updated_ms": 1}, 0)
        InstanceRegistration(store, "host:1", None).stand_by()
        InstanceRegistration(store, "host:2", None).stand_by("no way to the source")
        state = reader._state = MeteredStateStore(store)
        found = reader.from_state()
        assert [each["holder"] for each in found["standbys"]] == ["host:1"]
        assert [each["holder"] for each in found["failing"]] == ["host:2"]
        assert found["log_paused"] is None
        assert found["paused_pipelines"] == {}
        asked = state.summary()["requests"]
        assert (asked["keys"], asked["get"]) == (1, 3)


def test_a_table_that_the_user_excluded_is_not_reported_as_left_out(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d', tables: ['public.*', '!public.a']}\n"
        f"log: {{path: '{tmp_path}/log'}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
    )
    left_out = [{"table": f"public.{name}", "since_ms": 1} for name in "ab"]
    with StatusReader(load_config(file)) as reader:
        reader._state.put(STATUS_KEY, {"updated_ms": 1, "left_out": left_out}, 0)
        assert [each["table"] for each in reader.from_state()["left_out"]] == ["public.b"]
