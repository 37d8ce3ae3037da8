"""The throttle and others' commits: when it slows down, how far, and that it comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.capture.dumps.throttle import (
    LEAST_PACE,
    MAX_PAUSE_S,
    MAX_SPREAD_S,
    Throttle,
    ThrottleSettings,
)

CALM_S = 0.001
LIMIT = ThrottleSettings(max_commit_delay_ms=5)


@dataclass
class Source:
    """One whose commits take the longer, the more of the time a dump's SELECTs work."""

    throttle: Throttle
    delay_s: float  # of a commit while a SELECT works
    others_a_second: int = 2000
    now: float = 0.0
    commits: int = 0
    paces: list[float] = field(default_factory=list)
    readers: int = 4

    def seconds(self, count: int) -> Source:
        for _ in range(count):
            share = self.throttle.parallelism(self.readers)
            pace = self.throttle.to_json()["decision"]["pace"]
            for _ in range(20):
                self.now += 0.05
                self.throttle.on_chunk_start(self.now)
                for _mark in ("low", "high"):
                    took = CALM_S + self.delay_s * pace * share / self.readers
                    self.throttle.on_watermark(self.now, took)
                self.throttle.on_chunk_read(self.now, 100, 0.02)
            self.commits += self.others_a_second + 80
            self.throttle.observe(self.now, 0, None, self.commits)
            self.paces.append(pace)
        return self


def decision(throttle: Throttle) -> dict[str, object]:
    found: dict[str, object] = throttle.to_json()["decision"]
    return found


def calm(settings: ThrottleSettings = LIMIT) -> Source:
    """After a few seconds in which nothing was slow."""
    return Source(Throttle(settings), 0.0).seconds(3)


def test_readers_then_pace_follow_commits_that_take_longer() -> None:
    source = calm()
    source.delay_s = 1.0
    source.seconds(15)
    assert source.throttle.parallelism(4) == 1
    found = decision(source.throttle)
    assert (found["limited_by"], found["pace"]) == ("commit_delay", LEAST_PACE)
    assert found["pause_ms"] == 0
    assert "max_commit_delay_ms" in str(found["reason"])
    source.delay_s = 0.0
    source.seconds(60)
    assert source.throttle.parallelism(4) == 4
    assert (decision(source.throttle)["limited_by"], source.paces[-1]) == (None, 1.0)
    assert source.throttle.spread_s() == 0.0


def test_the_pace_settles_where_commits_bear_it() -> None:
    source = calm()
    source.readers, source.delay_s = 1, 0.020  # 5 ms at a quarter of the time
    source.seconds(200)
    settled = source.paces[50:]
    assert 0.1 <= sum(settled) / len(settled) <= 0.3
    assert max(settled) <= 0.5


def test_a_dump_that_has_the_source_to_itself_is_not_slowed_down() -> None:
    source = calm()
    source.others_a_second, source.delay_s = 0, 1.0
    source.seconds(20)
    assert decision(source.throttle)["limited_by"] is None
    source.others_a_second = 2000
    source.seconds(5)
    assert decision(source.throttle)["limited_by"] == "commit_delay"


def test_a_source_that_counts_no_commits_is_taken_for_busy() -> None:
    throttle = calm().throttle
    for now in range(10, 20):
        for _ in range(16):
            throttle.on_watermark(float(now), 0.5)
        throttle.observe(float(now), 0, None, None)
    assert decision(throttle)["limited_by"] == "commit_delay"


def test_a_commit_that_is_slow_of_itself_is_no_reason() -> None:
    throttle = Throttle(LIMIT)
    for now in range(20):  # a source that is far away, on a slow disk
        for _ in range(16):
            throttle.on_watermark(float(now), 0.080)
        throttle.observe(float(now), 0, None, now * 2000)
    assert decision(throttle)["limited_by"] is None


def test_a_single_stalled_commit_is_no_reason() -> None:
    source = calm()
    source.throttle.on_watermark(source.now, 3.0)
    source.throttle.observe(source.now + 1, 0, None, source.commits + 2000)
    assert decision(source.throttle)["limited_by"] is None


def test_marks_of_long_ago_say_nothing() -> None:
    source = calm()
    source.delay_s = 1.0
    source.seconds(5)
    later = source.now + 60
    source.throttle.observe(later, 0, None, source.commits + 60 * 2000)
    assert source.throttle.to_json()["observed"]["commit_delay_ms"] is None


def test_without_the_limit_or_without_marks_nothing_is_slowed_down() -> None:
    source = calm(ThrottleSettings())
    source.delay_s = 1.0
    source.seconds(20)
    assert decision(source.throttle)["limited_by"] is None
    throttle = Throttle(LIMIT)
    for now in range(20):
        throttle.on_chunk_read(float(now), 100, 0.1)
        throttle.observe(float(now), 0, None, now * 2000)
    assert decision(throttle)["limited_by"] is None


def test_lifting_the_limit_lets_go_at_once() -> None:
    source = calm()
    source.delay_s = 1.0
    source.seconds(20)
    assert source.throttle.spread_s() > 0
    source.throttle.change(ThrottleSettings())
    assert source.throttle.spread_s() == 0.0
    assert source.throttle.parallelism(4) == 4
    assert source.throttle.wait_s(source.now) == 0.0


@settings(deadline=None, max_examples=50)
@given(work_s=st.floats(0.001, 10.0), rests=st.booleans())
def test_selects_work_no_more_than_the_pace_whether_or_not_the_reader_can_rest(
    work_s: float, rests: bool
) -> None:
    source = calm()
    source.delay_s = 1.0
    source.seconds(20)
    throttle, now, worked = source.throttle, source.now, 0.0
    for _ in range(20):  # until the smoothed time of a SELECT is that of these
        throttle.on_chunk_read(now, 100, work_s)
    began = now = now + MAX_PAUSE_S + throttle.wait_s(now)
    for _ in range(20):
        throttle.on_chunk_start(now)
        rested_s = max(0.0, throttle.spread_s() - work_s) if rests else 0.0
        assert rested_s <= MAX_SPREAD_S
        now += work_s + rested_s
        throttle.on_chunk_read(now, 100, work_s + rested_s, rested_s)
        worked += work_s
        now += throttle.wait_s(now)
    if work_s / LEAST_PACE < MAX_PAUSE_S:
        assert worked / (now - began) == pytest.approx(LEAST_PACE, rel=0.05)
    assert now - began <= 20 * (work_s + MAX_SPREAD_S + MAX_PAUSE_S)
    assert throttle.to_json()["observed"]["select_ms"] == pytest.approx(work_s * 1000, abs=1)
