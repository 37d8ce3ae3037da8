"""Servers set up as the history oracle needs them, each with what it has to know of their kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mysql import MariaDbServer, MySqlServer
from tests.support.oracle import mysql, postgres
from tests.support.oracle.mysql import MySqlOracle
from tests.support.oracle.postgres import PostgresOracle
from tests.support.oracle.source import OracleSource
from tests.support.postgres import PostgresServer

MINIMAL = {"binlog_row_metadata": "MINIMAL"}


@pytest.fixture(scope="module")
def oracle16() -> Iterator[PostgresOracle]:
    with PostgresServer(16, postgres.SETTINGS) as server:
        yield PostgresOracle(server)


@pytest.fixture(scope="module")
def oracle18() -> Iterator[PostgresOracle]:
    with PostgresServer(18, postgres.SETTINGS) as server:
        yield PostgresOracle(server)


@pytest.fixture(scope="module")
def oracle_mysql80() -> Iterator[MySqlOracle]:
    with MySqlServer("8.0", mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mariadb1011() -> Iterator[MySqlOracle]:
    with MariaDbServer("10.11", mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mariadb114() -> Iterator[MySqlOracle]:
    with MariaDbServer("11.4", mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mysql80_minimal() -> Iterator[MySqlOracle]:
    """Names of columns, labels and keys are not logged."""
    with MySqlServer("8.0", mysql.SETTINGS | MINIMAL) as server:
        yield MySqlOracle(server, "MINIMAL")


@pytest.fixture(scope="module")
def oracle_mariadb1011_minimal() -> Iterator[MySqlOracle]:
    with MariaDbServer("10.11", mysql.SETTINGS | MINIMAL) as server:
        yield MySqlOracle(server, "MINIMAL")


@pytest.fixture(scope="module", params=["oracle16", "oracle_mysql80", "oracle_mariadb1011"])
def oracle_source(request: pytest.FixtureRequest) -> OracleSource:
    source: OracleSource = request.getfixturevalue(request.param)
    return source
