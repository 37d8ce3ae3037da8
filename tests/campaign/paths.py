"""The network between one part and another, which can be cut, silenced and slowed down."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.support.proxy import Proxy


class PathProxy(Proxy):
    """Forwards a port of its own to ``port``. Use it as a context manager."""

    def __init__(self, port: int, *, address: str = "127.0.0.1", at: int = 0) -> None:
        super().__init__(port, address=address, at=at)
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._delay_s = 0.0

    def refuse(self) -> None:
        """End all connections, and take no new ones."""
        self._refuses = True
        self.cut()

    def lead_to(self, port: int) -> None:
        """New connections lead to this port; what is open stays."""
        self._target = port

    def silence(self) -> None:
        """Bring nothing more to its end. Connections stay, and new ones get no answer."""
        self._flows.clear()

    def slow_down(self, delay_s: float) -> None:
        """Bring everything later than it came."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """What was kept is brought to its end now, as TCP would."""
        self._refuses, self._delay_s = False, 0.0
        self._flows.set()

    def cut(self) -> None:
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        self._sockets.append(client)
        try:
            self._flows.wait()
            if self._refuses:
                return
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._target)) as server,
            ):
                self._sockets.append(server)
                try:
                    back = threading.Thread(
                        target=self._forward, args=(server, client), daemon=True
                    )
                    back.start()
                    self._forward(client, server)
                    back.join()
                finally:
                    self._sockets.remove(server)
        finally:
            self._sockets.remove(client)
            client.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._delay_s:
                    time.sleep(self._delay_s)
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
