"""The throttle against simulated readers: the rate's bound, no starvation, recovery."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.capture.dumps.throttle import BURST_S, MAX_PAUSE_S, Throttle, ThrottleSettings

LIMITS = ThrottleSettings(max_lag_bytes=1000, max_replica_lag_ms=10_000, max_select_ms=2_000)


@dataclass
class Run:
    """Readers that work as the coordinator's do, on a clock of our own, and what they did."""

    throttle: Throttle
    readers: int
    chunk: Callable[[int], tuple[int, float]]  # number of the chunk → rows, seconds
    load: Callable[[float], tuple[int | None, float | None]] = lambda _now: (None, None)
    late_s: float = 0.0  # how late a reader wakes up
    begun: list[float] = field(default_factory=list)
    read: list[tuple[float, int]] = field(default_factory=list)
    most: int = 0
    end: float = 0.0

    def until(self, end: float, chunks: int = 1000) -> Run:
        """Until the moment ``end``, or until so many chunks have begun."""
        events: list[tuple[float, int, str, int, float]] = [(0.0, -1, "look", 0, 0.0)]
        events += [(0.0, reader, "ask", 0, 0.0) for reader in range(self.readers)]
        working = 0
        while events[0][0] <= end and len(self.begun) < chunks:
            now, reader, what, rows, seconds = heapq.heappop(events)
            self.end = now
            if what == "look":
                self.throttle.observe(now, *self.load(now))
                heapq.heappush(events, (now + 1.0, -1, "look", 0, 0.0))
                continue
            if what == "read":
                working -= 1
                self.throttle.on_chunk_read(now, rows, seconds)
                self.read.append((now, rows))
            wait_s = self.throttle.wait_s(now)
            if working >= self.throttle.parallelism(self.readers):
                heapq.heappush(events, (now + 0.2, reader, "ask", 0, 0.0))
            elif wait_s > 0:
                heapq.heappush(events, (now + wait_s + self.late_s, reader, "ask", 0, 0.0))
            else:
                self.throttle.on_chunk_start(now)
                self.begun.append(now)
                working += 1
                self.most = max(self.most, working)
                rows, seconds = self.chunk(len(self.begun))
                heapq.heappush(events, (now + seconds, reader, "read", rows, seconds))
        return self

    @property
    def rows(self) -> int:
        return sum(rows for _at, rows in self.read)


# ---------------------------------------------------------------- rows a second


@settings(deadline=None, max_examples=50)
@given(
    limit=st.integers(100, 200_000),
    readers=st.integers(1, 16),
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=20),
    seconds=st.floats(0.001, 3.0),
    late_s=st.floats(0.0, 0.1),
)
def test_no_more_rows_are_read_than_the_limit_allows(
    limit: int, readers: int, sizes: list[int], seconds: float, late_s: float
) -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=limit))
    run = Run(throttle, readers, lambda n: (sizes[n % len(sizes)], seconds), late_s=late_s)
    run.until(300.0)
    # Beyond the budget at most what was begun at once before its size was known.
    assert run.rows <= limit * (run.end + BURST_S) + readers * max(sizes)


@settings(deadline=None, max_examples=50)
@given(
    limit=st.integers(1000, 100_000),
    readers=st.integers(1, 16),
    chunk_rows=st.integers(100, 20_000),
    seconds=st.floats(0.001, 0.1),
)
def test_the_limit_is_used_where_readers_could_read_more(
    limit: int, readers: int, chunk_rows: int, seconds: float
) -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=limit))
    run = Run(throttle, readers, lambda _n: (chunk_rows, seconds), late_s=0.01)
    run.until(float("inf"), chunks=500)
    possible = min(limit, chunk_rows / seconds)
    assert run.rows >= 0.9 * possible * run.end - (readers + 2) * chunk_rows
    assert run.rows <= limit * 1.03 * run.end + chunk_rows  # equal chunks: no burst of all readers


@settings(deadline=None, max_examples=50)
@given(chunk_rows=st.integers(100, 100_000), readers=st.integers(2, 16))
def test_the_first_chunks_do_not_all_begin_at_once(chunk_rows: int, readers: int) -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=chunk_rows))
    run = Run(throttle, readers, lambda _n: (chunk_rows, 0.5)).until(10.0)
    assert sum(at < 0.7 for at in run.begun) == 1


def test_a_chunk_larger_than_a_second_s_budget_is_waited_for_in_full() -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=1000))
    throttle.wait_s(0.0)
    throttle.on_chunk_start(0.0)
    throttle.on_chunk_read(1.0, 10_000, 1.0)
    assert throttle.wait_s(1.0) == pytest.approx(9.0, abs=BURST_S)
    assert throttle.wait_s(10.1) == 0.0


def test_failed_chunks_give_their_rows_back() -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=1000))
    for number in range(5):
        throttle.on_chunk_start(float(number))
        throttle.on_chunk_read(float(number), 0 if number else 1000, 0.1)
    assert throttle.wait_s(5.0) == 0.0


@settings(deadline=None, max_examples=50)
@given(before=st.integers(1, 10**6), after=st.integers(0, 10**6), rows=st.integers(0, 10**6))
def test_a_new_limit_never_waits_longer_than_either_would(
    before: int, after: int, rows: int
) -> None:
    settings = ThrottleSettings(rows_per_second=before)
    throttle = Throttle(settings)
    throttle.on_chunk_start(0.0)
    throttle.on_chunk_read(0.0, rows, 0.1)
    waited = throttle.wait_s(0.0)
    throttle.change(replace(settings, rows_per_second=after))
    assert throttle.wait_s(0.0) <= waited + 1e-6


# ---------------------------------------------------------------- the pause between two chunks


@settings(deadline=None, max_examples=50)
@given(delay_ms=st.integers(1, 5000), readers=st.integers(1, 8), seconds=st.floats(0.001, 2.0))
def test_chunks_begin_the_delay_after_the_one_before(
    delay_ms: int, readers: int, seconds: float
) -> None:
    throttle = Throttle(ThrottleSettings(delay_ms=delay_ms))
    run = Run(throttle, readers, lambda _n: (100, seconds)).until(60.0)
    moments = sorted([*run.begun, *(at for at, _rows in run.read)])
    for at in run.begun[1:]:
        last = max(m for m in moments if m < at)
        assert at - last >= delay_ms / 1000 - 1e-9
    assert len(run.begun) >= run.end / (seconds + delay_ms / 1000) * 0.9 - 1


# ---------------------------------------------------------------- the automatic throttle


@settings(deadline=None, max_examples=50)
@given(
    readers=st.integers(1, 64),
    lag=st.one_of(st.none(), st.integers(0, 10**9)),
    replica_lag_s=st.one_of(st.none(), st.floats(0, 10**6)),
    seconds=st.floats(0.01, 20.0),
    delay_ms=st.integers(0, 1000),
)
def test_chunks_continue_however_bad_it_is(
    readers: int, lag: int | None, replica_lag_s: float | None, seconds: float, delay_ms: int
) -> None:
    throttle = Throttle(replace(LIMITS, delay_ms=delay_ms))
    run = Run(throttle, readers, lambda _n: (100, seconds), lambda _now: (lag, replica_lag_s))
    run.until(200.0)
    # Where the tail of many readers still works, pauses count from the last one's end.
    least_s = MAX_PAUSE_S + seconds + delay_ms / 1000
    gaps = [after - before for before, after in zip(run.begun, run.begun[1:], strict=False)]
    assert len(run.begun) > run.end / least_s / 2
    assert max(gaps[readers:], default=0.0) <= 2 * least_s + seconds
    decision = throttle.to_json()["decision"]
    assert (decision["limited_by"] is None) == (not decision["reason"])
    assert decision["pause_ms"] <= MAX_PAUSE_S * 1000


@settings(deadline=None, max_examples=15)
@given(readers=st.integers(1, 64), worst=st.integers(1001, 10**9))
def test_readers_are_halved_then_pause_and_all_come_back(readers: int, worst: int) -> None:
    def at(end: float) -> tuple[Throttle, Run]:
        """How it stands at ``end``: capture is behind from the 20th to the 80th second."""
        throttle = Throttle(LIMITS)
        run = Run(
            throttle,
            readers,
            lambda _n: (100, 0.9),
            lambda now: (worst if 20.0 <= now < 80.0 else 0, 0.0),
        )
        return throttle, run.until(end, chunks=10**6)

    throttle, run = at(19.5)
    assert throttle.parallelism(readers) == run.most == readers
    throttle, run = at(79.5)
    assert throttle.parallelism(readers) == 1
    assert throttle.wait_s(max(run.begun[-1], run.read[-1][0])) == pytest.approx(MAX_PAUSE_S)
    assert throttle.to_json()["decision"]["limited_by"] == "lag"
    throttle, run = at(140.0)
    assert throttle.parallelism(readers) == readers
    assert throttle.to_json()["decision"] == {
        "limited_by": None,
        "parallelism_share": 1.0,
        "pause_ms": 0,
        "pace": 1.0,
        "reason": "",
    }


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 20)), max_size=200))
def test_between_half_the_limit_and_the_limit_nothing_changes(
    seen: list[tuple[int, float]],
) -> None:
    throttle = Throttle(LIMITS)
    throttle.parallelism(16)
    for now, (lag, replica_lag_s) in enumerate(seen):
        before = throttle.to_json()["decision"]
        throttle.observe(float(now), lag, replica_lag_s)
        after = throttle.to_json()["decision"]
        ratio = max(lag / 1000, replica_lag_s / 10)
        loosened = (
            after["parallelism_share"] > before["parallelism_share"]
            or after["pause_ms"] < before["pause_ms"]
        )
        tightened = (
            after["parallelism_share"] < before["parallelism_share"]
            or after["pause_ms"] > before["pause_ms"]
        )
        assert not tightened or ratio > 1.0
        assert not loosened or ratio < 0.5


def test_a_lag_that_the_dump_causes_settles_below_its_limit() -> None:
    """Each working reader adds lag, the log takes some away: readers find what it bears."""
    throttle = Throttle(replace(LIMITS, max_lag_bytes=100_000))
    lag, seen, allowed = 0.0, [], []
    for now in range(600):
        readers = throttle.parallelism(16)
        lag = max(0.0, lag + readers * 1000 - 8000)
        throttle.observe(float(now), int(lag), None)
        seen.append(lag)
        allowed.append(readers)
    assert max(seen) < 110_000
    assert 4 <= sum(allowed[100:]) / len(allowed[100:]) <= 8  # the log bears 8


def test_selects_that_are_slow_of_themselves_only_double_the_time() -> None:
    throttle = Throttle(LIMITS)
    run = Run(throttle, 1, lambda _n: (100, 3.0)).until(600.0)
    assert len(run.begun) >= 600 / 6 * 0.95
    assert throttle.to_json()["decision"]["limited_by"] == "select_time"


def test_selects_that_get_slower_with_readers_find_how_many_go() -> None:
    throttle = Throttle(LIMITS)
    readers = 16
    most = []
    for now in range(400):
        allowed = throttle.parallelism(readers)
        throttle.on_chunk_read(float(now), 100, 0.5 * allowed)
        throttle.observe(float(now), 0, 0.0)
        most.append(allowed)
    assert max(most[10:]) <= 6
    assert min(most[10:]) >= 1
    assert sum(most[10:]) / len(most[10:]) >= 2


def test_a_lifted_limit_lets_go_at_once() -> None:
    throttle = Throttle(LIMITS)
    throttle.parallelism(8)
    for now in range(20):
        throttle.observe(float(now), None, 3600.0)
    assert throttle.parallelism(8) == 1
    throttle.change(replace(LIMITS, max_replica_lag_ms=0))
    assert throttle.parallelism(8) == 8
    assert throttle.wait_s(20.0) == 0.0


def test_the_decision_names_what_limits() -> None:
    throttle = Throttle(replace(LIMITS, rows_per_second=10))
    throttle.on_chunk_start(0.0)
    throttle.on_chunk_read(0.0, 100, 0.1)
    assert throttle.to_json()["decision"]["limited_by"] == "rows_per_second"
    throttle.observe(1.0, 0, 11.0)
    shown = throttle.to_json()
    assert shown["decision"]["limited_by"] == "replica_lag"
    assert "max_replica_lag_ms" in shown["decision"]["reason"]
    assert shown["observed"]["replica_lag_ms"] == 11_000
    assert shown["settings"]["rows_per_second"] == 10


@settings(deadline=None, max_examples=50)
@given(idle_s=st.floats(1.0, 10**5), limit=st.integers(100, 10**6))
def test_idle_time_is_not_saved_up(idle_s: float, limit: int) -> None:
    throttle = Throttle(ThrottleSettings(rows_per_second=limit))
    throttle.wait_s(0.0)
    throttle.on_chunk_start(idle_s)
    throttle.on_chunk_read(idle_s, 10 * limit, 0.1)
    assert throttle.wait_s(idle_s) >= 10 - BURST_S - 1e-6
