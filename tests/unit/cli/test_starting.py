"""A process that starts says so in the state store until it leads, stands by or ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.app.base import instances
from tidelog.app.base.instances import (
    PREFIX,
    InstanceRegistration,
    processes_with,
    standbys,
)
from tidelog.state.sqlite import SqliteState


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    yield state
    state.close()


def seen(state: SqliteState) -> tuple[list[str], list[str], list[str]]:
    return (
        [each["starting"] for each in processes_with(state, "starting")],
        [each["holder"] for each in standbys(state)],
        [each["trouble"] for each in processes_with(state, "trouble")],
    )


def test_a_start_ends_when_the_process_stands_by_fails_or_leaves(state: SqliteState) -> None:
    process = InstanceRegistration(state, "h:1", None)
    process.start("capture")
    process.start("Spark")
    assert seen(state) == (["Spark"], [], [])
    process.stand_by()
    assert seen(state) == ([], ["h:1"], [])
    process.start("Spark")
    process.stand_by("no route")
    assert seen(state) == ([], [], ["no route"])
    process.start("Spark")
    process.leave()
    assert seen(state) == ([], [], [])


def test_a_long_start_is_repeated_and_not_after_its_end(
    state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "WRITE_EVERY_S", 0.01)
    process = InstanceRegistration(state, "h:1", None)
    process.start("Spark")

    def at_ms() -> list[int]:
        documents = [state.get(key) for key in state.keys(PREFIX)]
        return [each.value["seen_ms"] for each in documents if each is not None]

    [first], deadline = at_ms(), time.monotonic() + 10
    while at_ms() == [first] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert at_ms() > [first]
    process.leave()
    time.sleep(0.05)
    assert at_ms() == []
