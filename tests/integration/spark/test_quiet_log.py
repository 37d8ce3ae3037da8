"""What a pipeline writes to its log while a destination is away, and the processes of its Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

pytestmark = [pytest.mark.spark, pytest.mark.integration]
TRIES = 2
WRAPPER = """#!/bin/sh
echo "$*" >> {started}
exec {python} "$@"
"""


@pytest.mark.parametrize("by_spark", [True, False])
def test_a_destination_that_is_away_is_reported_in_sentences(
    built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """And not by the stacks of Spark's driver, its executors and Python, at every try. Spark starts
    workers, if it writes, and no process that looks for data sources, which takes a second of CPU.
    """
    wrapper, started = tmp_path / "python", tmp_path / "started"
    wrapper.write_text(WRAPPER.format(started=started, python=sys.executable))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(wrapper))
    orders(built)
    config = tmp_path / "tidelog.yaml"
    config.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        "state: {url: 'sqlite:///state.db'}\n"
        "outputs: [{kind: http, url: 'http://127.0.0.1:9/{table}', retry_for_ms: 0}]\n"
        + "pipeline: {small_batch_bytes: 0}\n"
        * by_spark
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "pipeline", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    try:
        assert process.stderr is not None
        while sum("retries in" in line for line in said) < TRIES:
            line = process.stderr.readline()
            assert line, said
            said.append(line)
        process.terminate()
        said += process.communicate(timeout=300)[1].splitlines()
    finally:
        process.kill()
    told = [line for line in said if "127.0.0.1" in line and "retries in" in line]
    assert len(told) >= TRIES
    assert not [line for line in said if "incubator" in line]
    assert len(said) <= len(told) + 3, "".join(said)
    programs = started.read_text() if started.exists() else ""
    assert ("pyspark.worker" in programs) == by_spark
    assert "data_source" not in programs


@pytest.mark.thorough
def test_the_log_of_spark_is_shown_from_the_level_that_is_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "tidelog.yaml"
    config.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        "pipeline: {log_level: info, master: 'local[1]'}\n"
        "outputs: [{kind: http, url: 'http://127.0.0.1:9/{table}'}]\n"
    )
    program = (
        "from tidelog.app.pipeline.run import session; from tidelog.config import load_config; "
        f"print(session(load_config({str(config)!r})).range(1).count())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1\n"
    assert done.stderr.count(" INFO DAGScheduler: ") > 3
    assert "default log level" not in done.stderr
