"""A network that loses what goes through it, between a client and an HTTP server."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from tests.support.proxy import Proxy
from tests.support.s3 import S3Server

from tidelog.eventlog.storage import OPTIONS_VARIABLE, provide_options

_END = b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>Forbidden</Message></Error>"
_FALSE_ANSWERS = {
    "done_500": b"HTTP/1.1 500 Internal Server Error" + _END,
    "done_503": b"HTTP/1.1 503 Slow Down" + _END,
}
_ANSWERS = {
    "busy": b"HTTP/1.1 503 Slow Down" + _END,
    "forbid": b"HTTP/1.1 403 Forbidden" + _END,
    "full": b"HTTP/1.1 507 Insufficient Storage" + _END,
    "skew": b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(_SKEWED), _SKEWED),
}


class FaultyNetwork(Proxy):
    """Forwards a port of its own to ``port``.

    ``one_at_a_time``: a request is forwarded once the one before it is answered, whatever the
    connection. A server that looks at conditions before it writes then does both as one.

    ``delay_s``: seconds that each request waits before it is forwarded.

    A test arms one fault at a time; it befalls each request whose first line begins with
    ``request``, as often as ``times`` says, or a ``share`` of these:

    - ``busy``: the request is answered by 503 and not forwarded.
    - ``forbid``, ``full``: the same by 403 and 507.
    - ``skew``: by 403 as well; the body, which a HEAD has not, says that our clock is wrong.
    - ``lose_answer``: it is forwarded; its answer is not, the connection breaks.
    - ``done_500``, ``done_503``: it is forwarded and done, and answered by 500 or 503 all the same.
    - ``delay``: it is kept, the connection breaks, and `deliver` forwards it later.
    - ``hold``: the same, but the connection stays, and gets the answer then.
    """

    def __init__(
        self,
        port: int,
        *,
        one_at_a_time: bool = False,
        address: str = "127.0.0.1",
        delay_s: float = 0.0,
    ) -> None:
        super().__init__(port, address=address)
        self._turn: contextlib.AbstractContextManager[object] = (
            threading.Lock() if one_at_a_time else contextlib.nullcontext()
        )
        self._lock = threading.Lock()
        self._delay_s = delay_s
        self._fault, self._request, self._times, self._share = "", b"", 0, 1.0
        self._rng = random.Random(0)
        self.struck = 0
        self.asked: list[str] = []
        """The first line of each request."""
        self.asked_at: list[float] = []
        """When each came, by `time.time`."""
        self.delayed: list[bytes] = []
        self._held: list[tuple[bytes, SimpleQueue[bytes]]] = []

    def arm(self, fault: str, request: str, times: int = 1, share: float = 1.0) -> None:
        with self._lock:
            self._fault, self._request, self._times = fault, request.encode(), times
            self._share = share
            self.struck = 0

    def disarm(self) -> None:
        self.arm("", "", 0)

    def deliver(self) -> list[bytes]:
        """Forward what was delayed; the first line of each answer."""
        answers = []
        held, self._held = self._held, []
        for request in self.delayed:
            with socket.create_connection(("127.0.0.1", self._target), timeout=30) as server:
                server.sendall(request)
                answer = _message(server)
            answers.append(answer.partition(b"\r\n")[0])
            for kept, client in held:
                if kept is request:
                    client.put(answer)
        self.delayed = []
        return answers

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while True:
                request = _message(client)
                if not request:
                    return
                self.asked.append(request.partition(b"\r\n")[0].decode())
                self.asked_at.append(time.time())
                if self._delay_s:
                    time.sleep(self._delay_s)
                fault = self._fault_of(request)
                if fault in _ANSWERS:
                    head, end, body = _ANSWERS[fault].partition(b"\r\n\r\n")
                    client.sendall(head + end + (b"" if request.startswith(b"HEAD") else body))
                    return
                if fault == "delay":
                    self.delayed.append(request)
                    return
                if fault == "hold":
                    answered: SimpleQueue[bytes] = SimpleQueue()
                    self._held.append((request, answered))
                    self.delayed.append(request)
                    client.sendall(answered.get())
                    continue
                with (
                    self._turn,
                    socket.create_connection(("127.0.0.1", self._target), timeout=30) as server,
                ):
                    server.sendall(request)
                    answer = _message(server, to_head=request.startswith(b"HEAD"))
                if fault == "lose_answer" or not answer:  # the server has ended
                    return
                if fault in _FALSE_ANSWERS:
                    client.sendall(_FALSE_ANSWERS[fault])
                    return
                client.sendall(answer)

    def _fault_of(self, request: bytes) -> str:
        with self._lock:
            meant = self._times and request.startswith(self._request)
            if meant and (self._share == 1 or self._rng.random() < self._share):
                self._times -= 1
                self.struck += 1
                return self._fault
            return ""


def _message(source: socket.socket, *, to_head: bool = False) -> bytes:
    """One request or answer, with its body; empty at the end of the stream."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = source.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, _ = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"expect" in fields:  # a client that sends the body when it is asked to: the server is not
        source.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = head.split(b"\r\n")
        kept = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
        head, data = kept, kept + data[len(head) :]
    length = 0 if to_head else int(fields.get(b"content-length", b"0"))
    chunked = b"chunked" in fields.get(b"transfer-encoding", b"") and not to_head
    while not data.endswith(b"0\r\n\r\n") if chunked else len(data) < len(head) + 4 + length:
        part = source.recv(65_536)
        if not part:
            break
        data += part
    return data


@contextlib.contextmanager
def on_the_way(
    s3: S3Server, place: str, patch: pytest.MonkeyPatch, *, one_at_a_time: bool = False
) -> Iterator[FaultyNetwork]:
    """The way from clients of ``place`` to the server from now on."""
    patch.setenv(OPTIONS_VARIABLE, os.environ[OPTIONS_VARIABLE])
    with FaultyNetwork(s3.port, one_at_a_time=one_at_a_time) as network:
        endpoint = f"http://127.0.0.1:{network.port}"
        provide_options(place, s3.options | {"endpoint": endpoint})
        yield network
