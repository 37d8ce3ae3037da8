"""When a standby polls the lease in a store that is paid by request. Times are made up."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tidelog.state.lease_polling import POLL_SHARE, RENEWALS, LeasePolling

TTL_S = 30.0
PERIODS = 100


def looked(late_s: float, begun: float, request_s: float, rate: float) -> tuple[int, list[float]]:
    """A holder renews so much later than it means to, from ``begun`` on, by a clock of this
    ``rate``: the looks, and how late each renewal was seen.
    """
    every_s = (TTL_S / RENEWALS + late_s) * rate
    renewals = [begun + number * every_s for number in range(PERIODS)]
    looks, count, seen, late = LeasePolling(TTL_S * POLL_SHARE), 0, -1, []
    now = begun + 0.4 * every_s
    while now < renewals[-1]:
        answered, count = now + request_s, count + 1
        newest = max(number for number, at in enumerate(renewals) if at <= now + request_s / 2)
        renewed = newest != seen and seen >= 0
        late += [answered - renewals[newest]] if renewed else []
        seen = newest
        planned = looks.next(now, answered, renewed=renewed, same_leader=True, ttl_s=TTL_S)
        assert planned - answered <= TTL_S * POLL_SHARE
        now = planned
    return count, late


@pytest.mark.parametrize("late_s", [0.0, 0.005, 0.05, 0.3])
@pytest.mark.parametrize("request_s", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("rate", [1 - 1e-4, 1.0, 1 + 1e-4])
def test_renewals_are_seen_within_a_second_by_three_looks_each(
    late_s: float, request_s: float, rate: float
) -> None:
    begun = random.Random(f"{late_s} {request_s} {rate}").uniform(0, 15)
    count, late = looked(late_s, begun, request_s, rate)
    assert len(late) >= PERIODS - 2, "one was not seen"
    assert max(late[2:]) <= TTL_S / 30 + 2 * request_s + 0.01
    assert count <= 3.5 * PERIODS + 10


def test_a_lease_that_is_not_renewed_is_looked_at_as_seldom_as_others() -> None:
    looks, now, times = LeasePolling(5.0), 0.0, []
    for number in range(20):
        renewed = number in (3, 6)
        times.append(now)
        now = looks.next(now, now, renewed=renewed, same_leader=True, ttl_s=30.0)
    assert all(4.0 <= after - before <= 5.0 for before, after in pairwise(times[-6:]))
