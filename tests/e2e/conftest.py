"""Servers set up as the history oracle needs them, each with what it has to know of their kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing import oracle_mysql, oracle_postgres
from tidelog.testing.mysql import MariaDbServer, MySqlServer
from tidelog.testing.oracle_mysql import MySqlOracle
from tidelog.testing.oracle_postgres import PostgresOracle
from tidelog.testing.oracle_source import OracleSource
from tidelog.testing.postgres import PostgresServer

MINIMAL = {"binlog_row_metadata": "MINIMAL"}


@pytest.fixture(scope="module")
def oracle16() -> Iterator[PostgresOracle]:
    with PostgresServer(16, oracle_postgres.SETTINGS) as server:
        yield PostgresOracle(server)


@pytest.fixture(scope="module")
def oracle18() -> Iterator[PostgresOracle]:
    with PostgresServer(18, oracle_postgres.SETTINGS) as server:
        yield PostgresOracle(server)


@pytest.fixture(scope="module")
def oracle_mysql80() -> Iterator[MySqlOracle]:
    with MySqlServer("8.0", oracle_mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mariadb1011() -> Iterator[MySqlOracle]:
    with MariaDbServer("10.11", oracle_mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mariadb114() -> Iterator[MySqlOracle]:
    with MariaDbServer("11.4", oracle_mysql.SETTINGS) as server:
        yield MySqlOracle(server)


@pytest.fixture(scope="module")
def oracle_mysql80_minimal() -> Iterator[MySqlOracle]:
    """Names of columns, labels and keys are not logged."""
    with MySqlServer("8.0", oracle_mysql.SETTINGS | MINIMAL) as server:
        yield MySqlOracle(server, "MINIMAL")


@pytest.fixture(scope="module")
def oracle_mariadb1011_minimal() -> Iterator[MySqlOracle]:
    with MariaDbServer("10.11", oracle_mysql.SETTINGS | MINIMAL) as server:
        yield MySqlOracle(server, "MINIMAL")


@pytest.fixture(scope="module", params=["oracle16", "oracle_mysql80", "oracle_mariadb1011"])
def oracle_source(request: pytest.FixtureRequest) -> OracleSource:
    source: OracleSource = request.getfixturevalue(request.param)
    return source
