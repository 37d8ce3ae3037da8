"""Servers set up as the history oracle needs them, each with what it has to know of their kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing.oracle_postgres import SETTINGS, PostgresOracle
from tidelog.testing.postgres import PostgresServer


@pytest.fixture(scope="module")
def oracle16() -> Iterator[PostgresOracle]:
    with PostgresServer(16, SETTINGS) as server:
        yield PostgresOracle(server)


@pytest.fixture(scope="module")
def oracle18() -> Iterator[PostgresOracle]:
    with PostgresServer(18, SETTINGS) as server:
        yield PostgresOracle(server)
