"""One server of a kind for all dumps; a source of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.sources import PostgresSource, Source
from tests.behaviours.dumps.sources_mysql import MySqlSource
from tests.behaviours.dumps.ways import ONE, Way
from tests.support.held_locks import asked_under_locks
from tests.support.postgres import PostgresServer
from tests.support.samples import mark_sample

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_sample(items, Path(__file__).parent, "way")


@pytest.fixture(autouse=True)
def nothing_is_asked_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No dump asks the state store while its thread holds a lock under which dumps are decided: who
    only reads what is in memory waits for no network.
    """
    with asked_under_locks(monkeypatch) as found:
        yield
    assert found == set()


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
    source = _source(request, way)
    yield source
    source.drop()


@pytest.fixture
def make(
    place: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> Iterator[Make]:
    """Makes the test's `Dumped`."""
    with _making(place, tmp_path, monkeypatch, way) as make:
        yield make


@pytest.fixture
def tries(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> Iterator[Iterator[Make]]:
    """As many ``make`` as are asked for, each with a source and directory of its own. What the one
    before has made is closed then; what it patched stays.
    """

    def fresh() -> Iterator[Make]:
        for number in itertools.count(1):
            directory = tmp_path / f"try-{number}"
            directory.mkdir()
            source = _source(request, way)
            try:
                with _making(source, directory, monkeypatch, way) as make:
                    yield make
            finally:
                source.drop()

    with closing(fresh()) as tries:
        yield tries


def _source(request: pytest.FixtureRequest, way: Way) -> Source:
    if way.source == "postgres":
        return PostgresSource(request.getfixturevalue("dump_server"), f"dumps_{next(_numbers)}")
    return MySqlSource(request.getfixturevalue(f"{way.source}_server"))


@contextmanager
def _making(
    place: Source, directory: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> Iterator[Make]:
    made: list[Dumped] = []

    def making(**options: Any) -> Dumped:
        chosen: dict[str, Any] = {"watermarks": way.watermarks, "parallelism": way.parallelism}
        made.append(Dumped("", directory, monkeypatch, on=place, **(chosen | options)))
        return made[-1]

    try:
        yield making
    finally:
        for one in made:
            one.close()
