"""The embedded server's life, which tests of crashes and hangs rely on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import psycopg
import pytest
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration

STARTED = """
import time
from tests.support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_a_paused_server_answers_nobody_and_then_continues(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn()) as connection:
        server.pause()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn(), connect_timeout=2)
        server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_what_is_committed_survives_a_kill_and_a_stop_while_paused(server: PostgresServer) -> None:
    server.execute("CREATE TABLE t AS SELECT 1 AS id")
    server.kill()
    assert not server.running
    server.start()
    server.pause()
    server.stop()
    server.start()
    assert server.execute("SELECT id FROM t") == [(1,)]


def test_a_server_ends_with_the_process_that_started_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
