"""Requests to a state store are counted by kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import Document, StateStore
from tidelog.state.opening import MeteredStateStore, open_state


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return open_state(f"sqlite:///{tmp_path}/state.db")


def test_requests_are_counted_by_what_they_do(store: StateStore) -> None:
    state = MeteredStateStore(store)
    assert state.get("a") is None
    assert state.put("a", 1, 0) == 1
    assert state.get("a") == Document(1, 1)
    assert state.keys("") == ["a"]
    state.delete("a")
    found = state.summary()
    assert found["requests"] == {"get": 2, "put": 1, "delete": 1, "keys": 1}
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert found["failures"] == dict.fromkeys(found["requests"], 0)
    state.close()


def test_a_conflict_is_an_answer_and_a_store_that_is_away_fails(store: StateStore) -> None:
    state = MeteredStateStore(store)
    state.put("a", 1, 0)
    with pytest.raises(StateConflictError):
        state.put("a", 2, 0)
    state.close()
    with pytest.raises(StateError):
        state.get("a")
    found = state.summary()
    assert found["failures"] == {"get": 1, "put": 0, "delete": 0, "keys": 0}
    assert found["requests"]["put"] == 2
