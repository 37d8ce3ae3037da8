"""A binlog that is not read for a while: paused by a person, and about to be removed by age."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.test_preflight import setting
from tests.integration.mysql.test_source_docs import capturing
from tests.support.mysql import MySqlFamilyServer

from tidelog import app
from tidelog.codecs.mysql import flavor
from tidelog.config import Config, parse_config
from tidelog.control.commands import PauseLog, ResumeLog, StartDump

pytestmark = pytest.mark.integration

PATIENCE_S = 90.0


def configured(server: MySqlFamilyServer, database: str, directory: Path) -> Config:
    kind = type(server).__name__.removesuffix("Server").lower()
    return parse_config(
        f"source: {{kind: {kind}, url: '{server.dsn(database)}', tables: ['{database}.t'], "
        "snapshot: no_data, when_log_in_danger: pause_dumps}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n",
        "test",
        directory,
        {},
    )


def send(config: Config, command: Any) -> None:
    answer = app.send_command(config, command, timeout_s=30).to_dict()
    assert answer["error"] is None, answer


def wait_for(config: Config, what: Any, failures: list[BaseException]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not what(status := app.status(config).document):
        assert not failures, failures
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return status


def inserted(config: Config) -> list[int]:
    return [event["after"]["id"] for event in app.read_log(config) if event["op"] == "c"]


def test_a_paused_log_continues_though_the_server_gave_the_connection_up(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it sends nobody takes, until its patience ends."""
    monkeypatch.setattr(
        flavor, "TIMEOUT_SETTINGS", {**flavor.TIMEOUT_SETTINGS, "net_write_timeout": "1"}
    )
    name = mysql_family_database
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)", name)
    config = configured(mysql_family, name, tmp_path)
    with capturing(config) as failures:
        wait_for(config, lambda s: s.get("log_guard"), failures)
        mysql_family.execute("INSERT INTO t VALUES (1, '')", name)
        wait_for(config, lambda s: s["capture"]["records"], failures)
        send(config, PauseLog(by="a test"))
        for number in range(2, 32):
            mysql_family.execute(f"INSERT INTO t VALUES ({number}, repeat('x', 1000000))", name)
        time.sleep(4)
        assert inserted(config) == [1]
        send(config, ResumeLog())
        wait_for(config, lambda _: len(inserted(config)) >= 31, failures)
        assert inserted(config) == list(range(1, 32))


def test_dumps_wait_while_the_binlog_is_about_to_be_removed(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    name = mysql_family_database
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)", name)
    config = configured(mysql_family, name, tmp_path)
    with setting(mysql_family, "binlog_expire_logs_seconds", 6), capturing(config) as failures:
        wait_for(config, lambda s: s.get("log_guard"), failures)
        send(config, PauseLog(by="a test"))
        mysql_family.execute("INSERT INTO t VALUES (1, '')", name)
        send(config, StartDump(dump_id="d1", tables=(f"{name}.t",)))
        status = wait_for(config, lambda s: len(s["dumps_held"]) == 2, failures)
        assert {hold["why"] for hold in status["dumps_held"]} == {"log_paused", "log_in_danger"}
        told = {each["kind"]: each for each in status["overview"]["problems"]}
        assert told["log-nearly-lost"]["severity"] == "critical"
        assert told["log-reading-paused"]["severity"] in ("warning", "critical")
        send(config, ResumeLog())
        wait_for(config, lambda s: not s["dumps_held"], failures)
        assert app.dump_wait(config, "d1", timeout_s=60).to_dict()["status"] == "completed"
        assert inserted(config) == [1]
