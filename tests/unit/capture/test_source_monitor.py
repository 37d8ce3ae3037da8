"""How late capture is and when the source's log is lost, from what the source said when."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tidelog.capture.source_monitor import KEPT_SAMPLES, SourceMonitor
from tidelog.errors import SourceError
from tidelog.ports import Retention, SourceLoad


def load(end: int, **retention: Any) -> SourceLoad:
    return SourceLoad(0, end, f"0/{end:X}", Retention(**retention))


def test_nothing_is_known_before_the_first_answer() -> None:
    found = SourceMonitor().summary(10.0, 5)
    assert set(found.values()) == {None}


def test_lag_is_the_time_since_the_log_first_ended_behind_what_was_reached() -> None:
    watch = SourceMonitor()
    for second, end in enumerate((100, 100, 250, 300, 300, 300)):
        watch.observe(float(second), 100, load(end))
    assert watch.summary(6.0, 100)["lag_s"] == 4.0  # 250 was there at 2
    assert watch.summary(6.0, 250)["lag_s"] == 3.0
    assert watch.summary(6.0, 300)["lag_s"] == 0.0
    assert watch.summary(6.0, 300)["position"] == "0/12C"


def test_an_idle_source_is_never_late() -> None:
    watch = SourceMonitor()
    watch.observe(0.0, 100, load(100))
    watch.observe(3600.0, 100, load(100))
    assert watch.summary(7200.0, 100)["lag_s"] == 0.0


def test_a_long_lag_is_remembered_in_bounded_room() -> None:
    watch = SourceMonitor()
    watch.observe(0.0, 0, load(0))
    for second in range(3 * KEPT_SAMPLES):
        watch.observe(float(second), 0, load(second + 1))
    assert len(watch._ends) <= KEPT_SAMPLES + 1
    assert watch.summary(3.0 * KEPT_SAMPLES, 0)["lag_s"] == 3.0 * KEPT_SAMPLES


def sawtooth(watch: SourceMonitor, trend: int, seconds: int = 600) -> None:
    """Room that falls and comes back every 100 s, and goes by ``trend`` a second besides."""
    for second in range(0, seconds, 5):
        room = 100_000 - 300 * (second % 100) - trend * second
        watch.observe(float(second), 0, load(second, spare_bytes=room))


def test_when_the_log_is_lost_is_reported_from_the_room_that_went_in_minutes() -> None:
    watch = SourceMonitor()
    sawtooth(watch, trend=100)
    found = watch.summary(600.0, 0)["lost_in_s"]
    assert found is not None
    room = 100_000 - 300 * 95 - 100 * 595
    assert found == pytest.approx(room / 100, rel=0.3)


def test_how_long_the_room_lasts_without_capture_is_reported_also_while_nothing_uses_it_up() -> (
    None
):
    watch = SourceMonitor()
    for second in range(0, 600, 5):
        watch.observe(float(second), 0, load(50 * second, spare_bytes=100_000))
    found = watch.summary(600.0, 0)
    assert (found["lost_in_s"], found["lasts_s"]) == (None, 2000.0)
    idle = SourceMonitor()
    for second in range(0, 600, 5):
        idle.observe(float(second), 0, load(7, spare_bytes=100_000))
    assert idle.summary(600.0, 0)["lasts_s"] is None


def test_room_that_comes_back_is_not_about_to_be_lost() -> None:
    for seconds in range(50, 600, 15):
        watch = SourceMonitor()
        sawtooth(watch, trend=0, seconds=seconds)
        assert watch.summary(float(seconds), 0)["lost_in_s"] is None


def test_a_trend_is_not_reported_from_a_moment_and_not_without_a_limit() -> None:
    watch = SourceMonitor()
    sawtooth(watch, trend=100, seconds=100)
    assert watch.summary(100.0, 0)["lost_in_s"] is None
    watch.observe(700.0, 0, load(1000))
    assert watch.summary(700.0, 0)["lost_in_s"] is None
    assert watch.summary(700.0, 0)["lasts_s"] is None


def test_a_capture_that_was_away_is_as_late_as_what_it_captures_until_it_was_level() -> None:
    watch = SourceMonitor()
    watch.observe(0.0, 100, load(5_000))
    assert watch.summary(1.0, 100)["lag_s"] is None  # it is behind, and nobody knows how long
    days_ago = time.time_ns() // 1000 - 5 * 86_400 * 1_000_000
    found = watch.summary(1.0, 100, days_ago)["lag_s"]
    assert found == pytest.approx(5 * 86_400, abs=60)
    watch.observe(2.0, 5_000, load(5_000))
    assert watch.summary(2.0, 5_000, days_ago)["lag_s"] == 0.0


def test_a_capture_that_is_never_level_is_not_as_late_as_its_last_row() -> None:
    """Others write all the time, and nobody to the captured tables: what lay there is read."""
    watch = SourceMonitor()
    days_ago = time.time_ns() // 1000 - 5 * 86_400 * 1_000_000
    for second in range(10):
        watch.observe(float(second), 1_000 * second, load(1_000 * (second + 1)))
    assert watch.summary(9.5, 9_000, days_ago)["lag_s"] == 0.5


def test_a_source_that_does_not_answer_is_reported_since_it_first_did_not() -> None:
    watch = SourceMonitor()

    class Away:
        def load(self, _reached: int) -> SourceLoad:
            raise SourceError("nothing answers there")

    for _ in range(2):
        with pytest.raises(SourceError):
            watch.refresh(Away(), 0)  # type: ignore[arg-type]
    first = watch.summary(0.0, 0)
    assert first["error"] == "nothing answers there"
    assert first["error_since_ms"] > 0
    watch.observe(1.0, 0, load(1))
    assert watch.summary(1.0, 0)["error"] is None
