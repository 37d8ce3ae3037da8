"""Two `tidelog run` on one configuration: each leads and stands by in either role for itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.pipeline_process import Delivering, signal_all

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

CAPTURE, PIPELINE = "capture", "pipeline"


class Runs:
    """Processes of `tidelog run` from a table of PostgreSQL to files of its changes."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "capture: {flush_ms: 10, lease_ms: 2000}\n"
            "pipeline: {name: shop, trigger_ms: 50, master: 'local[2]', "
            "conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}\n"
            "outputs: [{kind: files, path: activity, format: json}]\n"
        )
        self.processes: list[Delivering] = []
        self.written = 0
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def start(self) -> Delivering:
        log_file = self.directory / f"run-{len(self.processes)}.log"
        self.processes.append(Delivering(self.file, log_file, command="run"))
        return self.processes[-1]

    def command(self, *arguments: str) -> Any:
        """What it answers."""
        command = [sys.executable, "-m", "tidelog", arguments[0], str(self.file), *arguments[1:]]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def roles(self) -> dict[str, tuple[int, list[int]]]:
        """By role, as the status says: the process that leads, and those that stand by."""
        status = self.command("status")
        pipelines = status["pipelines"] or [{"leader": None, "standbys": []}]
        found = {CAPTURE: status, PIPELINE: pipelines[0]}
        return {
            role: (_pid(each["leader"]), sorted(map(_pid_of, each["standbys"])))
            for role, each in found.items()
        }

    def change(self) -> None:
        """Ten changes; returns when the output has them, each once."""
        first, self.written = self.written + 1, self.written + 10
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "INSERT INTO t SELECT generate_series(%s::int, %s)", (first, self.written)
            )
        self.wait_for(lambda: len(self.delivered()) >= self.written)
        assert sorted(self.delivered()) == list(range(1, self.written + 1))

    def delivered(self) -> list[int]:
        files = (self.directory / "activity").glob("table=*/**/*.json")
        return [int(json.loads(line)["key"]["id"]) for f in files for line in f.open()]

    def wait_for(self, what: Callable[[], Any], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, [each.said for each in self.processes]
            time.sleep(0.1)


def _pid(holder: str | None) -> int:
    return int((holder or ":0").rpartition(":")[2])


def _pid_of(standby: dict[str, Any]) -> int:
    return _pid(standby["holder"])


def led_by(runs: Runs) -> dict[str, int]:
    return {role: leader for role, (leader, _) in runs.roles().items()}


@pytest.fixture
def runs(database: str, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(database, tmp_path)
    yield made
    for each in made.processes:
        each.close()


def test_a_process_leads_in_one_role_and_stands_by_in_the_other(runs: Runs) -> None:
    a = runs.start()
    runs.wait_for(lambda: runs.roles() == {CAPTURE: (a.pid, []), PIPELINE: (a.pid, [])})
    b = runs.start()
    runs.wait_for(lambda: runs.roles() == {CAPTURE: (a.pid, [b.pid]), PIPELINE: (a.pid, [b.pid])})
    runs.change()

    told = runs.command("handover", "--pipeline", "shop")
    assert (_pid(told["from"]), _pid(told["to"])) == (a.pid, b.pid)
    runs.wait_for(lambda: runs.roles() == {CAPTURE: (a.pid, [b.pid]), PIPELINE: (b.pid, [a.pid])})
    runs.change()

    signal_all(a.processes, signal.SIGKILL)  # which led capture
    runs.wait_for(lambda: led_by(runs) == {CAPTURE: b.pid, PIPELINE: b.pid})
    runs.change()

    c = runs.start()
    runs.wait_for(lambda: all(c.pid in standbys for _, standbys in runs.roles().values()))
    told = runs.command("handover")
    assert (_pid(told["from"]), _pid(told["to"])) == (b.pid, c.pid)
    runs.wait_for(lambda: led_by(runs) == {CAPTURE: c.pid, PIPELINE: b.pid})
    runs.change()

    signal_all(b.processes, signal.SIGKILL)  # which led the pipeline
    runs.wait_for(lambda: led_by(runs) == {CAPTURE: c.pid, PIPELINE: c.pid})
    runs.change()
    c.send(signal.SIGTERM)
    assert c.wait() == 0
