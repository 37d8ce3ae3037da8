"""When to look at a lease that another renews, where each look is paid for."""

from __future__ import annotations

import math
import random
from typing import Final

MOST: Final = 0.18
"""Of its length: between two looks."""
RENEWALS: Final = 2
"""So often a lease is renewed in its length, where each renewal is paid for."""
_STEP: Final = 1 / 30
"""Of its length: so late a renewal may be seen."""
_SOONEST: Final = 0.998
"""Of the time between two renewals, by the clock of another host."""


class LeasePolling:
    """Plans them: seldom, soon after each renewal, and when the lease would end.

    Who stands by counts the lease's length from where it *saw* the renewal. So what it sees late it
    takes over late. But renewals come at equal times: between which two moments the last one was
    says when the next one is due. A lease that was renewed otherwise is seen at the next look.
    """

    def __init__(self, most_s: float) -> None:
        """``most_s``: between two looks."""
        self._most_s = most_s
        self._not_before = -math.inf
        self._renewed = (-math.inf, -math.inf)

    def next(
        self, asked: float, answered: float, *, renewed: bool, same_leader: bool, ttl_s: float
    ) -> float:
        """When to look again, on the clock that the look before was timed by.

        Args:
            asked: when it began.
            answered: when it had ended.
            renewed: the lease was written since the look before.
            same_leader: by who had it then.
            ttl_s: how long it lasts.
        """
        every_s, step_s = ttl_s / RENEWALS, ttl_s * _STEP
        if renewed:
            soonest = self._renewed[0] + every_s * _SOONEST
            in_time = same_leader and soonest <= answered
            self._renewed = (max(self._not_before, soonest if in_time else -math.inf), answered)
        self._not_before = asked
        begun, ended = self._renewed
        due = max(begun + every_s * _SOONEST, asked) + step_s
        if not answered < due <= ended + every_s + 2 * step_s:  # unknown, or it is not renewed
            return answered + self._most_s * random.uniform(0.8, 1)  # noqa: S311 - it hides nothing
        wait_s = due - answered
        return answered + wait_s / math.ceil(wait_s / self._most_s)
