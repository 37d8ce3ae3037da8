"""An account that may hold fewer connections than a dump needs: `check` and the status say so, and
the dump continues by itself once it may hold more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.config import Config, parse_config
from tidelog.sources.mysql.preflight import checks as mysql_checks
from tidelog.sources.postgres.preflight import checks as postgres_checks

pytestmark = pytest.mark.integration


class Account:
    """One that captures a table of two rows; ``limit(n)`` sets how many connections it may hold."""

    def __init__(
        self,
        directory: Path,
        source: dict[str, Any],
        limit: Callable[[int], Any],
        least: int,
        words: str,
    ) -> None:
        self.limit, self.least, self.words = limit, least, words
        text = (
            f"source: {json.dumps(source)}\nlog: {{path: ./log}}\n"
            "state: {url: 'sqlite:///state.db'}\n"
        )
        self.config: Config = parse_config(text, "tidelog.yaml", directory, {})

    def finding(self) -> str:
        return str(_found([each.to_dict() for each in app.check(self.config)]))


@pytest.fixture
def postgres_account(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Account]:
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE ROLE few LOGIN REPLICATION")
        sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        sql.execute("INSERT INTO t VALUES (1), (2)")
        sql.execute("ALTER TABLE t OWNER TO few")
        name = sql.info.dbname
        sql.execute(f"GRANT CREATE ON DATABASE {name} TO few")
        try:
            yield Account(
                tmp_path,
                {"kind": "postgres", "url": postgres.dsn(name, user="few"), "slot": name},
                lambda n: sql.execute(f"ALTER ROLE few CONNECTION LIMIT {n}"),
                postgres_checks.LEAST_CONNECTIONS,
                "ALTER ROLE <user> CONNECTION LIMIT",
            )
        finally:
            sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            sql.execute("DROP OWNED BY few CASCADE")
            sql.execute("DROP ROLE few")


@pytest.fixture
def mysql_account(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> Iterator[Account]:
    name = f"few_{mysql_family_database}"
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    mysql_family.execute("INSERT INTO t VALUES (1), (2)", mysql_family_database)
    url = mysql_family.create_user(name, "s3cret", privileges=["ALL"])
    try:
        yield Account(
            tmp_path,
            {
                "kind": mysql_family.flavor,
                "url": url,
                "server_id": 7001,
                "tables": [f"{mysql_family_database}.*"],
            },
            lambda n: mysql_family.execute(f"ALTER USER {name}@'%' WITH MAX_USER_CONNECTIONS {n}"),
            mysql_checks.LEAST_CONNECTIONS,
            "WITH MAX_USER_CONNECTIONS",
        )
    finally:
        mysql_family.execute(f"DROP USER {name}")


def test_dump_that_gets_no_connection_of_postgres_is_reported_and_continues(
    postgres_account: Account,
) -> None:
    _told_and_goes_on(postgres_account)


def test_dump_that_gets_no_connection_of_mysql_is_reported_and_continues(
    mysql_account: Account,
) -> None:
    _told_and_goes_on(mysql_account)


def _told_and_goes_on(account: Account) -> None:
    account.limit(account.least + 5)
    assert account.finding() == "ok"
    account.limit(account.least)
    assert account.finding() == "warning"
    account.limit(account.least - 1)
    assert account.finding() == "error"
    stop = threading.Event()
    capture = threading.Thread(target=lambda: app.run_capture(account.config, stop_event=stop))
    capture.start()
    try:
        status = _wait(account.config, lambda found: found["chunks_unanswered"])
        assert account.words in status["chunks_unanswered"]["error"]
        account.limit(account.least)
        status = _wait(account.config, lambda found: found["dumps"][0]["status"] == "completed")
        assert status["chunks_unanswered"] is None
    finally:
        stop.set()
        capture.join(60)
        account.limit(account.least + 5)


def _found(findings: list[dict[str, Any]]) -> Any:
    return next(each["level"] for each in findings if each["check"] == "connections")


def _wait(config: Config, met: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    found: dict[str, Any] = {}
    while time.monotonic() < deadline:
        found = app.status(config).document
        if found.get("dumps") and met(found):
            return found
        time.sleep(0.1)
    raise AssertionError(found)
