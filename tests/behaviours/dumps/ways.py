"""The ways a dump can be read: where its chunks get their place in the log from, and how many at
once. What depends on order is tested in every way.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Way:
    """A watermark strategy, and how many chunks are read at once."""

    watermarks: str
    parallelism: int

    def __str__(self) -> str:
        return f"{self.watermarks}-{self.parallelism}"


EVERY = [Way(marks, readers) for marks in ("table", "message", "snapshot") for readers in (1, 4)]
STRATEGIES = [Way("table", 1), Way("message", 4), Way("snapshot", 4)]
READERS = [Way("table", 1), Way("table", 4)]
TWO = [Way("table", 4), Way("snapshot", 1)]


def ways(found: list[Way]) -> pytest.MarkDecorator:
    """Run the test in each of these ways."""
    return pytest.mark.parametrize("way", found, ids=str)
