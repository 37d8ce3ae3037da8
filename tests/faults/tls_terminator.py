"""TLS in front of a PostgreSQL server that ends at a proxy, as many a managed database has it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from pathlib import Path

from tests.support.certificates import write_certificates
from tests.support.proxy import Proxy

RECORD_BYTES = 16384
"""The most that a TLS record holds. PostgreSQL itself writes no more than half of it at once."""
CALM_S = 0.02


class TlsTerminator(Proxy):
    """Forwards a port of its own to ``port``.

    What the server sends within a moment goes out in records as large as TLS has them.

    Args:
        directory: for certificates.
    """

    def __init__(self, port: int, directory: Path) -> None:
        super().__init__(port)
        write_certificates(directory)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "server-cert.pem", directory / "server-key.pem")

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}?sslmode=require"

    def _serve(self, client: socket.socket) -> None:
        client.recv(8)  # SSLRequest
        client.sendall(b"S")
        try:
            secured = self._context.wrap_socket(client, server_side=True)
        except OSError:
            return  # its client has gone
        server = socket.create_connection(("127.0.0.1", self._target))
        self._sockets += [secured, server]
        gathered = b""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed from outside
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
