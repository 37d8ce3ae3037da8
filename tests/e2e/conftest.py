"""Servers set up as the history oracle needs them: small transactions spill, deadlocks end soon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.history_run import SETTINGS

from tidelog.testing.postgres import PostgresServer


@pytest.fixture(scope="module")
def oracle16() -> Iterator[PostgresServer]:
    with PostgresServer(16, SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def oracle18() -> Iterator[PostgresServer]:
    with PostgresServer(18, SETTINGS) as server:
        yield server
