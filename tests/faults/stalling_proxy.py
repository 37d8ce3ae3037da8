"""A network between capture and PostgreSQL that stops at a statement, and goes on when told to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit


def simple_query(statement: str) -> bytes:
    """The protocol's message that runs just this (manual, "Message Formats")."""
    text = statement.encode() + b"\0"
    return b"Q" + struct.pack(">i", len(text) + 4) + text


class StallingProxy:
    """Forwards a port of its own to the server of ``dsn``. Use it as a context manager.

    Once a test has armed it, a connection stops as soon as its client sends the statement: nothing
    of it is forwarded any more until `release`. All other connections go on.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = urlsplit(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._statement: bytes | None = None
        self._left = 0
        self.stalled = threading.Event()
        self._go_on = threading.Event()

    @property
    def url(self) -> str:
        """The same database by way of the proxy."""
        user, at, _host = self._dsn.netloc.rpartition("@")
        port = self._listener.getsockname()[1]
        return urlunsplit(self._dsn._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    def arm(self, statement: bytes, *, passing: int = 0) -> None:
        """Stop at the next message that holds ``statement``, after so many that pass."""
        with self._lock:
            self._statement, self._left = statement, passing
            self.stalled.clear()
            self._go_on.clear()

    def release(self) -> None:
        with self._lock:
            self._statement = None
        self._go_on.set()

    def __enter__(self) -> StallingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(
                    (self._dsn.hostname or "127.0.0.1", self._dsn.port or 5432)
                )
                for source, sink, sends in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._forward, args=(source, sink, sends), daemon=True
                    ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, sends: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if sends and self._stops_at(data):
                    self.stalled.set()
                    self._go_on.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _stops_at(self, data: bytes) -> bool:
        with self._lock:
            if self._statement is None or self._statement not in data:
                return False
            self._left -= 1
            if self._left >= 0:
                return False
            self._statement = None
            return True
