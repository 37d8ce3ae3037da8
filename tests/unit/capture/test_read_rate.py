"""How much of the source's log is read a second, at most."""

from __future__ import annotations

import pytest

from tidelog.capture.session.loop import BURST_S, ReadRate


def test_without_a_limit_nothing_waits() -> None:
    rate = ReadRate(None)
    rate.add(1 << 40)
    assert rate.wait_s(0.0) == 0.0


@pytest.mark.parametrize("turn_s", [0.02, 0.5, 3.0])
def test_as_much_is_read_as_the_limit_allows(turn_s: float) -> None:
    """Whatever a look brings; it is looked when that is allowed, every turn at most."""
    rate, now, taken = ReadRate(1000), 0.0, 0
    while now < 600.0:
        wait_s = rate.wait_s(now)
        if wait_s == 0.0:
            rate.add(700)
            taken += 700
        now += max(turn_s, wait_s)
    assert taken <= 1000 * (600.0 + BURST_S) + 700
    if turn_s < BURST_S:
        assert taken >= 0.9 * 1000 * 600.0


def test_a_rest_saves_little_up() -> None:
    rate = ReadRate(1000)
    rate.wait_s(0.0)
    rate.wait_s(3600.0)
    rate.add(1000)
    assert rate.wait_s(3600.0) == pytest.approx(1.0 - BURST_S)
