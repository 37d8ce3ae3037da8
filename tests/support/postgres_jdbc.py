"""PostgreSQL's JDBC driver, for catalogs of Iceberg in a database."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.proxy import Proxy

from tidelog.system.maven import Jar, fetch

_JAR = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.8",
    "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    size=1_116_727,
)


def postgres_jdbc_jar() -> Path:
    """Return the path of the driver's jar."""
    return fetch((_JAR,), "PostgreSQL's JDBC driver")[0]


def jdbc_uri(dsn: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a database as JDBC has it, and the login's properties of a catalog."""
    parts = urlsplit(dsn)
    return (
        f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        {"jdbc.user": parts.username or "", "jdbc.password": parts.password or ""},
    )


class LostCommits(Proxy):
    """What stands between a catalog and its database, or metastore: forwards all, and loses the
    answer to one commit of a table once it is made: it holds the connection, and ends it.

    ``commits``: what a commit's request has in it.
    """

    def __init__(
        self, port: int, *, at: int = 0, commits: bytes = b"UPDATE iceberg_tables"
    ) -> None:
        super().__init__(port, at=at)
        self._commits = commits
        self._hold_s: float | None = None
        self.lost = 0

    def lose_next(self, hold_s: float) -> None:
        """Lose the answer to the next commit, and end its connection after so many seconds."""
        self._hold_s = hold_s

    def _serve(self, client: socket.socket) -> None:
        commits = threading.Event()
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            threading.Thread(
                target=self._to_server, args=(client, server, commits), daemon=True
            ).start()
            while data := server.recv(1 << 16):
                if commits.is_set():
                    hold_s, self._hold_s = self._hold_s or 0.0, None
                    self.lost += 1
                    time.sleep(hold_s)
                    break
                client.sendall(data)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _to_server(
        self, client: socket.socket, server: socket.socket, commits: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self._hold_s is not None and self._commits in data:
                    commits.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)
