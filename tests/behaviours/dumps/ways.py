"""The ways a dump can be read: from which kind of source, where its chunks get their place in the
log from, and how many at once. What depends on order is tested in every way, of which
`make test-all` takes one for each test, another one for the next test, and `make test-thorough`
the rest. What kinds of sources differ in is tested on each in tests/integration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Way:
    """A watermark strategy, how many chunks are read at once, and the kind of source."""

    watermarks: str
    parallelism: int
    source: str = "postgres"

    def __str__(self) -> str:
        return f"{self.source}-{self.watermarks}-{self.parallelism}"


EVERY = [
    *[Way(marks, readers) for marks in ("table", "message", "snapshot") for readers in (1, 4)],
    Way("table", 1, "mysql"),
    Way("gtid", 4, "mysql"),
    Way("table", 4, "mariadb"),
    Way("gtid", 1, "mariadb"),
]
STRATEGIES = [
    Way("table", 1),
    Way("message", 4),
    Way("snapshot", 4),
    Way("table", 4, "mysql"),
    Way("gtid", 1, "mysql"),
    Way("gtid", 4, "mariadb"),
]
READERS = [
    Way("table", 1),
    Way("table", 4),
    Way("gtid", 4, "mysql"),
    Way("table", 1, "mariadb"),
]
TWO = [
    Way("table", 4),
    Way("snapshot", 1),
    Way("table", 4, "mysql"),
    Way("gtid", 1, "mariadb"),
]
ONE = [Way("table", 1), Way("gtid", 1, "mysql"), Way("table", 1, "mariadb")]
BINLOG = [Way("gtid", 1, "mysql"), Way("table", 4, "mariadb")]
"""What only these two have."""


def ways(found: Sequence[Way]) -> Callable[[Any], Any]:
    """Run the test in each of these ways, one of them in `make test-all`."""
    return pytest.mark.parametrize("way", found, ids=str)


def only(source: str, found: Sequence[Way] = EVERY) -> list[Way]:
    """Those of one kind of source: the test says why."""
    return [way for way in found if way.source == source]
