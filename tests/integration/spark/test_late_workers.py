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

LATE_S = 30
# Starts the workers. It is late for each file in the directory `late`.
DAEMON = "tidelog.spark.datasource.daemon"
WRAPPER = """#!/bin/sh
case "$*" in *{daemon}*)
  for one in {late}/*; do
    if rm "$one" 2>/dev/null; then sleep {seconds}; break; fi
  done;;
esac
exec {python} "$@"
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its files say how often workers will be late."""
    directory, wrapper = tmp_path / "late", tmp_path / "python"
    directory.mkdir()
    wrapper.write_text(
        WRAPPER.format(daemon=DAEMON, late=directory, seconds=LATE_S, python=sys.executable)
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(wrapper))
    return directory


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(built, tmp_path)
    made.configure({"kind": "files", "path": "activity", "format": "json"})
    text = made.file.read_text()
    made.file.write_text(text.replace("trigger_ms: 50", "trigger_ms: 50, small_batch_bytes: 0"))
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
    """At the start, and where they are killed and replaced by others that are late as well."""
    (late / "1").touch()
    pipeline.write(10)
    process = pipeline.start()

    def delivered(count: int) -> bool:
        assert process.code is None, process.said
        return len(pipeline.events()) >= count

    pipeline.wait_for(lambda: delivered(10))
    assert not list(late.iterdir())
    (late / "2").touch()
    assert kill(process.processes, f"-m\0{DAEMON}")
    pipeline.write(10)
    pipeline.wait_for(lambda: delivered(20))
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert not list(late.iterdir())
    assert sorted(pipeline.events()) == list(range(1, 21))
    lines = [json.loads(line) for line in process.said.splitlines() if line.startswith("{")]
    assert sum(line["rows"] for line in lines if "batch" in line) == 20, process.said
    # Spark may use a killed one, or more, before it has seen that it is dead.
    pauses = [line for line in process.said.splitlines() if "retries in" in line]
    assert all("was killed or ended by itself" in line for line in pauses), pauses


def test_a_pipeline_whose_java_was_killed_ends(pipeline: Pipeline) -> None:
    """Whoever supervises it starts it again; it can't."""
    pipeline.write(10)
    process = pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.events()) >= 10)
    assert kill(process.processes, "SparkSubmit")
    pipeline.write(10)
    assert process.wait() == 1, process.said
    assert "the JVM of Spark was killed" in process.said
