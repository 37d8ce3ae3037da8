"""A connection to the log on which nothing comes any more is given up if nobody answers another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from tests.campaign.paths import PathProxy
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.errors import ConnectionLostError
from tidelog.sources.mysql.stream import replication as binlog
from tidelog.sources.mysql.stream.replication import BinlogStream
from tidelog.sources.postgres.connect import lsn_value
from tidelog.sources.postgres.stream.replication import ReplicationStream
from tidelog.system import peer_check

pytestmark = pytest.mark.integration
SOON_S = 20.0
"""Less than a server may be busy."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_check, "CHECK_AFTER_S", 2.0)
    monkeypatch.setattr(peer_check, "ANSWER_S", 2.0)
    monkeypatch.setattr(peer_check, "CHECK_AGAIN_S", 1.0)
    monkeypatch.setattr(binlog, "HEARTBEAT_S", 0.5)


@contextmanager
def slot(dsn: str) -> Iterator[tuple[psycopg.Connection[tuple[str]], str, int]]:
    """A table ``t``, published by ``p``, and a slot with a place to begin at."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        name = sql.info.dbname
        sql.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        row = sql.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (name,)
        ).fetchone()
        assert row is not None
        yield sql, name, lsn_value(row[0])


def given_up(receive: Callable[[float], object], proxy: PathProxy) -> float:
    """After how many seconds of silence."""

    def receive_on() -> None:
        while time.monotonic() < began + 3 * SOON_S:
            receive(0.2)

    proxy.silence()
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="the server sent nothing for"):
        receive_on()
    return time.monotonic() - began


def test_postgres(database: str) -> None:
    begin, _, rest = database.rpartition("@")
    port = int(rest.partition("/")[0].rpartition(":")[2])
    with slot(database) as (_, name, place), PathProxy(port) as proxy:
        there = f"{begin}@127.0.0.1:{proxy.port}/{name}"
        with closing(ReplicationStream(there)) as stream:
            stream.start(name, place, ["p"])
            stream.receive(1.0)
            assert given_up(stream.receive, proxy) < SOON_S


def test_a_walsender_that_is_busy_is_waited_for(database: str) -> None:
    """It may say nothing while it decodes; the server answers others."""
    with slot(database) as (sql, name, place), closing(ReplicationStream(database)) as stream:
        stream.start(name, place, ["p"])
        stream.receive(1.0)
        row = sql.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (name,)
        )
        (pid,) = row.fetchone() or (0,)
        os.kill(int(pid), signal.SIGSTOP)
        try:
            until = time.monotonic() + 8.0
            while time.monotonic() < until:
                stream.receive(0.2)
        finally:
            os.kill(int(pid), signal.SIGCONT)
        sql.execute("INSERT INTO t VALUES (1)")
        until = time.monotonic() + SOON_S
        while (received := stream.receive(0.2)) is None or len(received.offsets) == 1:
            assert time.monotonic() < until


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> MySqlFamilyServer:
    found: MySqlFamilyServer = request.getfixturevalue(request.param)
    return found


def test_mysql(server: MySqlFamilyServer) -> None:
    file, size = server.execute("SHOW BINARY LOGS")[-1][:2]
    scheme = "mariadb" if isinstance(server, MariaDbServer) else "mysql"
    with (
        PathProxy(server.port) as proxy,
        closing(BinlogStream(f"{scheme}://root@127.0.0.1:{proxy.port}/", None)) as stream,
    ):
        stream.start(str(file), int(size))
        until = time.monotonic() + 6.0  # an idle server is not silent
        while time.monotonic() < until:
            stream.receive(0.2)
        assert given_up(stream.receive, proxy) < SOON_S
