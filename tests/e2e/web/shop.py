"""A shop on a real PostgreSQL, captured by `tidelog capture`, with a page for two roles."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidelog.app.base.instances import PIPELINE_PREFIX
from tidelog.app.capture.run import Capture
from tidelog.capture.leadership import Leader
from tidelog.config import Config, load_config
from tidelog.eventlog.consumers import Consumers, OutputFailure
from tidelog.eventlog.reader import EventLog
from tidelog.state.opening import open_state
from tidelog.system.processes import unix_ms

OPERATOR, VIEWER = "operator-token-1", "viewer-token-22"
HOSTILE = """<img src=x onerror="document.title='owned'">"""
SQL = f"""
CREATE TABLE orders (id int PRIMARY KEY, note text, secret_value text);
INSERT INTO orders SELECT i, 'n', 'hunter2-' || i FROM generate_series(1, 20000) i;
CREATE TABLE customers (id int PRIMARY KEY, name text);
INSERT INTO customers SELECT i, 'c' FROM generate_series(1, 3000) i;
CREATE TABLE no_key (a int);
CREATE TABLE "{HOSTILE.replace('"', '""')}" (id int PRIMARY KEY);
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 200) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


class Shop:
    """Its directory, and the capture processes that a test starts."""

    def __init__(self, directory: Path, database: str, *, options: str = "") -> None:
        self.directory = directory
        self.database = database
        self.port = free_port()
        self.file = self.config_file("tidelog.yaml", database, self.port, options)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._capture: Capture | None = None

    def config_file(self, name: str, database: str, port: int, options: str = "") -> Path:
        file = self.directory / name
        file.write_text(
            f"source: {{kind: postgres, url: '{database}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\npipeline: {name: shop}\n"
            "capture: {lease_ms: 1500}\n"
            f"control: {{rest: {{port: {port}, token: {OPERATOR}, viewer_token: {VIEWER}}}}}\n"
            f"{options}"
        )
        return file

    @property
    def config(self) -> Config:
        return load_config(self.file)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def capture_here(self) -> None:
        """In a thread of this process, which has imported all of it."""
        self._capture = Capture(self.config)
        self._capture.start()

    def capture(self, file: Path | None = None) -> subprocess.Popen[bytes]:
        """A process more; it leads, or stands by."""
        with (self.directory / f"capture-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "capture", str(file or self.file)],
                stdout=log, stderr=log, env=dict(os.environ),
            )  # fmt: skip
        self._processes.append(process)
        return process

    def role(self, port: int | None = None) -> str:
        """What the process at the port is; empty while none answers."""
        try:
            url = f"http://127.0.0.1:{port or self.port}/health"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return "leader" if b"leader" in answer.read() else "standby"
        except OSError:
            return ""

    def deliver(
        self, outputs: dict[str, int], stopped: dict[str, OutputFailure] | None = None
    ) -> None:
        """Note what a pipeline notes: how far each output is, in records that it lacks from the
        log's first (0) or last (1) offset.
        """
        log = EventLog.open(self.directory / "log")
        chain = log.chain()
        places = {name: chain.next if last else chain.head for name, last in outputs.items()}
        consumers = Consumers(log.storage)
        consumers.register("shop", min(places.values()), places, {}, stopped or {})

    def delivers(self, pipeline: str) -> None:
        """Note what a pipeline's process notes when it begins to lead; this one then ends."""
        leader = Leader("db-host:77", 1, "", unix_ms())
        with closing(open_state(self.config.state.location)) as state:
            state.put(PIPELINE_PREFIX + pipeline, asdict(leader), None)

    def end(self) -> None:
        if self._capture is not None:
            self._capture.stop()
            self._capture.wait(60)
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)
