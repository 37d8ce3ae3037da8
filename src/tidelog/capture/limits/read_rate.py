"""Limits how many bytes of the source's log are read per second. Pure: time is passed in.

A token bucket that may go into debt, as in the dumps' throttle: the size of a read is known only
after it.
"""

from __future__ import annotations

BURST_S = 0.25
"""Budget that may be saved up: makes up for late polls."""


class ReadRate:
    """The read rate of one engine, used by its thread.

    Args:
        limit: bytes a second; None: no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._budget = 0.0
        self._at: float | None = None

    def add(self, size: int) -> None:
        """Note bytes that were read."""
        if self._limit is not None:
            self._budget -= size

    def wait_s(self, now: float) -> float:
        """0.0 if the log may be read now, else seconds after which to ask again."""
        if self._limit is None:
            return 0.0
        if self._at is not None:
            earned = self._limit * max(0.0, now - self._at)
            self._budget = min(self._budget + earned, self._limit * BURST_S)
        self._at = now
        return max(0.0, -self._budget / self._limit)
