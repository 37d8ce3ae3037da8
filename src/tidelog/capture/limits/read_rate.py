"""How much of the source's log is read a second, at most. Pure: time is given.

A token bucket that may go into debt, as that of the dumps' throttle: how much a look at the log
brings is known only behind it.
"""

from __future__ import annotations

BURST_S = 0.25
"""Budget that may be saved up: makes up for looks that come late."""


class ReadRate:
    """The read rate of one engine, used by its thread.

    Args:
        limit: bytes a second; None: no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._budget = 0.0
        self._at: float | None = None

    def took(self, size: int) -> None:
        """Count bytes that were read."""
        if self._limit is not None:
            self._budget -= size

    def wait_s(self, now: float) -> float:
        """0.0 if there may be read, else seconds after which to ask again."""
        if self._limit is None:
            return 0.0
        if self._at is not None:
            earned = self._limit * max(0.0, now - self._at)
            self._budget = min(self._budget + earned, self._limit * BURST_S)
        self._at = now
        return max(0.0, -self._budget / self._limit)
