"""docs/how-to/capture-from-a-standby.md, step by step on real servers."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.pair import Pair
from tests.support.logged_rows import logged_rows
from tests.support.postgres import PostgresServer
from tests.support.standby import PostgresStandby

from tidelog import app
from tidelog.app.sources.preflight import check
from tidelog.config import parse_config
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "capture-from-a-standby.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(server: PostgresServer, sql: str) -> None:
    for statement in sql.split(";"):
        if statement.strip():
            server.execute(statement, "shop")


@pytest.mark.parametrize("version", [16, 18])
def test_page_leads_to_a_capture(version: int, tmp_path: Path) -> None:
    on_primary, on_standby, log_snapshot = blocks("sql")
    assert [text.splitlines()[0] for text in (on_primary, on_standby, log_snapshot)] == [
        "-- on the primary",
        "-- on the standby",
        "-- on the primary",
    ]
    with PostgresServer(version) as primary:
        primary.create_database("shop")
        primary.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)", "shop")
        primary.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 100) g", "shop")
        run(primary, on_primary)
        with PostgresStandby(primary, {"hot_standby_feedback": "off"}) as standby:
            # Its own command line would win over ALTER SYSTEM.
            del standby.settings["hot_standby_feedback"]
            run(standby, on_standby)
            standby.restart()
            standby.replayed()
            (yaml,) = blocks("yaml")
            url = standby.dsn("shop", user="tidelog")
            text = re.sub(r'url: "postgresql://[^"]*"', f'url: "{url}"', yaml)
            config = parse_config(text, "page", tmp_path, {})
            findings = [each.to_dict() for each in check(config)]
            assert not [f for f in findings if f["level"] == "error"], findings
            assert [f["level"] for f in findings if f["check"] == "standby"] == ["ok", "ok"]
            dumped(config, Pair(primary, standby, "shop", psycopg.connect(primary.dsn("shop"))))


def dumped(config: Any, pair: Pair) -> None:
    """Capture until the table's initial dump and a change are in the event log."""
    stop, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def seen() -> bool:
        return logged_rows(config, "public.orders") >= 101

    def capture() -> None:
        try:
            app.run_capture(config, stop_event=stop)
        except BaseException as failure:  # noqa: BLE001 - asserted below
            failures.append(failure)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        with pair.logging_snapshots():
            for _ in range(300):
                if EventLog.exists(str(config.log.path)) or failures:
                    break
                done.wait(0.1)
            pair.primary.execute("INSERT INTO orders VALUES (101, 1)", "shop")
            for _ in range(300):
                if seen() or failures:
                    break
                done.wait(0.1)
        assert not failures, failures
        assert seen()
    finally:
        stop.set()
        thread.join(30)
        pair.sql.close()
