"""Writes decided under a lock are made later, in order, and are durable when a flush returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.held_locks import asked_under_locks

from tidelog.capture.dumps.thread_messages import DecisionQueue
from tidelog.capture.state_writes import DeferredWrites, RetryingStateStore
from tidelog.errors import StateError
from tidelog.state.sqlite import SqliteState

WAIT_S = 60.0


class HungState(SqliteState):
    """Answers no put before it `goes`; fails as often as `fails` says."""

    fails = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.goes = threading.Event(), threading.Event()
        self.goes.set()

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self.asked.set()
        assert self.goes.wait(WAIT_S)
        if self.fails:
            self.fails -= 1
            raise StateError("away")
        return super().put(key, value, expected_version)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[HungState]:
    made = HungState(tmp_path / "state.db")
    yield made
    made.close()


def value(state: SqliteState, key: str) -> Any:
    document = state.get(key)
    return None if document is None else document.value


def test_nothing_is_asked_before_it_is_flushed_and_all_in_order_then(state: HungState) -> None:
    changes, told = DeferredWrites(state), []
    changes.put("a", 1)
    changes.call(lambda: told.append(value(state, "a")))
    changes.put("a", 2)
    changes.delete("a")
    changes.put("a", 3)
    assert not state.asked.is_set()
    changes.flush()
    assert (told, value(state, "a")) == ([1], 3)


def test_change_that_failed_is_made_before_those_behind_it(state: HungState) -> None:
    changes = DeferredWrites(state)
    state.fails = 1
    changes.put("a", 1)
    changes.put("b", 2)
    with pytest.raises(StateError):
        changes.flush()
    assert value(state, "a") is value(state, "b") is None
    changes.put("b", 3)
    changes.flush()
    assert (value(state, "a"), value(state, "b")) == (1, 3)


def test_a_queued_write_is_replaced_by_the_next_of_the_same_key(state: HungState) -> None:
    changes = DeferredWrites(state)
    changes.put("a", 1)
    changes.put("a", 2)
    changes.put("b", 3)
    changes.put("a", 4)
    changes.flush()
    found = state.get("a")
    assert found is not None
    assert (found.value, found.version) == (4, 2), "written twice"


def test_a_write_that_has_begun_is_not_replaced(state: HungState) -> None:
    changes = DeferredWrites(state)
    changes.put("a", 1)
    state.asked.clear()
    state.goes.clear()
    first = threading.Thread(target=changes.flush)
    first.start()
    assert state.asked.wait(WAIT_S)
    changes.put("a", 2)
    state.goes.set()
    first.join(WAIT_S)
    changes.flush()
    assert value(state, "a") == 2


def test_who_asks_for_more_waits_for_nobody_and_who_flushes_waits_for_all_before(
    state: HungState,
) -> None:
    changes = DeferredWrites(state)
    changes.put("a", 1)
    state.asked.clear()
    state.goes.clear()
    first = threading.Thread(target=changes.flush)
    first.start()
    assert state.asked.wait(WAIT_S)
    changes.put("b", 2)  # at once, though the store does not answer
    second = threading.Thread(target=changes.flush)
    second.start()
    second.join(0.2)
    assert second.is_alive(), "what it flushes stands behind what hangs"
    state.goes.set()
    for thread in (first, second):
        thread.join(WAIT_S)
    assert (value(state, "a"), value(state, "b")) == (1, 2)


def test_what_is_asked_under_the_lock_of_dumps_is_found(
    state: HungState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests of dumps look for."""
    with asked_under_locks(monkeypatch) as found:
        patient = RetryingStateStore(state, lambda: None)
        changes = DeferredWrites(patient)
        decisions = DecisionQueue(changes.flush)
        with decisions.commanded():
            changes.put("a", 1)
        assert not found
        with decisions.lock:
            patient.get("a")
    assert [asked.partition(":")[0] for asked in found] == ["get"]
