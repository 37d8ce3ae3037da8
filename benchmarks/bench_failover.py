"""How long nothing becomes durable when the leading capture ends: the old leader's last record →
the new one's first.

``killed``    the leader is killed; the standby is on the same host
``handover``  `tidelog handover`
``sigterm``   the leader is stopped in order
``vanished``  with ``--vanished SECONDS``, and alone: the leader's host vanishes; the lease is of so
              many seconds. It is frozen for good: its connections stay, and nobody answers

    python -m benchmarks.bench_failover [sqlite log] [--source NAME] [--runs 20] [--vanished 10]
                                        [--quick] [--delay-ms 25]

Two captures as they are shipped, one leading, one standing by, over one source with some 200
transactions a second of one row each; state in SQLite with the log on the disk, or both on S3Proxy
(``log:``). ``--delay-ms``: each request to S3Proxy takes so much longer, as to a store that is some
way off; the new leader's requests until its first record are counted then. When a segment became
visible is told by its file's change time. Before each run both have been in their roles for a
second at least.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from tests.support.faulty_network import FaultyNetwork
from tests.support.repeatedly import repeatedly
from tests.support.s3 import S3Server

from benchmarks.bench_capture import Bench, bench
from benchmarks.table import Row, show
from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import provide_options

GOALS_S = {"killed": 2.0, "handover": 1.0, "sigterm": 1.0}
VANISHED, BEYOND_LEASE_S = "vanished", 3.0
SIGNALS = {"killed": signal.SIGKILL, "sigterm": signal.SIGTERM, VANISHED: signal.SIGSTOP}
PAUSE_S = 0.005
SETTLED_S = 1.0
SOURCES = ("postgres", "mysql", "mariadb")
Connect = Callable[[], Any]


class Pair:
    """Captures of one configuration, of which two run."""

    def __init__(self, here: Bench, files: Path) -> None:
        self.here = here
        self.files = files
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.server: S3Server | None = None
        """Which keeps the log, if captures are to reach it by a way that delays."""
        self.delay_s = 0.0
        self._networks: dict[int, FaultyNetwork] = {}

    @property
    def config(self) -> Config:
        return self.here.config

    def start(self) -> None:
        network = None
        if self.server is not None:
            network = FaultyNetwork(self.server.port, delay_s=self.delay_s).__enter__()
            self._provide(network.port)
        with (self.here.directory / "captures.log").open("ab") as output:
            command = [sys.executable, "-m", "tidelog", "capture", str(self.here.config_file)]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.running[process.pid] = process
        if self.server is not None and network is not None:
            self._networks[process.pid] = network
            self._provide(self.server.port)

    def _provide(self, port: int) -> None:
        """The way to the log, for processes that start from now on."""
        assert self.server is not None
        options = self.server.options | {"endpoint": f"http://127.0.0.1:{port}"}
        provide_options(event_log_path(self.config), options)

    def leader(self) -> subprocess.Popen[bytes] | None:
        with suppress(TidelogError):
            status = app.status(self.config).document
            pid = int(str(status["leader"] or ":0").rpartition(":")[2])
            if status.get("holder") == status["leader"]:
                return self.running.get(pid)
        return None

    def settle(self) -> subprocess.Popen[bytes]:
        """One leads, the other stands by; the leader."""
        while len(self.running) < 2:
            self.start()
        wait_for(lambda: self.leader() is not None and app.status(self.config).document["standbys"])
        time.sleep(SETTLED_S)
        leader = self.leader()
        assert leader is not None
        return leader

    def gap_s(self, how: str) -> float:
        leader = self.settle()
        log = EventLog.open(event_log_path(self.config))
        epoch = log.chain().segments[-1].epoch
        if how == "handover":
            app.hand_over(self.config, None, timeout_s=60)
        else:
            leader.send_signal(SIGNALS[how])
        found: list[int] = []

        def gone_on() -> bool:
            with_rows = [each for each in log.chain().segments if each.rows]
            after = [each.first for each in with_rows if each.epoch > epoch]
            before = [each.first for each in with_rows if each.epoch <= epoch]
            found[:] = [before[-1], after[0]] if after else []
            return bool(found)

        wait_for(gone_on)
        if how == VANISHED:
            leader.kill()
        if how != "handover":
            leader.wait(60)
            del self.running[leader.pid]
        last, first = (self._visible_at(offset) for offset in found)
        if self._networks:
            now = self.leader()
            asked_at = self._networks[now.pid].asked_at if now is not None else []
            made = sum(last <= each < first for each in asked_at)
            print(f"requests until then by the new leader: {made}")
        return first - last

    def _visible_at(self, offset: int) -> float:
        return next(self.files.rglob(f"*{offset:020d}*")).stat().st_ctime_ns / 1e9

    def close(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)
        for network in self._networks.values():
            network.__exit__(None, None, None)


def wait_for(what: Callable[[], object], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError("captures do not come into their roles")
        time.sleep(0.02)


@contextmanager
def source(kind: str) -> Iterator[tuple[Bench, Connect]]:
    """A server with the table, and how a writer connects to it."""
    if kind == "postgres":
        with bench() as here:
            yield here, lambda: psycopg.connect(here.dsn, autocommit=True)
        return
    from benchmarks.mysql_orders import DATABASE, mysql_bench

    with mysql_bench(kind) as found:
        yield found, lambda: found.server.connect(DATABASE)


@contextmanager
def writing(connect: Connect) -> Iterator[None]:
    keys = itertools.count(1)
    with connect() as connection, connection.cursor() as cursor:

        def insert() -> None:
            cursor.execute("INSERT INTO orders (id) VALUES (%s)", (next(keys),))

        with repeatedly(insert, PAUSE_S):
            yield


@contextmanager
def pair(store: str, kind: str, lease_s: float | None, delay_s: float) -> Iterator[Pair]:
    """``lease_s``: None: as it is shipped. ``delay_s``: of each request to S3Proxy."""
    with ExitStack() as opened:
        here, connect = opened.enter_context(source(kind))
        files, options, server = here.directory / "log", "", None
        lines = here.config_file.read_text().splitlines()
        place, kept = str(files), lines[2:]
        if store == "log":
            s3 = opened.enter_context(S3Server())
            if delay_s:  # each capture is given a way of its own
                server = s3
            else:
                given = ", ".join(f"{name}: '{value}'" for name, value in s3.options.items())
                options = f", storage_options: {{{given}}}"
            place, files, kept = s3.url("bench"), s3.files("bench"), []
        # A segment that is rolled up tells no more when its records came.
        lines[1:] = [f"log: {{path: {place}, rollup_bytes: 0{options}}}", *kept]
        if lease_s is not None:
            lines.append(f"capture: {{lease_ms: {int(lease_s * 1000)}}}")
        here.config_file.write_text("\n".join(lines) + "\n")
        made = Pair(here, files)
        made.server, made.delay_s = server, delay_s
        opened.callback(made.close)
        opened.enter_context(writing(connect))
        yield made


def measure(store: str, kind: str, runs: int, lease_s: float | None, delay_s: float) -> list[Row]:
    """``lease_s``: of leaders whose hosts vanish; None: none does."""
    goals_s = GOALS_S if lease_s is None else {VANISHED: lease_s + BEYOND_LEASE_S}
    gaps: dict[str, list[float]] = {how: [] for how in goals_s}
    with pair(store, kind, lease_s, delay_s) as both:
        both.start()
        wait_for(lambda: both.leader() is not None)
        for _ in range(runs):
            for how, into in gaps.items():
                into.append(both.gap_s(how))
                print(
                    f"{kind} {store} {how} {into[-1]:.3f} s, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    rows, place = [], "SQLite" if store == "sqlite" else "`log:` on S3Proxy"
    for how, goal_s in goals_s.items():
        p50, p99, most = np.percentile(gaps[how], [50, 99, 100])
        rows.append(
            Row(
                f"{kind}: leader {how}, state in {place}: last record → next leader's first",
                f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s of {runs}",
                "",
                "",
                f"p99 ≤ {goal_s:g} s",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", help="sqlite, log; default: both")
    parser.add_argument("--source", choices=SOURCES, default="postgres")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--vanished", type=float, metavar="SECONDS", help="the lease's length")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each request to S3Proxy")
    parser.add_argument("--quick", action="store_true", help="one run of each in SQLite")
    arguments = parser.parse_args()
    stores = arguments.stores or (["sqlite"] if arguments.quick else ["sqlite", "log"])
    runs = 1 if arguments.quick else arguments.runs
    show(
        [
            row
            for store in stores
            for row in measure(
                store, arguments.source, runs, arguments.vanished, arguments.delay_ms / 1000
            )
        ]
    )


if __name__ == "__main__":
    main()
