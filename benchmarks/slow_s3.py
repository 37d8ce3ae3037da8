"""An S3 server that is some way off: what stands before it holds each request, and notes it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_processes = multiprocessing.get_context("spawn")
_ENDED = (asyncio.IncompleteReadError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Request:
    """One that was made: from when to when by `time.time`, by which process, and its answer."""

    begun: float
    ended: float
    pid: int
    method: str
    path: str
    status: int


class SlowS3:
    """Forwards requests to the server at ``port`` from a port of its own, each after ``delay_s``
    seconds. Use it as a context manager.

    Args:
        notes: the file in which requests are noted.
    """

    def __init__(self, port: int, delay_s: float, notes: Path) -> None:
        self._notes = notes
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._process = _processes.Process(
            target=_run, args=(self._listener, port, delay_s, notes), daemon=True
        )

    def __enter__(self) -> Self:
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

    def requests(self) -> Sequence[Request]:
        """All so far, in the order of their ends."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [Request(*json.loads(line)) for line in lines]


def _run(listener: socket.socket, port: int, delay_s: float, notes: Path) -> None:
    asyncio.run(_serve(listener, port, delay_s, notes))


async def _serve(listener: socket.socket, port: int, delay_s: float, notes: Path) -> None:
    with notes.open("a", buffering=1) as noted:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pid = _pid_of(writer.get_extra_info("peername")[1])
            there_reader, there = await asyncio.open_connection("127.0.0.1", port)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    begun = time.time()
                    body = await _body(reader, head)
                    await asyncio.sleep(delay_s)
                    there.write(head + body)
                    answer = await there_reader.readuntil(b"\r\n\r\n")
                    method, path = head.split(b" ", 2)[:2]
                    rest = b"" if method == b"HEAD" else await _body(there_reader, answer)
                    writer.write(answer + rest)
                    await writer.drain()
                    status = int(answer.split(b" ", 2)[1])
                    request = (begun, time.time(), pid, method.decode(), path.decode(), status)
                    noted.write(json.dumps(request) + "\n")
            except _ENDED:
                pass
            finally:
                writer.close()
                there.close()

        server = await asyncio.start_server(serve, sock=listener, limit=1 << 20)
        await server.serve_forever()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
        return await reader.readexactly(int(fields.get(b"content-length", 0)))
    chunks = []
    while True:
        size = await reader.readuntil(b"\r\n")
        chunks += [size, await reader.readexactly(int(size, 16) + 2)]
        if int(size, 16) == 0:
            return b"".join(chunks)


def _pid_of(port: int) -> int:
    """Which child of our parent a connection comes from by this port; 0: none."""
    inode = ""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
            inode = f"socket:[{fields[9]}]"
    children = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    for pid in {pid for each in children for pid in each.read_text().split()}:
        with suppress(OSError):  # it has ended
            if any(str(one.readlink()) == inode for one in Path(f"/proc/{pid}/fd").iterdir()):
                return int(pid)
    return 0
