"""A network between a client and a PostgreSQL server that stops forwarding and stays open."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.support.proxy import Proxy


class SilentProxy(Proxy):
    """Forwards a port of its own to ``port``.

    Connections are without TLS: what the server sends is messages of a letter and a length.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._behind = b""
        self.refuses = threading.Event()
        """Set: new connections are taken and nothing of them is forwarded."""
        self.pause_s = 0.0
        """Between two messages of the server."""
        self.stalled = threading.Event()
        """Set once something was not forwarded."""

    def stall_behind(self, letter: bytes) -> None:
        """From now on nothing more of a connection comes behind a message of this letter, e.g.
        ``E`` (ErrorResponse).
        """
        self._behind = letter

    def _serve(self, client: socket.socket) -> None:
        self._sockets.append(client)
        if self.refuses.is_set():
            self.stalled.set()
            return
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            self._run(self._to_server, client, server)
            self._to_client(server, client)

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while part := server.recv(1 << 16):
                data += part
                while len(data) >= 5:
                    size = 1 + int.from_bytes(data[1:5], "big")
                    if len(data) < size:
                        break
                    client.sendall(data[:size])
                    time.sleep(self.pause_s)
                    if self._behind and data[:1] == self._behind:
                        self.stalled.set()
                        return
                    data = data[size:]
            client.shutdown(socket.SHUT_WR)
