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

SAMPLED = (("postgres",), ("mysql", "mariadb"))
"""A test of `make test-all` reads one of each of these kinds of source, in one way. MySQL and
MariaDB take turns: what they differ in is tested on both in tests/integration/mysql.
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
    """Run the test in each of these ways; those not in its sample are marked ``thorough``."""

    def mark(test: Any) -> Any:
        sample: list[Way] = []
        turn = crc32(test.__name__.encode())
        for kinds in SAMPLED:
            present = [kind for kind in kinds if only(kind, found)]
            if present:
                mine = only(present[turn % len(present)], found)
                sample.append(mine[turn // len(present) % len(mine)])
        parameters = [
            way if way in sample else pytest.param(way, marks=pytest.mark.thorough) for way in found
        ]
        return pytest.mark.parametrize("way", parameters, ids=str)(test)

    return mark


def only(source: str, found: Sequence[Way] = EVERY) -> list[Way]:
    """Those of one kind of source: the test says why."""
    return [way for way in found if way.source == source]
