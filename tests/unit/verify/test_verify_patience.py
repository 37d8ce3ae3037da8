"""How long verify waits for a copy: as long as it comes nearer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.app import verification
from tidelog.app.verification import ComparedSource
from tidelog.verify.model import Copy

END = 10


class Waiting(ComparedSource):
    """Its log ends at `END`, and holds a record of the table everywhere."""

    def __init__(self) -> None:
        self._max_wait_s = 0.3
        self._poll_s = 0.01
        self._pipeline_lease = "pipeline"
        self._absent = set()
        self._elections = {}
        self._readers = [cast("Any", SimpleNamespace(position=lambda: END))]
        held = SimpleNamespace(
            check_offsets=lambda *offsets: None, bytes_between=lambda start, end: end - start
        )
        self.log = cast("Any", held)
        self.told: list[str] = []
        self.on_stage = lambda _table, stage: self.told.append(stage)

    def _wait_for_position(self, position: int, deadline: float, table: Any) -> int | None:
        return position

    def _records(self, table: Any, start: int, end: int) -> bool:
        return start < end


def copy_at(committed: Any) -> Copy:
    return cast("Copy", SimpleNamespace(target=SimpleNamespace(source=None), committed=committed))


def test_it_waits_as_long_as_the_copy_comes_nearer() -> None:
    begun = time.monotonic()
    source = Waiting()
    assert source.caught_up([copy_at(lambda: int((time.monotonic() - begun) / 0.1))]) == [True]
    assert time.monotonic() - begun >= 1.0
    assert "waits for the output: 9B of the log to go" in source.told


def test_one_that_stands_still_is_not_waited_for_as_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "SHORT_WAIT_S", 0.0)
    source = Waiting()
    begun = time.monotonic()
    assert source.caught_up([copy_at(lambda: 3)]) == [False]
    assert time.monotonic() - begun >= 0.3
    again = time.monotonic()
    assert source.caught_up([copy_at(lambda: 3), copy_at(lambda: END)]) == [False, True]
    assert time.monotonic() - again < 0.3


def test_a_pipeline_that_no_process_runs_is_named_and_not_waited_for_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "ABSENT_S", 0.0)
    monkeypatch.setattr(verification, "ABSENT_WAIT_S", 0.1)
    source = Waiting()
    source._max_wait_s = 60
    leader: list[str | None] = [None]
    election: Any = SimpleNamespace(leader=lambda: leader[0])
    source._elections = {"pipeline": election}
    begun = time.monotonic()
    assert source.caught_up([copy_at(lambda: 3)]) == [False]
    assert 0.1 <= time.monotonic() - begun < 5
    assert source.told[-1].endswith("to go, which no process runs: start `tidelog run CONFIG`")
    begun = time.monotonic()
    assert source.caught_up([copy_at(lambda: 3)]) == [False]
    assert time.monotonic() - begun < 0.1, "it is known by now"
    leader[0] = "a@host"
    source._max_wait_s = 0.3
    begun = time.monotonic()
    assert source.caught_up([copy_at(lambda: 3)]) == [False]
    assert time.monotonic() - begun >= 0.3
    assert "no process" not in source.told[-1]
