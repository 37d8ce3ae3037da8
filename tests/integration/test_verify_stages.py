"""What `tidelog verify` says that it does is what it does: it waits for nothing that is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.event_messages import capturing, wait_for
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.app.sources.kinds import source_kind
from tidelog.app.verification import ComparedSource
from tidelog.config import Config
from tidelog.model.schema import TableName

pytestmark = pytest.mark.integration


def test_postgres(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    name = database.rpartition("/")[2]
    check(lambda sql: postgres.execute(sql, name), "postgres", database, "public", tmp_path)


def test_mysql(mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path) -> None:
    server, name = mysql_family, mysql_family_database
    check(lambda sql: server.execute(sql, name), server.flavor, server.dsn(name), name, tmp_path)


def check(
    execute: Callable[[str], object], kind: str, url: str, namespace: str, directory: Path
) -> None:
    execute("CREATE TABLE t (id int PRIMARY KEY)")
    execute("INSERT INTO t VALUES (1)")
    with capturing(directory, kind, url, f"{namespace}.t") as config:
        wait_for(config, 1)
        with closing(compared(config)) as source:
            deadline = time.monotonic() + 60
            while source._captured_position() < source._readers[0].position():
                assert time.monotonic() < deadline, "an idle source is never covered"
                time.sleep(0.1)
            assert caught_up(source, namespace) == (True, []), "there is nothing to wait for"
    execute("INSERT INTO t VALUES (2)")
    with closing(compared(config)) as source:
        source._max_wait_s = 0.5
        came, told = caught_up(source, namespace)
        assert (came, set(told)) == (False, {"waits for capture"})


def compared(config: Config) -> ComparedSource:
    return ComparedSource(config, source_kind(config))


def caught_up(source: ComparedSource, namespace: str) -> tuple[bool, list[str]]:
    """Whether a copy that has all of the event log has caught up, and what is told meanwhile."""
    told: list[str] = []
    source.on_stage = lambda _table, stage: told.append(stage)
    copy: Any = SimpleNamespace(
        committed=source.log.latest_offset,
        target=SimpleNamespace(source=TableName(namespace, "t")),
    )
    [came] = source.caught_up([copy])
    return came, told
