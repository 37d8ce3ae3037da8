"""Semi-synchronous replication of the source: commits wait for its replicas, never for capture."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_preflight import check, examined, faults, setting
from tests.support.mysql import MariaDbServer, MySqlServer

from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.preflight.checks import _semi_sync

pytestmark = pytest.mark.integration


def test_wait_before_the_commit_is_named(
    mariadb_server: MariaDbServer, mariadb_database: str
) -> None:
    with (
        setting(mariadb_server, "rpl_semi_sync_master_wait_point", "AFTER_SYNC"),
        setting(mariadb_server, "rpl_semi_sync_master_timeout", 10_000),
        setting(mariadb_server, "rpl_semi_sync_master_enabled", 1),
    ):
        found = faults(check(mariadb_server, mariadb_database))
        assert "semi-sync" not in faults(check(mariadb_server, mariadb_database, strategy="gtid"))
    assert "for up to 10 s each" in found["semi-sync"].message
    assert found["semi-sync"].fix.startswith("source.watermarks: gtid")


def status(server: MariaDbServer, name: str) -> str:
    return str(server.execute(f"SHOW STATUS LIKE 'Rpl_semi_sync_master_{name}'")[0][1])


def waits_without_replicas(server: MariaDbServer, database: str) -> bool:
    """Does a commit wait for replicas where none is there, though it is told not to? It does on
    MariaDB 10.11.5.
    """
    server.execute("CREATE TABLE probe (a int PRIMARY KEY)", database)
    before = status(server, "no_times")
    with (
        setting(server, "rpl_semi_sync_master_timeout", 1),
        setting(server, "rpl_semi_sync_master_wait_no_slave", 0),
        setting(server, "rpl_semi_sync_master_enabled", 1),
    ):
        server.execute("INSERT INTO probe VALUES (1)", database)
    return status(server, "no_times") != before


@pytest.mark.parametrize("side", ["master", "source"])
def test_mysql_names_it_by_either_plugin(mysql_server: MySqlServer, side: str) -> None:
    """By the manual's variables: neither comes with the server of these tests."""
    semi_sync = {
        f"rpl_semi_sync_{side}_enabled": "ON",
        f"rpl_semi_sync_{side}_wait_point": "AFTER_SYNC",
        f"rpl_semi_sync_{side}_timeout": "3000",
    }
    with connect(mysql_server.url, purpose="test") as connection:
        here = examined(mysql_server, connection, **semi_sync)
        (warned,) = _semi_sync(here)
        others = list(_semi_sync(replace(here, strategy="gtid")))
    assert (warned.level, "for up to 3 s each" in warned.message) == ("warning", True)
    assert [finding.level for finding in others] == ["ok"]


def test_capture_is_no_replica_that_commits_wait_for(
    mariadb_server: MariaDbServer,
    mariadb_database: str,
) -> None:
    """Were it one, the server would count it, and a commit would wait a minute for what it never
    sends.
    """
    server = mariadb_server
    server.execute("CREATE TABLE t (a int PRIMARY KEY)", mariadb_database)
    settings = {
        "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
        "rpl_semi_sync_master_timeout": 60_000,
        "rpl_semi_sync_master_wait_no_slave": 0,
        "rpl_semi_sync_master_enabled": 1,
    }
    with ExitStack() as stack:
        if waits_without_replicas(server, mariadb_database):
            settings["rpl_semi_sync_master_timeout"] = 100  # a wait tells nothing there
        for name, value in settings.items():
            stack.enter_context(setting(server, name, value))
        capture = LogCapture(server, (f"{mariadb_database}.*",))
        stack.callback(capture.reader.close)
        capture.start()
        capture.poll()
        began = time.monotonic()
        server.execute("INSERT INTO t VALUES (1)", mariadb_database)
        assert time.monotonic() - began < 30
        capture.catch_up()
        assert [row.new for row in capture.rows] == [{"a": 1}]
        assert status(server, "clients") == "0"
