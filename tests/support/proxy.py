"""What stands between a client and a server, for tests that break what goes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on a port of its own, of ``address``, for clients of the server at ``port``, and
    serves each on a thread. Use it as a context manager.

    ``at``: the port of its own; 0: any that is free.
    """

    def __init__(self, port: int, *, address: str = "127.0.0.1", at: int = 0) -> None:
        self._target = port
        self.address = address
        self._listener = socket.create_server((address, at))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        """What `cut` ends."""

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # who waits in `accept` would keep it open
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for one in self._sockets:
            # A server that writes to one which nobody reads waits until it is closed, and all that
            # wait for every session of the server, as DROP DATABASE does, with it.
            one.close()

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
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """All of a client's connection."""
        raise NotImplementedError
