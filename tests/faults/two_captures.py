"""Captures on hosts that share event log, state and source, each by paths of its own."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from tests.campaign import leaders
from tests.campaign.hosts import Host
from tests.support.faulty_network import FaultyNetwork
from tests.support.oracle.dumps import check_chunks
from tests.support.oracle.log import read_event_log
from tests.support.oracle.values import Change

from tidelog import app
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import provide_options
from tidelog.model.records import ChunkMeta

STORES: Final = ("log", "zookeeper", "postgresql")
DATABASE, LOG, STATE = "database", "log", "state"
"""The paths of a host. With the state beside the log (``log:``) one path leads to both."""
WAIT_S: Final = 90.0
_numbers = itertools.count(1)


class TwoCaptures:
    """A table ``app.t (id, v)`` of ``database``, an event log on S3, and hosts.

    Args:
        request: gives the servers.
        store: of `STORES`.
        database: its dsn.
        directory: of the hosts.
        opened: what is closed at the end.
        lease_s: of the captures.
        rest: of the configuration.
        capture: of its section ``capture``, by host.
        names: of the hosts.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        store: str,
        database: str,
        directory: Path,
        opened: ExitStack,
        *,
        lease_s: float,
        rest: str = "",
        capture: Mapping[str, str] | None = None,
        names: Sequence[str] = ("a", "b"),
    ) -> None:
        self.lease_s = lease_s
        self.sql = opened.enter_context(psycopg.connect(database, autocommit=True))
        self.sql.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v text)")
        s3 = request.getfixturevalue("s3")
        self.place: str = s3.url(f"two-captures-{next(_numbers)}")
        # S3Proxy looks at conditions before it writes: requests come one after the other.
        bucket = opened.enter_context(FaultyNetwork(s3.port, one_at_a_time=True))
        provide_options(self.place, s3.options | {"endpoint": f"http://127.0.0.1:{bucket.port}"})
        begin, _, name = database.rpartition("/")
        source_port = int(begin.rpartition(":")[2])
        targets = {DATABASE: source_port, LOG: bucket.port}
        path = self.place.rpartition("/")[2].replace("-", "_")
        if store == "zookeeper":
            targets[STATE] = request.getfixturevalue("zookeeper").port
        elif store == "postgresql":
            targets[STATE] = source_port
            server = request.getfixturevalue("postgres")
            server.create_database(path)
            opened.callback(server.drop_database, path)

        def config(ports: Mapping[str, int], more: str) -> str:
            at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
            state = {
                "log": {"url": "log:"},
                "zookeeper": {
                    "url": f"zookeeper://{at.get(STATE)}/tidelog/{path}",
                    "options": {"session_timeout_s": 2},
                },
                "postgresql": {"url": f"postgresql://postgres@{at.get(STATE)}/{path}"},
            }[store]
            options = s3.options | {"endpoint": f"http://{at[LOG]}"}
            log = {"path": self.place, "storage_options": options, "rollup_bytes": 0}
            return (
                "source: {kind: postgres, tables: ['app.*'], "
                f"url: 'postgresql://postgres@{at[DATABASE]}/{name}', slot: {name}}}\n"
                f"log: {json.dumps(log)}\nstate: {json.dumps(state)}\n"
                f"capture: {{flush_ms: 10, lease_ms: {int(lease_s * 1000)}{more}}}\n{rest}\n"
            )

        self._config_file = directory / "tidelog.yaml"
        self._config_file.write_text(config(targets, ""))
        self.hosts: list[Host] = []
        for each in names:
            host = Host(each, directory, targets, opened, "", None)
            self.hosts.append(host)
            opened.callback(host.kill)
            host.config_file.write_text(config(host.ports, (capture or {}).get(each, "")))
        self._log: EventLog | None = None

    def status(self) -> dict[str, Any]:
        """As who has none of the hosts' paths sees it."""
        return app.status(load_config(self._config_file, {})).document

    def stands_by(self, host: Host) -> bool:
        assert host.capture is not None
        return any(
            str(one["holder"]).endswith(f":{host.capture.pid}") for one in self.status()["standbys"]
        )

    def leads(self, host: Host) -> bool:
        assert host.capture is not None
        return str(self.status()["leader"]).endswith(f":{host.capture.pid}")

    def is_dumped(self) -> bool:
        """Is the first dump over?"""
        return [dump["status"] for dump in self.status()["dumps"]] == ["completed"]

    def write(self, first: int, last: int) -> None:
        self.sql.execute(
            "INSERT INTO app.t SELECT generate_series(%s::int, %s), 'v'", (first, last)
        )

    def wait_for(self, what: Callable[[], object], timeout_s: float = WAIT_S) -> float:
        """How long it took."""
        begun = time.monotonic()
        while not what():
            assert time.monotonic() < begun + timeout_s, [self.said(host) for host in self.hosts]
            time.sleep(0.1)
        return time.monotonic() - begun

    def said(self, host: Host) -> str:
        return host.capture.log_file.read_text()[-8000:] if host.capture else ""

    # ------------------------------------------------------------ what the event log says

    @property
    def log(self) -> EventLog | None:
        if self._log is None and EventLog.exists(self.place):
            self._log = EventLog.open(self.place)
        return self._log

    @property
    def epochs(self) -> list[int]:
        """Of those who appended, in the log's order."""
        found = [] if self.log is None else [one.epoch for one in self.log.chain().segments]
        return [epoch for epoch, _ in itertools.groupby(found)]

    def chunks(self) -> list[ChunkMeta]:
        return [] if self.log is None else [chunk for _, chunk in self.log.chunks()]

    def records(self) -> list[Change]:
        log = self.log
        return [] if log is None else read_event_log(log, log.head_offset, log.latest_offset())

    def inserted(self) -> list[int]:
        return [int(r.new["id"] or 0) for r in self.records() if r.op == "I" and r.new]

    def dumped(self) -> list[int]:
        return [int(r.new["id"] or 0) for r in self.records() if r.op == "r" and r.new]

    def judge(self) -> None:
        """No chunk was read twice, and whoever had lost its lease left log and state alone."""
        check_chunks(self.chunks(), {}, lambda _table, key: int(key[0] or 0))
        assert self.log is not None
        notes = [note for host in self.hosts for note in host.notes.so_far()]
        leaders.judge(notes, self.log.chain().segments)
