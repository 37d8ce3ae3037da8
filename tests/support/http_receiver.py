"""A small API that takes batches of events, for tests and examples: a process of its own.

``POST /events/{table}`` stores each event of the body once for each ``Idempotency-Key``, in a
SQLite file, before it answers. `HttpReceiver.fail` makes it fail in many ways.

python -m tests.support.http_receiver FILE PORT
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tidelog.errors import TidelogError

_TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY, key TEXT UNIQUE, path TEXT, body TEXT, headers TEXT, times INTEGER
);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, path TEXT, request TEXT, event TEXT,
    at REAL DEFAULT ((julianday('now') - 2440587.5) * 86400)
);
"""
_LASTING = ("poison", "token", "largest", "discard")


@dataclass(frozen=True)
class ReceivedRequest:
    """An event, in the order in which events were stored."""

    path: str
    request: str
    event: Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A request that was stored; ``times``: how often it came."""

    key: str
    path: str
    body: str
    headers: Mapping[str, str]
    times: int


class HttpReceiver:
    """The process, seen from a test. Its file outlives it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when it answers. Raises TidelogError if it does not."""
        command = [sys.executable, "-m", __name__, str(self.file), str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(300):
            try:
                self._ask("GET", None)
                return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.1)
        raise TidelogError("the receiver does not start")

    def kill(self) -> None:
        """As by ``kill -9``."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def fail(self, **how: Any) -> None:
        """Let the next requests fail. ``how``: ``times``, and one of

        ``status`` (with ``retry_after``): nothing is stored; ``slow_s``: answer late, after
        storing; ``reset``: store, and break off in the middle of the answer; ``drop``: break off
        without storing; ``die``: store, then kill the process; ``poison``: 422 for what holds this
        text; ``token``: 401 without it; ``largest``: 413 above these bytes; ``discard``: take
        what comes and store nothing. The last four are for good.
        """
        self._ask("POST", how)

    def events(self, path: str = "%") -> list[ReceivedRequest]:
        """What was stored, in order; ``path`` as in SQL's LIKE."""
        rows = self._read("SELECT path, request, event FROM events WHERE path LIKE ? "
                          "ORDER BY number", path)  # fmt: skip
        return [ReceivedRequest(path, request, json.loads(event)) for path, request, event in rows]

    def requests(self) -> list[Request]:
        rows = self._read("SELECT key, path, body, headers, times FROM requests ORDER BY number")
        return [Request(k, p, b, json.loads(h), times) for k, p, b, h, times in rows]

    def _read(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.file, timeout=30)) as database:
            return database.execute(query, values).fetchall()

    def _ask(self, method: str, value: Any) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        with closing(connection):
            connection.request(method, "/control", json.dumps(value) if value else None)
            connection.getresponse().read()


class _Receiver:
    """What runs in the process."""

    def __init__(self, file: str) -> None:
        self._database = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_TABLES)
        self._faults: list[dict[str, Any]] = []
        self._lasting: dict[str, Any] = {}

    async def control(self, request: Any) -> Any:
        from starlette.responses import Response

        if request.method == "POST":
            how = await request.json()
            lasting = {k: how.pop(k) for k in _LASTING if k in how}
            self._lasting |= lasting
            if how:
                self._faults += [how] * how.pop("times", 1)
        return Response(status_code=204)

    async def events(self, request: Any) -> Any:
        from starlette.responses import Response, StreamingResponse

        body = await request.body()
        fault = self._faults.pop(0) if self._faults else {}
        status = self._refused(request, body) or fault.get("status")
        if status is not None:
            after = fault.get("retry_after")
            return Response(
                status_code=status, headers={} if after is None else {"Retry-After": after}
            )
        if self._lasting.get("discard"):
            return Response(b'{"stored":true}')
        if "drop" in fault:
            return StreamingResponse(_broken(b""), headers={"Content-Length": "100"})
        status = self._store(request, body)
        if "slow_s" in fault:
            await asyncio.sleep(fault["slow_s"])
        if "die" in fault:
            os.kill(os.getpid(), signal.SIGKILL)
        if "reset" in fault:
            return StreamingResponse(_broken(b'{"sto'), headers={"Content-Length": "100"})
        return Response(b'{"stored":true}', status_code=status)

    def _refused(self, request: Any, body: bytes) -> int | None:
        token = self._lasting.get("token")
        if token is not None and request.headers.get("authorization") != f"Bearer {token}":
            return 401
        if len(body) > self._lasting.get("largest", len(body)):
            return 413
        poison = self._lasting.get("poison")
        return 422 if poison is not None and poison.encode() in _plain(request, body) else None

    def _store(self, request: Any, body: bytes) -> int:
        key, path = request.headers["idempotency-key"], request.url.path
        text = _plain(request, body).decode()
        if request.headers["content-type"].endswith("ndjson"):
            events = [json.loads(line) for line in text.splitlines()]
        else:
            events = json.loads(text)
        self._database.execute("BEGIN IMMEDIATE")
        known = self._database.execute("SELECT body FROM requests WHERE key = ?", (key,)).fetchone()
        if known is None:
            headers = json.dumps(dict(request.headers))
            self._database.execute(
                "INSERT INTO requests (key, path, body, headers, times) VALUES (?, ?, ?, ?, 1)",
                (key, path, text, headers),
            )
            self._database.executemany(
                "INSERT INTO events (path, request, event) VALUES (?, ?, ?)",
                [(path, key, json.dumps(event)) for event in events],
            )
        else:
            self._database.execute("UPDATE requests SET times = times + 1 WHERE key = ?", (key,))
        self._database.execute("COMMIT")
        # The same key for something else: the sender's mistake.
        return 200 if known is None or known[0] == text else 422


def _plain(request: Any, body: bytes) -> bytes:
    return gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body


async def _broken(start: bytes) -> AsyncIterator[bytes]:
    yield start
    raise ConnectionResetError("as asked for")


def main() -> None:
    """The process."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    file, port = sys.argv[1:]
    receiver = _Receiver(file)
    routes = [
        Route("/control", receiver.control, methods=["GET", "POST"]),
        Route("/events/{table:path}", receiver.events, methods=["POST", "PUT"]),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(port), log_level="critical")


if __name__ == "__main__":
    main()
