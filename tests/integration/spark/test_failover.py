"""Processes of one pipeline: one delivers, the others stand by, and nothing is delivered twice."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.pipeline_process import Delivering

from tidelog import app
from tidelog.config import Config, load_config
from tidelog.errors import AnotherLeaderError, UsageError

pytestmark = pytest.mark.spark


class Pipeline:
    """A growing log of one table, and processes that deliver it."""

    def __init__(self, built: BuiltLog, directory: Path) -> None:
        self.built = built
        self.directory = directory
        self.table = built.table("public.t", {"id": "int64", "v": "text"})
        self.file = directory / "tidelog.yaml"
        self.processes: list[Delivering] = []
        self._last = 0

    def configure(self, *outputs: dict[str, Any], conf: dict[str, str] | None = None) -> None:
        """``conf``: more settings for Spark."""
        small = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
        self.file.write_text(
            "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
            "capture: {lease_ms: 2000, zone: a}\n"
            "pipeline: {name: shop, trigger_ms: 50, master: 'local[2]', "
            f"conf: {json.dumps(small | (conf or {}))}}}\n"
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
        found: list[dict[str, Any]] = app.status(self.config).document["pipelines"]
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


def test_a_standby_continues_where_a_killed_leader_ended(pipeline: Pipeline) -> None:
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
def test_a_standby_continues_where_the_leader_ended(pipeline: Pipeline) -> None:
    pipeline.configure({"kind": "files", "path": "activity", "format": "json"})
    pipeline.write(10)
    first = pipeline.start()
    pipeline.wait_for(lambda: pipeline.leader() is first)
    pipeline.start()
    pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.status()["standbys"]) == 2)
    found = pipeline.status()
    assert (found["pipeline"], found["epoch"], found["zone"]) == ("shop", 1, "a")
    with pytest.raises(AnotherLeaderError, match="another process of the pipeline shop leads"):
        app.run_pipeline(pipeline.config, once=True, stop_event=threading.Event())
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
def test_a_pipeline_is_handed_over_and_back(pipeline: Pipeline) -> None:
    pipeline.configure({"kind": "files", "path": "activity", "format": "json"})
    pipeline.write(10)
    first = pipeline.start()
    pipeline.wait_for(lambda: pipeline.leader() is first)
    hand_over = partial(app.hand_over, pipeline.config, timeout_s=60, pipeline="shop")
    with pytest.raises(UsageError, match="no process of the pipeline stands by"):
        hand_over(None)
    second = pipeline.start()
    pipeline.wait_for(lambda: pipeline.status()["standbys"])
    with pytest.raises(UsageError, match="nobody:1 does not stand by; "):
        hand_over("nobody:1")
    with pytest.raises(UsageError, match="nobody delivers a pipeline other"):
        app.hand_over(pipeline.config, None, timeout_s=60, pipeline="other")
    pipeline.wait_for(lambda: len(pipeline.events()) == 10)
    found = hand_over(None).to_dict()
    assert [int(found[end].rpartition(":")[2]) for end in ("from", "to")] == [first.pid, second.pid]
    pipeline.write(10)
    pipeline.wait_for(lambda: len(pipeline.events()) == 20)
    pipeline.wait_for(lambda: pipeline.leader() is second)
    pipeline.wait_for(lambda: pipeline.status()["standbys"])
    back = hand_over(found["from"])
    assert back.to_dict() == {"from": found["to"], "to": found["from"]}
    pipeline.write(10)
    pipeline.wait_for(lambda: len(pipeline.events()) == 30)
    assert (first.code, second.code) == (None, None)
    assert sorted(pipeline.events()) == list(range(1, 31))
