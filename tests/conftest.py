"""Fixtures over the embedded PostgreSQL: a server per test process, a fresh database per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tidelog.testing.postgres import PostgresServer

_database_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    with PostgresServer(version=16) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    with PostgresServer(version=18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(postgres16: PostgresServer) -> PostgresServer:
    """The server that tests use unless they ask for a version."""
    return postgres16


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The dsn of a fresh database, dropped with its slots at the end."""
    name = f"test_{next(_database_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)
