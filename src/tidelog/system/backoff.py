"""Growing delays between attempts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow after each failure in a row, from ``first`` up to ``longest``; in any unit
    of time.
    """

    first: float
    longest: float
    factor: float = 2.0

    def after(self, failures: int) -> float:
        """Return the delay after this many failures in a row; 1 or less: ``first``."""
        growth = self.factor ** min(max(0, failures - 1), 64)
        return min(self.longest, self.first * growth)
