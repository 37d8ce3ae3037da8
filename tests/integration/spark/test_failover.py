"""Processes of one pipeline: one delivers, the others stand by, and nothing is delivered twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.database_tables import server
from tests.support.build_log import BuiltLog

from tidelog import app
from tidelog.app.elections import LedElsewhereError
from tidelog.config import Config, load_config
from tidelog.system.failpoints import ENVIRONMENT_VARIABLE

pytestmark = pytest.mark.spark


class Delivering:
    """``tidelog pipeline`` as a process with a JVM and workers of its own."""

    def __init__(self, config: Path, log_file: Path, failpoint: str = "") -> None:
        self.log_file = log_file
        with log_file.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "pipeline", str(config), "--json"],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, ENVIRONMENT_VARIABLE: failpoint},
            )
        self.pid = self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 120) -> int:
        return self._process.wait(timeout_s)

    @property
    def said(self) -> str:
        return self.log_file.read_text()

    @property
    def processes(self) -> list[int]:
        """All that it started, and itself."""
        children: dict[int, list[int]] = {}
        for found in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = found.read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(found.parent.name))
        all_, ahead = [], [self.pid]
        while ahead:
            one = ahead.pop()
            all_.append(one)
            ahead += children.get(one, [])
        return all_

    @property
    def frozen(self) -> list[int]:
        return [pid for pid in self.processes if _state(pid) in "Tt"]

    def close(self) -> None:
        if self._process.poll() is None:
            for pid in self.processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Pipeline:
    """A growing log of one table, and processes that deliver it."""

    def __init__(self, built: BuiltLog, directory: Path) -> None:
        self.built = built
        self.directory = directory
        self.table = built.table("public.t", {"id": "int64", "v": "text"})
        self.file = directory / "tidelog.yaml"
        self.processes: list[Delivering] = []
        self._last = 0

    def configure(self, *outputs: dict[str, Any]) -> None:
        self.file.write_text(
            "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
            "capture: {lease_ms: 2000, zone: a}\n"
            "pipeline: {name: shop, trigger_ms: 50, master: 'local[2]', "
            "conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}\n"
            f"outputs: {json.dumps(outputs)}\n"
        )

    @property
    def config(self) -> Config:
        return load_config(self.file, {})

    def start(self, failpoint: str = "") -> Delivering:
        log_file = self.directory / f"pipeline-{len(self.processes)}.log"
        self.processes.append(Delivering(self.file, log_file, failpoint))
        return self.processes[-1]

    def write(self, count: int) -> None:
        """So many rows more."""
        for _ in range(count):
            self._last += 1
            self.built.insert(self.table, str(self._last), f"v{self._last}")
        self.built.flush()

    def status(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = app.status(self.config)["pipelines"]
        return found[0] if found else {"leader": None, "standbys": []}

    def leader(self) -> Delivering | None:
        pid = int(str(self.status()["leader"] or ":0").rpartition(":")[2])
        return next((each for each in self.processes if each.pid == pid), None)

    def wait_for(self, what: Callable[[], Any], timeout_s: float = 240) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, [each.said for each in self.processes]
            time.sleep(0.1)

    def events(self) -> list[int]:
        """The ids of all records in the files."""
        files = (self.directory / "activity").rglob("[!_.]*.json")
        visible = [f for f in files if "/_tidelog/" not in str(f)]
        return [int(json.loads(line)["key"]["id"]) for f in visible for line in f.open()]

    def close(self) -> None:
        for each in self.processes:
            each.close()


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(built, tmp_path)
    yield made
    made.close()


def test_a_standby_goes_on_where_a_killed_leader_ended(pipeline: Pipeline) -> None:
    pipeline.configure({"kind": "files", "path": "activity", "format": "json"})
    pipeline.write(10)
    first, second = pipeline.start(), pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.events()) == 10)
    pipeline.wait_for(lambda: len(pipeline.status()["standbys"]) == 1)
    leader = pipeline.leader()
    assert leader in (first, second)
    assert leader is not None
    leader.send(signal.SIGKILL)
    pipeline.write(10)
    pipeline.wait_for(lambda: len(pipeline.events()) >= 20)
    other = second if leader is first else first
    assert '"role": "standby"' in other.said
    other.send(signal.SIGTERM)
    assert other.wait() == 0
    assert sorted(pipeline.events()) == list(range(1, 21))


@pytest.mark.thorough
def test_a_standby_goes_on_where_the_leader_ended(pipeline: Pipeline) -> None:
    pipeline.configure({"kind": "files", "path": "activity", "format": "json"})
    pipeline.write(10)
    first = pipeline.start()
    pipeline.wait_for(lambda: pipeline.leader() is first)
    pipeline.start()
    pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.status()["standbys"]) == 2)
    found = pipeline.status()
    assert (found["pipeline"], found["epoch"], found["zone"]) == ("shop", 1, "a")
    with pytest.raises(LedElsewhereError, match="another process of the pipeline shop leads"):
        app.pipeline(pipeline.config, once=True, stop_event=threading.Event())
    pipeline.wait_for(lambda: len(pipeline.events()) == 10)
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    pipeline.write(10)
    pipeline.wait_for(lambda: len(pipeline.events()) >= 20)
    second = pipeline.leader()
    assert second is not None
    assert '"role": "standby"' in second.said
    second.send(signal.SIGKILL)
    pipeline.write(10)
    pipeline.wait_for(lambda: len(pipeline.events()) >= 30)
    third = pipeline.leader()
    assert third not in (None, first, second)
    assert third is not None
    third.send(signal.SIGTERM)
    assert third.wait() == 0
    assert sorted(pipeline.events()) == list(range(1, 31))


@pytest.mark.thorough
def test_a_frozen_leader_writes_nothing_when_it_wakes_up(pipeline: Pipeline, spark: Any) -> None:
    """It is frozen after the last look at its lease: the destinations refuse what it does then."""
    place = server("postgres")
    url = place.create_database("failover")
    pipeline.configure({"kind": "delta", "path": "lake"}, {"kind": "postgres", "url": url})
    pipeline.write(10)
    first = pipeline.start("lake.table.write:pause,output.task.commit:pause")
    # The driver in the midst of a MERGE, and a worker between its rows and their transaction.
    pipeline.wait_for(lambda: first.pid in first.frozen)
    pipeline.start()
    pipeline.write(10)
    lake = pipeline.directory / "lake/public/t"

    def copies() -> tuple[list[int], list[tuple[int, int]]]:
        try:
            rows = place.execute(
                "SELECT id, xmin::text::bigint FROM public.t ORDER BY id", "failover"
            )
        except Exception:  # noqa: BLE001 - no such table yet
            rows = []
        if not any((lake / "_delta_log").glob("*.json")):
            return [], rows
        frame = spark.read.format("delta").load(str(lake))
        return [row["id"] for row in frame.select("id").orderBy("id").collect()], rows

    wanted = list(range(1, 21))
    pipeline.wait_for(lambda: copies()[0] == wanted and [r[0] for r in copies()[1]] == wanted)
    commits = sorted((lake / "_delta_log").glob("*.json"))
    before = copies()
    for pid in first.frozen:
        os.kill(pid, signal.SIGCONT)
    pipeline.wait_for(lambda: len(pipeline.status()["standbys"]) == 1)
    pipeline.wait_for(lambda: '"role": "standby"' in first.said)
    time.sleep(1)
    assert copies() == before
    assert sorted((lake / "_delta_log").glob("*.json")) == commits
    pipeline.write(10)
    pipeline.wait_for(lambda: copies()[0] == list(range(1, 31)))
    assert all(_state(each.pid) not in "ZX" for each in pipeline.processes)
