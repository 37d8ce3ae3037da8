"""A network between a client and a PostgreSQL server that stops forwarding and stays open."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType


class SilentProxy:
    """Forwards a port of its own to ``port``. Use it as a context manager.

    Connections are without TLS: what the server sends is messages of a letter and a length.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._behind = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self.refuses = threading.Event()
        """Set: new connections are taken and nothing of them is forwarded."""
        self.pause_s = 0.0
        """Between two messages of the server."""
        self.stalled = threading.Event()
        """Set once something was not forwarded."""

    def __enter__(self) -> SilentProxy:
        self._run(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        self.cut()

    def stall_behind(self, letter: bytes) -> None:
        """From now on nothing more of a connection comes behind a message of this letter, e.g.
        ``E`` (ErrorResponse).
        """
        self._behind = letter

    def cut(self) -> None:
        """End all connections."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                if self.refuses.is_set():
                    self.stalled.set()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(server)
                self._run(self._to_server, client, server)
                self._run(self._to_client, server, client)

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
