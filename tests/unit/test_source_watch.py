"""How late capture is and when the source's log is lost, from what the source said when."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.capture.source_watch import KEPT_SAMPLES, SourceWatch
from tidelog.errors import SourceError
from tidelog.ports import Retention, SourceLoad


def load(end: int, **retention: Any) -> SourceLoad:
    return SourceLoad(0, end, f"0/{end:X}", Retention(**retention))


def test_nothing_is_known_before_the_first_answer() -> None:
    found = SourceWatch().summary(10.0, 5)
    assert set(found.values()) == {None}


def test_lag_is_the_time_since_the_log_first_ended_behind_what_was_reached() -> None:
    watch = SourceWatch()
    for second, end in enumerate((100, 100, 250, 300, 300, 300)):
        watch.observe(float(second), 100, load(end))
    assert watch.summary(6.0, 100)["lag_s"] == 4.0  # 250 was there at 2
    assert watch.summary(6.0, 250)["lag_s"] == 3.0
    assert watch.summary(6.0, 300)["lag_s"] == 0.0
    assert watch.summary(6.0, 300)["position"] == "0/12C"


def test_an_idle_source_is_never_late() -> None:
    watch = SourceWatch()
    watch.observe(0.0, 100, load(100))
    watch.observe(3600.0, 100, load(100))
    assert watch.summary(7200.0, 100)["lag_s"] == 0.0


def test_a_long_lag_is_remembered_in_bounded_room() -> None:
    watch = SourceWatch()
    for second in range(3 * KEPT_SAMPLES):
        watch.observe(float(second), 0, load(second + 1))
    assert len(watch._ends) <= KEPT_SAMPLES + 1
    assert watch.summary(3.0 * KEPT_SAMPLES, 0)["lag_s"] == 3.0 * KEPT_SAMPLES


def test_when_the_log_is_lost_is_told_from_the_room_that_went_in_minutes() -> None:
    watch = SourceWatch()
    for second in range(0, 120, 10):
        watch.observe(float(second), 0, load(second, spare_bytes=10_000 - 10 * second))
    found = watch.summary(120.0, 0)
    assert found["spare_bytes"] == 8_900
    assert found["lost_in_s"] == 890.0


@pytest.mark.parametrize(
    "spare", [[1000, 900, 950, 1000], [1000, 1000, 1000, 1000], [None, None, None, None]]
)
def test_room_that_does_not_go_is_not_about_to_be_lost(spare: list[int | None]) -> None:
    watch = SourceWatch()
    for place, room in enumerate(spare):
        watch.observe(30.0 * place, 0, load(place, spare_bytes=room))
    assert watch.summary(120.0, 0)["lost_in_s"] is None


def test_a_source_that_does_not_answer_is_told_since_it_first_did_not() -> None:
    watch = SourceWatch()

    class Away:
        def load(self, _reached: int) -> SourceLoad:
            raise SourceError("nothing answers there")

    for _ in range(2):
        with pytest.raises(SourceError):
            watch.ask(Away(), 0)  # type: ignore[arg-type]
    first = watch.summary(0.0, 0)
    assert first["error"] == "nothing answers there"
    assert first["error_since_ms"] > 0
    watch.observe(1.0, 0, load(1))
    assert watch.summary(1.0, 0)["error"] is None
