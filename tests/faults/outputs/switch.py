"""A network between the outputs and a server that refuses, or is slow."""

from __future__ import annotations

import contextlib
import socket
import time

from tests.support.proxy import Proxy


class Switch(Proxy):
    """Forwards a port of its own to ``port``."""

    pause_s = 0.0
    """Before each piece of what either end sends."""

    def refuse(self) -> None:
        """End all connections, and take none, as where nothing listens."""
        with contextlib.suppress(OSError):  # who waits in `accept` would keep it open
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def listen(self) -> None:
        self._listener = socket.create_server((self.address, self.port))
        self._run(self._accept)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server = socket.create_connection((self.address, self._target))
            self._sockets += [client, server]
            self._run(self._forward, client, server)
            self._forward(server, client)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self.pause_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
