"""TLS in front of a PostgreSQL server that ends at a proxy, as many a managed database has it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tidelog.demo.servers.certificates import write_certificates

RECORD_BYTES = 16384
"""The most that a TLS record holds. PostgreSQL itself writes no more than half of it at once."""
CALM_S = 0.02


class TlsTerminator:
    """Forwards a port of its own to ``port``. Use it as a context manager.

    What the server sends within a moment goes out in records as large as TLS has them.

    Args:
        directory: for certificates.
    """

    def __init__(self, port: int, directory: Path) -> None:
        write_certificates(directory)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "server-cert.pem", directory / "server-key.pem")
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}?sslmode=require"

    def __enter__(self) -> TlsTerminator:
        self._run(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._run(self._forward, client)

    def _forward(self, client: socket.socket) -> None:
        client.recv(8)  # SSLRequest
        client.sendall(b"S")
        secured = self._context.wrap_socket(client, server_side=True)
        server = socket.create_connection(("127.0.0.1", self._target))
        self._sockets += [secured, server]
        gathered = b""
        with contextlib.suppress(OSError):
            while True:
                # Of one thread: a TLS connection must not be read and written to at once.
                ready, _, _ = select.select([secured, server], [], [], CALM_S)
                if secured in ready:
                    data = secured.recv(RECORD_BYTES)
                    if not data:
                        break
                    server.sendall(data)
                if server in ready:
                    data = server.recv(1 << 16)
                    if not data:
                        break
                    gathered += data
                while gathered and (server not in ready or len(gathered) >= RECORD_BYTES):
                    secured.sendall(gathered[:RECORD_BYTES])
                    gathered = gathered[RECORD_BYTES:]
        for end in (secured, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
