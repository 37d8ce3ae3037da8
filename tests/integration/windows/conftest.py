"""A server whose synchronous standby never answers; our own sessions must not care."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.windows.live import Live
from tests.support.postgres import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def hung_standby() -> Iterator[PostgresServer]:
    settings = {
        "synchronous_standby_names": "nobody",
        "synchronous_commit": "local",
        # Its ANALYZE would commit as the test's database says, wait for the standby for good, and
        # hold up whoever waits for all transactions that ran.
        "autovacuum": "off",
    }
    with PostgresServer(settings=settings) as server:
        yield server


@pytest.fixture
def live(
    hung_standby: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Live]]:
    """Makes a `Live` over a fresh database, in which commits wait for the standby by default."""
    made: list[tuple[Live, str]] = []

    def make(**options: Any) -> Live:
        name = f"windows_{next(_numbers)}"
        dsn = hung_standby.create_database(name)
        hung_standby.execute(f"ALTER DATABASE {name} SET synchronous_commit = 'on'")
        made.append((Live(dsn, tmp_path, monkeypatch, **options), name))
        return made[-1][0]

    yield make
    for one, name in made:
        try:
            one.close()
        finally:
            hung_standby.drop_database(name)
