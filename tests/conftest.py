"""Fixtures over embedded servers: one of each per test process, a fresh database per test."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from tests import left_out
from tests.first import mark_first
from tests.left_out import pytest_runtest_makereport, pytest_unconfigure  # noqa: F401
from tests.mysql_family import (  # noqa: F401
    mark_mysql_family,
    pytest_runtest_protocol,
    pytest_sessionstart,
)
from tests.small_disk import mounted
from tests.support.azure import AzureServer
from tests.support.gcs import GcsServer
from tests.support.hadoop import hdfs_server
from tests.support.kafka import KafkaServer
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.zookeeper import ZooKeeperServer
from tests.versions import mark_versions

from tidelog.demo.servers import postgres as postgres_servers

if TYPE_CHECKING:  # slow to import, and few tests have engines
    from tests.support.make_engine import MakeEngine

_database_numbers = itertools.count(1)

# What a slow machine takes longer for is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres-version",
        type=int,
        default=postgres_servers.default_version,
        help="the version of PostgreSQL that tests use which do not ask for one (14 to 18)",
    )


def pytest_configure(config: pytest.Config) -> None:
    left_out.pytest_configure(config)
    postgres_servers.default_version = config.getoption("--postgres-version")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_first(items)
    mark_mysql_family(items)
    mark_versions(items)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    with PostgresServer(version=16) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    with PostgresServer(version=18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """The server that tests use unless they ask for a version."""
    version = postgres_servers.default_version
    if version in (16, 18):
        yield request.getfixturevalue(f"postgres{version}")
        return
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The dsn of a fresh database, dropped with its slots at the end."""
    name = f"test_{next(_database_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySqlServer]:
    with MySqlServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    with AzureServer() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[str]:
    with hdfs_server() as url:
        yield url


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    pytest.importorskip("kazoo", reason="ZooKeeper's client: pip install tidelog[zookeeper]")
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A broker with a listener that asks for a password as well."""
    with KafkaServer(sasl_password="kafka-secret") as server:
        yield server


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def mysql_family(request: pytest.FixtureRequest) -> MySqlFamilyServer:
    """Both servers, one after the other."""
    server: MySqlFamilyServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def mysql_database(mysql_server: MySqlServer) -> Iterator[str]:
    """The name of a fresh database of MySQL, dropped at the end."""
    yield from _fresh(mysql_server)


@pytest.fixture
def mariadb_database(mariadb_server: MariaDbServer) -> Iterator[str]:
    """The name of a fresh database of MariaDB, dropped at the end."""
    yield from _fresh(mariadb_server)


@pytest.fixture
def mysql_family_database(mysql_family: MySqlFamilyServer) -> Iterator[str]:
    """The name of a fresh database of each server of `mysql_family`, dropped at the end."""
    yield from _fresh(mysql_family)


def _fresh(server: MySqlFamilyServer) -> Iterator[str]:
    name = f"test_{next(_database_numbers)}"
    server.create_database(name)
    yield name
    server.drop_database(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; `tests.small_disk.grow` gives it more."""
    with mounted(tmp_path / "disk") as place:
        yield place


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """Makes the engines of a test that needs them over a server. At its end all have ended."""
    from tests.support.make_engine import MakeEngine

    found = MakeEngine(tmp_path)
    yield found
    found.end()


@pytest.fixture(autouse=True)
def threads_of_others() -> None:
    """See `tests.support.engines.no_threads_left`."""
    engines = sys.modules.get("tests.support.engines")
    if engines is not None:
        engines.others = set(threading.enumerate())
