"""A network between capture and PostgreSQL that stops at a statement, and continues on command.

It is a process of its own: libpq waits for some answers without letting other threads of its
process run, and a proxy among these would never deliver them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

_processes = multiprocessing.get_context("spawn")


def simple_query(statement: str) -> bytes:
    """The protocol's message that runs just this (manual, "Message Formats")."""
    text = statement.encode() + b"\0"
    return b"Q" + struct.pack(">i", len(text) + 4) + text


class StallingProxy:
    """Forwards a port of its own to the server of ``dsn``. Use it as a context manager.

    Once a test has armed it, a connection stops as soon as its client sends the statement: nothing
    of it is forwarded to the server any more until `release`. All other connections go on.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = urlsplit(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self.stalled = _processes.Event()
        self._go_on = _processes.Event()
        self._orders, orders = _processes.Pipe()
        server = (self._dsn.hostname or "127.0.0.1", self._dsn.port or 5432)
        self._process = _processes.Process(
            target=_run, args=(self._listener, server, orders, self.stalled, self._go_on)
        )

    @property
    def url(self) -> str:
        """The same database by way of the proxy."""
        user, at, _host = self._dsn.netloc.rpartition("@")
        return urlunsplit(self._dsn._replace(netloc=f"{user}{at}127.0.0.1:{self._port}"))

    def arm(self, statement: bytes, *, passing: int = 0) -> None:
        """Stop at the next message that holds ``statement``, after so many that pass."""
        self.stalled.clear()
        self._go_on.clear()
        self._order((statement, passing))

    def release(self) -> None:
        self._order((None, 0))
        self._go_on.set()

    def _order(self, order: tuple[bytes | None, int]) -> None:
        self._orders.send(order)
        self._orders.recv()  # from now on

    def __enter__(self) -> StallingProxy:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.join()


class _Forwarding:
    def __init__(self, stalled: Event, go_on: Event) -> None:
        self._lock = threading.Lock()
        self._statement: bytes | None = None
        self._left = 0
        self._stalled = stalled
        self._go_on = go_on

    def obey(self, orders: Connection) -> None:
        with contextlib.suppress(EOFError):
            while True:
                order = orders.recv()
                with self._lock:
                    self._statement, self._left = order
                orders.send(True)

    def forward(self, source: socket.socket, sink: socket.socket, *, sends: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if sends and self._stops_at(data):
                    self._stalled.set()
                    self._go_on.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _stops_at(self, data: bytes) -> bool:
        with self._lock:
            if self._statement is None or self._statement not in data:
                return False
            self._left -= 1
            if self._left >= 0:
                return False
            self._statement = None
            return True


def _run(
    listener: socket.socket,
    server: tuple[str, int],
    orders: Connection,
    stalled: Event,
    go_on: Event,
) -> None:
    forwarding = _Forwarding(stalled, go_on)
    threading.Thread(target=forwarding.obey, args=(orders,), daemon=True).start()
    while True:
        client, _ = listener.accept()
        there = socket.create_connection(server)
        for source, sink, sends in ((client, there, True), (there, client, False)):
            threading.Thread(
                target=forwarding.forward, args=(source, sink), kwargs={"sends": sends}, daemon=True
            ).start()
