"""Semi-synchronous replication of the source: commits wait for its replicas, never for capture."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_preflight import check, examined, faults, setting

from tidelog.demo.servers.mysql import MariaDbServer, MySqlServer
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.preflight.binlog import _semi_sync

pytestmark = pytest.mark.integration


def test_wait_before_the_commit_is_named(
    mariadb_server: MariaDbServer, mariadb_database: str
) -> None:
    with (
        setting(mariadb_server, "rpl_semi_sync_master_wait_point", "AFTER_SYNC"),
        setting(mariadb_server, "rpl_semi_sync_master_enabled", 1),
    ):
        found = faults(check(mariadb_server, mariadb_database))
        assert "semi-sync" not in faults(check(mariadb_server, mariadb_database, strategy="gtid"))
    assert "for up to 10 s each" in found["semi-sync"].message
    assert found["semi-sync"].fix.startswith("source.watermarks: gtid")


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
    assert (warned.level, "for up to 3 s each" in warned.message) == ("warn", True)
    assert [finding.level for finding in others] == ["ok"]


def test_capture_is_no_replica_that_commits_wait_for(
    mariadb_server: MariaDbServer,
    mariadb_database: str,
) -> None:
    """Were it one, a commit would wait a minute for what it never sends."""
    mariadb_server.execute("CREATE TABLE t (a int PRIMARY KEY)", mariadb_database)
    settings = {
        "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
        "rpl_semi_sync_master_timeout": 60_000,
        "rpl_semi_sync_master_wait_no_slave": 0,
        "rpl_semi_sync_master_enabled": 1,
    }
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(setting(mariadb_server, name, value))
        capture = LogCapture(mariadb_server, (f"{mariadb_database}.*",))
        stack.callback(capture.reader.close)
        capture.start()
        capture.poll()
        began = time.monotonic()
        mariadb_server.execute("INSERT INTO t VALUES (1)", mariadb_database)
        assert time.monotonic() - began < 30
        capture.catch_up()
        assert [row.new for row in capture.rows] == [{"a": 1}]
        status = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
        assert mariadb_server.execute(status)[0][1] == "0"
