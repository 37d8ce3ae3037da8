"""The ways a dump can be read: from which kind of source, where its chunks get their place in the
log from, and how many at once. What depends on order is tested in every way, of which
`make test-all` takes a sample for each test, another one for the next test, and
`make test-thorough` the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pytest

SOURCES = ("postgres", "mysql", "mariadb")
"""A test of `make test-all` reads one of these kinds of source, in one way: they take turns. What
they differ in is tested on each in tests/integration.
"""


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
    """Run the test in each of these ways, of which `mark_sample` leaves one to `make test-all`."""
    return pytest.mark.parametrize("way", found, ids=str)


def mark_sample(items: Sequence[pytest.Item]) -> None:
    """Mark as thorough all but one way of each test, other ones for its other parameters."""
    tests: dict[str, list[tuple[pytest.Item, Way]]] = {}
    for item in items:
        way = item.callspec.params.get("way") if hasattr(item, "callspec") else None
        if isinstance(way, Way) and item.get_closest_marker("thorough") is None:
            tests.setdefault(item.nodeid.replace(str(way), ""), []).append((item, way))
    for name, variants in tests.items():
        turn = crc32(name.encode())
        found = [way for _, way in variants]
        present = [source for source in SOURCES if only(source, found)]
        mine = only(present[turn % len(present)], found)
        sample = mine[turn // len(present) % len(mine)]
        for item, way in variants:
            if way != sample:
                item.add_marker(pytest.mark.thorough)


def only(source: str, found: Sequence[Way] = EVERY) -> list[Way]:
    """Those of one kind of source: the test says why."""
    return [way for way in found if way.source == source]
