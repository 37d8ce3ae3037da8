"""Python workers of Spark that come up too late, as on a host that has too much to do."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.pipeline_process import signal_all

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

# Spark waits 10 s for a worker that it starts to connect (PythonWorkerFactory).
LATE_S = 30
# Plans a query's batches. One of them is late for each file in the directory `late`.
PLANNER = "python_streaming_source_runner"
WORKERS = "-m\0tidelog.spark.sessions.daemon"
WRAPPER = """#!/bin/sh
case "$*" in *{planner}*)
  for one in {late}/*; do
    if rm "$one" 2>/dev/null; then sleep {seconds}; break; fi
  done;;
esac
exec {python} "$@"
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its files say how many workers will be late."""
    directory, wrapper = tmp_path / "late", tmp_path / "python"
    directory.mkdir()
    wrapper.write_text(
        WRAPPER.format(planner=PLANNER, late=directory, seconds=LATE_S, python=sys.executable)
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(wrapper))
    return directory


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(built, tmp_path)
    made.configure({"kind": "files", "path": "activity", "format": "json"})
    yield made
    made.close()


def kill(pids: list[int], module: str) -> int:
    """Those that run it; how many."""

    def runs(pid: int) -> bool:
        try:
            return module in Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return False

    chosen = [pid for pid in pids if runs(pid)]
    signal_all(chosen, signal.SIGKILL)
    return len(chosen)


@pytest.mark.thorough
def test_they_are_waited_for_and_the_report_counts_each_row_once(
    pipeline: Pipeline, late: Path
) -> None:
    """At the start, and where one is killed and replaced by others that are late as well."""
    (late / "1").touch()
    pipeline.write(10)
    process = pipeline.start()

    def delivered(count: int) -> bool:
        assert process.code is None, process.said
        return len(pipeline.events()) >= count

    pipeline.wait_for(lambda: delivered(10))
    assert not list(late.iterdir())
    (late / "2").touch()
    (late / "3").touch()
    assert kill(process.processes, PLANNER)
    pipeline.write(10)
    pipeline.wait_for(lambda: delivered(20))
    assert kill(process.processes, WORKERS), "and those that run tasks"
    pipeline.write(10)
    pipeline.wait_for(lambda: delivered(30))
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not list(late.iterdir())
    assert sorted(pipeline.events()) == list(range(1, 31))
    assert process.said.count("did not start within 10 s") == 3, process.said
    lines = [json.loads(line) for line in process.said.splitlines() if line.startswith("{")]
    assert sum(line["rows"] for line in lines if "batch" in line) == 30, process.said
    # Spark may use a killed one, or more, before it has seen that it is dead.
    killed = "was killed or ended by itself"
    assert killed in process.said, process.said
    pauses = [line for line in process.said.splitlines() if "retries in" in line]
    assert all("did not start within 10 s" in line or killed in line for line in pauses), pauses
