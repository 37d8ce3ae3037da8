"""Log readers over fresh databases of both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.support.mysql import MySqlFamilyServer


@pytest.fixture
def sql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> Iterator[pymysql.connections.Connection[Any]]:
    """A session in a fresh database."""
    with mysql_family.connect(mysql_family_database) as connection:
        yield connection


@pytest.fixture
def make_capture(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> Iterator[Callable[..., LogCapture]]:
    """Makes log readers of the fresh database's tables."""
    made: list[LogCapture] = []

    def make(**options: Any) -> LogCapture:
        names = {"tables", "schemas", "url", "keep_rows", "server"}
        plain = {name: options.pop(name) for name in names & set(options)}
        plain.setdefault("tables", (f"{mysql_family_database}.*",))
        plain.setdefault("server", mysql_family)
        made.append(LogCapture(**plain, options=options))
        return made[-1]

    yield make
    for capture in made:
        capture.reader.close()


@pytest.fixture
def capture(make_capture: Callable[..., LogCapture]) -> LogCapture:
    return make_capture()


@pytest.fixture
def unlogged(mysql_family: MySqlFamilyServer) -> None:
    """The server does not log what foreign keys do."""
    if mysql_family.flavor == "mysql" and mysql_family.version >= (9, 6):
        pytest.skip("MySQL logs what foreign keys do since 9.6")
