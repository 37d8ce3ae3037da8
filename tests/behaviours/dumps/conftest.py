"""One server of a kind for all dumps; a source of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.sources import PostgresSource, Source
from tests.behaviours.dumps.sources_mysql import MySqlSource
from tests.behaviours.dumps.ways import ONE, Way

from tidelog.testing.postgres import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def dump_server() -> Iterator[PostgresServer]:
    settings = {"max_prepared_transactions": "10", "allow_system_table_mods": "on"}
    with PostgresServer(16, settings) as server:
        yield server


@pytest.fixture(params=ONE, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    """How the test reads, unless it says `tests.behaviours.dumps.ways.ways`."""
    found: Way = request.param
    return found


@pytest.fixture
def place(request: pytest.FixtureRequest, way: Way) -> Iterator[Source]:
    """The source, empty."""
    if way.source == "postgres":
        server = request.getfixturevalue("dump_server")
        source: Source = PostgresSource(server, f"dumps_{next(_numbers)}")
    else:
        source = MySqlSource(request.getfixturevalue(f"{way.source}_server"))
    yield source
    source.drop()


@pytest.fixture
def make(
    place: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> Iterator[Make]:
    """Makes the test's `Dumped`."""
    made: list[Dumped] = []

    def making(**options: Any) -> Dumped:
        chosen: dict[str, Any] = {"watermarks": way.watermarks, "parallelism": way.parallelism}
        made.append(Dumped("", tmp_path, monkeypatch, on=place, **(chosen | options)))
        return made[-1]

    yield making
    for one in made:
        one.close()
