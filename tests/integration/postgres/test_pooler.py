"""A connection pooler in front of PostgreSQL is refused with the way out, at once."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer

from tidelog.cli import main
from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity
from tidelog.errors import TidelogError

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
OPTIONS = "ignore_startup_parameters = options"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not Path(PROGRAM).exists(), reason="pgbouncer is not installed"),
]


class Pooler(EmbeddedServer):
    title = "PgBouncer"

    def __init__(self, server_port: int, more: str) -> None:
        super().__init__("tidelog-pgbouncer-")
        self.port = free_port()
        (self._base / "settings.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = any\n{more}\n"
        )

    def start(self) -> None:
        self._own(self._base)
        with self.log_file.open("ab") as log:
            command = [PROGRAM, str(self._base / "settings.ini")]
            self._spawn(command, log, process_identity(self._account))
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            if time.monotonic() > deadline:
                raise TidelogError(f"PgBouncer did not start:\n{self.log_tail()}")
            time.sleep(0.05)


@pytest.fixture
def pooler(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[Pooler]:
    with Pooler(postgres.port, request.param) as running:
        yield running


@pytest.mark.parametrize(
    ("pooler", "command", "first"),
    [
        ("", "check", "cannot connect to PostgreSQL"),
        ("", "capture", "cannot connect to PostgreSQL"),
        (OPTIONS, "check", "the session has DateStyle ISO, MDY"),
        (OPTIONS, "capture", "cannot connect to PostgreSQL"),  # for replication, which comes first
    ],
    indirect=["pooler"],
)
def test_a_pooler_is_refused(
    pooler: Pooler,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    first: str,
) -> None:
    url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{database.rpartition('/')[2]}"
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main([command, str(file)])
    assert ended.value.code == 2
    told = " ".join("".join(capsys.readouterr()).split())
    assert first in told
    assert "a connection pooler such as PgBouncer answers there" in told
    assert "capture needs the server itself" in told
