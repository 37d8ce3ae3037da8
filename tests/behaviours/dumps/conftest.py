"""One server for all dumps; a source of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.ways import Way

from tidelog.testing.postgres import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def dump_server() -> Iterator[PostgresServer]:
    settings = {"max_prepared_transactions": "10", "allow_system_table_mods": "on"}
    with PostgresServer(16, settings) as server:
        yield server


@pytest.fixture
def way() -> Way:
    """How the test reads, unless it says `tests.behaviours.dumps.ways.ways`."""
    return Way("table", 1)


@pytest.fixture
def make(
    dump_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> Iterator[Make]:
    """Makes a `Dumped` over a fresh database."""
    made: list[tuple[Dumped, str]] = []

    def making(**options: Any) -> Dumped:
        name = f"dumps_{next(_numbers)}"
        dsn = dump_server.create_database(name)
        chosen: dict[str, Any] = {"watermarks": way.watermarks, "parallelism": way.parallelism}
        made.append((Dumped(dsn, tmp_path, monkeypatch, **(chosen | options)), name))
        return made[-1][0]

    yield making
    for one, name in made:
        try:
            one.close()
        finally:
            dump_server.drop_database(name)
