"""Plans when to poll a lease that another process renews, where each request costs money."""

from __future__ import annotations

import math
import random
from typing import Final

POLL_SHARE: Final = 0.18
"""The longest time between two polls, as a share of the lease's duration."""
RENEWALS: Final = 2
"""How often a lease is renewed within its duration where each renewal costs money."""
_STEP: Final = 1 / 30
"""How late a renewal may be seen, as a share of the lease's duration."""
_SOONEST: Final = 0.998
"""The shortest time between two renewals as another host's clock may show it, as a share."""


class LeasePolling:
    """Plans polls: seldom, but soon after each renewal, and when the lease would expire.

    A standby counts the lease's duration from when it *saw* the renewal, so what it sees late it
    takes over late. But renewals come at equal intervals: the two moments between which the last
    one was, show when the next one is due. A lease that is renewed otherwise is seen at the next
    poll.
    """

    def __init__(self, most_s: float) -> None:
        """``most_s``: the longest time between two polls."""
        self._most_s = most_s
        self._not_before = -math.inf
        self._renewed = (-math.inf, -math.inf)

    def next(
        self, asked: float, answered: float, *, renewed: bool, same_leader: bool, ttl_s: float
    ) -> float:
        """Return when to poll again, on the clock of the last poll.

        Args:
            asked: when the last poll was sent.
            answered: when it was answered.
            renewed: whether the lease was written since the poll before.
            same_leader: whether the same process wrote it.
            ttl_s: the duration of the lease.
        """
        every_s, step_s = ttl_s / RENEWALS, ttl_s * _STEP
        if renewed:
            soonest = self._renewed[0] + every_s * _SOONEST
            in_time = same_leader and soonest <= answered
            self._renewed = (max(self._not_before, soonest if in_time else -math.inf), answered)
        self._not_before = asked
        begun, ended = self._renewed
        due = max(begun + every_s * _SOONEST, asked) + step_s
        if not answered < due <= ended + every_s + 2 * step_s:  # unknown, or not renewed
            return answered + self._most_s * random.uniform(0.8, 1)  # noqa: S311 - it hides nothing
        wait_s = due - answered
        return answered + wait_s / math.ceil(wait_s / self._most_s)
