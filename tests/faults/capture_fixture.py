"""`tidelog capture` as a process over one database, for tests that break what it stands on."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
from tests.e2e.history_run import CaptureProcess
from tests.support.oracle.log import read_event_log
from tests.support.oracle.values import Change

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config import Config, load_config
from tidelog.eventlog.reader import EventLog


class Source:
    """A database with a table ``app.t (id, v)``, and captures of it."""

    def __init__(
        self,
        dsn: str,
        directory: Path,
        log: Path | str | None = None,
        storage_options: Mapping[str, str] | None = None,
        state: str | None = None,
    ) -> None:
        self.dsn = dsn
        self.directory = directory
        self.captures: list[CaptureProcess] = []
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.sql.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v text)")
        self.config_file = directory / "tidelog.yaml"
        self.storage_options = dict(storage_options or {})
        self.state = state or f"sqlite:///{self.directory}/state.db"
        self.write_config(dsn, log or directory / "log")

    def write_config(self, dsn: str, log: Path | str) -> None:
        slot = "slot_" + self.dsn.rsplit("/", 1)[1]
        place = json.dumps({"path": str(log), "storage_options": self.storage_options})
        self.config_file.write_text(
            f"source: {{kind: postgres, url: '{dsn}', tables: ['app.*'], slot: {slot}}}\n"
            f"log: {place}\nstate: {{url: '{self.state}'}}\n"
            "capture: {flush_ms: 10, lease_ms: 1500}\n"
        )

    @property
    def config(self) -> Config:
        return load_config(self.config_file, {})

    def start(self, failpoint: str = "") -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        self.captures.append(CaptureProcess(self.config_file, log_file, failpoint))
        return self.captures[-1]

    def freeze(self, capture: CaptureProcess) -> None:
        """SIGSTOP it, but not in the midst of a write to the state: it would keep the lock."""
        while True:
            capture.send(signal.SIGSTOP)
            while not capture.is_stopped():  # on another core it may run on for a moment
                time.sleep(0.001)
            with closing(sqlite3.connect(self.directory / "state.db", timeout=0.3)) as state:
                try:
                    state.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    capture.send(signal.SIGCONT)
                else:
                    return
            time.sleep(0.01)

    def write(self, first: int, last: int, bytes_each: int = 8) -> None:
        self.sql.execute(
            "INSERT INTO app.t SELECT i, left(string_agg(md5(i::text || n), ''), %s::int) "
            "FROM generate_series(%s::int, %s) i, generate_series(1, %s::int) n GROUP BY i "
            "ORDER BY i",
            (bytes_each, first, last, 1 + bytes_each // 32),
        )

    def records(self) -> list[Change]:
        path = event_log_path(self.config)
        if not EventLog.exists(path):
            return []
        log = EventLog.open(path)
        return read_event_log(log, log.head_offset, log.latest_offset())

    def has(self, records: int) -> bool:
        """True once the event log has so many records; they are not read."""
        path = event_log_path(self.config)
        return EventLog.exists(path) and EventLog.open(path).latest_offset() >= records

    def inserted(self) -> list[int]:
        """The ids of inserts in the event log, in its order."""
        return [int(r.new["id"] or 0) for r in self.records() if r.op == "I" and r.new]

    def wait_for(self, what: Callable[[], Any], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, [c.log_file.read_text() for c in self.captures]
            time.sleep(0.05)

    def wait_led(self) -> str:
        """Wait for the initial dump; who leads."""
        self.wait_for(
            lambda: any(
                dump["status"] == "completed"
                for dump in app.status(self.config).document.get("dumps", ())
            )
        )
        return str(app.status(self.config).document["leader"])

    def close(self) -> None:
        for capture in self.captures:
            if not capture.died:
                capture.stop()
        with suppress(psycopg.Error):
            self.sql.close()
