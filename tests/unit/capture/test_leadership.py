"""How soon one that led, and failed, tries to lead again."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidelog.capture import leadership
from tidelog.capture.leadership import RETRY, LeaseKeeper, lead
from tidelog.capture.state_writes import LeasedState
from tidelog.errors import AppendRaceLostError, ConnectionLostError, LeaseLostError, TidelogError
from tidelog.ports import Lease
from tidelog.state.sqlite import SqliteState


class Alone:
    """An election that nobody else takes part in."""

    def __init__(self) -> None:
        self.epoch = 0

    def acquire(self) -> Lease:
        self.epoch += 1
        return Lease("a", self.epoch, time.monotonic() + 1000)

    def renew(self, lease: Lease) -> Lease:
        return lease

    def release(self, lease: Lease) -> None: ...

    def leader(self) -> str:
        return "a"

    def close(self) -> None: ...


class Late(Alone):
    """It is renewed, once it is let, after the lease has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.renewals = 0
        self.released = False

    def acquire(self) -> Lease:
        return Lease("a", 1, time.monotonic() + 0.05)

    def renew(self, lease: Lease) -> Lease:
        self.let.wait(10)
        self.renewals += 1
        return Lease("a", 1, time.monotonic() + 1000)

    def release(self, lease: Lease) -> None:
        self.released = True


class Stop(threading.Event):
    """Notes for how long it was waited for, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()


class Sessions:
    """Each lasts so long and ends with its error; after the last one the process is to stop."""

    def __init__(
        self, stop: Stop, monkeypatch: pytest.MonkeyPatch, *ends: tuple[float, TidelogError]
    ) -> None:
        self._stop = stop
        self._ends = list(ends)
        self._passed = 0.0
        now = time.monotonic
        monkeypatch.setattr(leadership.time, "monotonic", lambda: now() + self._passed)

    def __call__(self, keeper: LeaseKeeper) -> Sessions:
        return self

    def run(self, stop: threading.Event) -> bool:
        if not self._ends:
            self._stop.set()
            return False
        seconds, error = self._ends.pop(0)
        self._passed += seconds
        raise error

    def close(self) -> None: ...


def waits(monkeypatch: pytest.MonkeyPatch, *ends: tuple[float, TidelogError]) -> list[float]:
    """Between the sessions."""
    stop = Stop()
    lead(Alone(), Sessions(stop, monkeypatch, *ends), stop, renew_every_s=100)
    return stop.waits


def test_what_fails_at_once_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [(0.0, ConnectionLostError("away"))] * 8
    found = waits(monkeypatch, *away)
    assert found[:4] == [RETRY.first, 2 * RETRY.first, 4 * RETRY.first, 8 * RETRY.first]
    assert found[-1] == RETRY.longest
    assert RETRY.longest <= 5.0  # nothing is captured meanwhile, also if all is back


def test_one_fault_after_the_other_makes_nobody_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that lasted longer than was waited for it was a good one."""
    now_and_then = [(6.0, ConnectionLostError("cut"))] * 6
    assert set(waits(monkeypatch, *now_and_then)) == {RETRY.first}


def test_who_lost_the_lease_stands_by_soon_whatever_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no failure: the lease itself says when it may be led again."""
    lost = (0.0, LeaseLostError("ended"))
    raced = (0.0, AppendRaceLostError("another appended"))
    away = (0.0, ConnectionLostError("away"))
    found = waits(monkeypatch, lost, raced, lost, away, lost, lost, away)
    assert found == [RETRY.first] * 6 + [2 * RETRY.first]


def test_a_lost_lease_is_reported_as_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose `errors_max_retries` is 0 ends at the first failure."""
    stop = Stop()
    ends = [(0.0, LeaseLostError("ended")), (0.0, ConnectionLostError("away"))]
    sessions = Sessions(stop, monkeypatch, *ends)
    told: list[tuple[str, str]] = []
    lead(Alone(), sessions, stop, renew_every_s=100, on_state=lambda *state: told.append(state))
    led = ("leading", "")
    assert told == [led, ("standby", "ended"), led, ("retrying", "away"), led]


def test_a_lease_whose_end_was_reported_is_not_renewed() -> None:
    """The session ends for it, however long that takes: it must not keep the lease meanwhile."""
    election = Late()
    keeper = LeaseKeeper(election, election.acquire(), 0.02)
    time.sleep(0.1)
    with pytest.raises(LeaseLostError):
        keeper.check()
    election.let.set()
    time.sleep(0.2)
    assert election.renewals <= 1, "beside the one that was under way"
    with pytest.raises(LeaseLostError):
        keeper.check()
    keeper.release()
    assert election.released, "the one under way may have been made"


def test_who_lost_the_lease_changes_no_state(tmp_path: Path) -> None:
    """Invariant 7."""
    lost: list[LeaseLostError] = []

    def check() -> None:
        if lost:
            raise lost[0]

    with closing(SqliteState(tmp_path / "state.db")) as store:
        state = LeasedState(store, check)
        state.put("a", 1, None)
        lost.append(LeaseLostError("it ended"))
        with pytest.raises(LeaseLostError):
            state.put("a", 2, None)
        with pytest.raises(LeaseLostError):
            state.delete("a")
        found = state.get("a")
        assert found is not None
        assert found.value == 1


def test_a_lease_whose_end_was_not_reported_is_renewed() -> None:
    election = Late()
    keeper = LeaseKeeper(election, election.acquire(), 0.02)
    time.sleep(0.1)
    election.let.set()
    time.sleep(0.1)
    keeper.check()
    keeper.release()


def test_a_lease_ends_while_the_host_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock, by which elections count, stands still meanwhile."""
    asleep_s = 5.0  # before the lease was asked for: that is no part of it
    monkeypatch.setattr(leadership, "suspended_s", lambda: asleep_s)
    monkeypatch.setattr(leadership, "boot_clock", lambda: time.monotonic() + asleep_s)
    told: list[Lease] = []
    election = Alone()
    lease = election.acquire()
    keeper = LeaseKeeper(election, lease, 1000, told.append)
    keeper.check()
    assert told == [Lease("a", 1, lease.deadline + 5.0)]
    asleep_s += 2000
    with pytest.raises(LeaseLostError):
        keeper.check()
    keeper.release()


def test_a_lease_ends_also_if_the_host_was_suspended_while_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    election = Alone()
    lease = election.acquire()
    monkeypatch.setattr(leadership, "suspended_s", lambda: 2000.0)
    monkeypatch.setattr(leadership, "boot_clock", lambda: time.monotonic() + 2000.0)
    keeper = LeaseKeeper(election, lease, 1000, suspended=0.0)
    with pytest.raises(LeaseLostError):
        keeper.check()
    keeper.release()


def test_who_does_not_know_what_became_of_an_append_asks_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    stop = Stop()
    ends = [(0.0, AppendRaceLostError("nobody knows"))]
    sessions = Sessions(stop, monkeypatch, *ends)
    lead(Alone(), sessions, stop, renew_every_s=100, ready=asked.append)
    assert asked == [False, True]


def test_who_failed_asks_for_the_lease_only_once_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    election, asked = Alone(), list[tuple[bool, int]]()

    def ready(failed: bool) -> None:
        asked.append((failed, election.epoch))
        if len(asked) in (2, 3):
            raise ConnectionLostError("away, for this process")

    stop = Stop()
    ends = [(0.0, ConnectionLostError("away"))] * 2
    lead(election, Sessions(stop, monkeypatch, *ends), stop, renew_every_s=100, ready=ready)
    assert asked == [(False, 0), (True, 1), (True, 1), (True, 1), (True, 2)]


def test_who_leads_counts_the_lease_from_before_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asleep_s = 0.0
    monkeypatch.setattr(leadership, "suspended_s", lambda: asleep_s)
    monkeypatch.setattr(leadership, "boot_clock", lambda: time.monotonic() + asleep_s)
    stop, lost = threading.Event(), list[LeaseLostError]()

    class Slept(Alone):
        def acquire(self) -> Lease:
            nonlocal asleep_s
            asleep_s += 2000.0
            return super().acquire()

    def open_session(keeper: LeaseKeeper) -> Any:
        try:
            keeper.check()
        except LeaseLostError as error:
            lost.append(error)
        stop.set()
        raise ConnectionLostError("no session")

    lead(Slept(), open_session, stop, renew_every_s=100)
    assert lost
