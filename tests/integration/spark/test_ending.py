"""How pipelines end, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

pytestmark = [pytest.mark.spark, pytest.mark.integration]

_ROOT = Path(__file__).parents[3]


def _group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)  # Spark's Python daemons have groups of their own


def _all(process: subprocess.Popen[str]) -> None:
    """As systemd does: the service's processes, whatever their group."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
    found = [process.pid]
    for parent in found:
        found += [pid for pid, its in parents.items() if its == parent]
    assert len(found) > 2, "Spark's JVM and a Python worker at least"
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.thorough
@pytest.mark.parametrize("end", [_group, _all])
def test_a_sigterm_to_all_processes_ends_the_pipeline_in_order(
    built: BuiltLog, tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    """The JVM and the Python workers get it, too."""
    orders(built)
    config = tmp_path / "tidelog.yaml"
    config.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        "state: {url: 'sqlite:///state.db'}\n"
        "outputs: [{kind: files, path: ./files}, {kind: files, name: more, path: ./more}]\n"
        "pipeline: {small_batch_bytes: 0}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "pipeline", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        waiting = {"files", "more"}
        while waiting:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            waiting.discard(json.loads(line).get("output"))
        end(process)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "internal error" not in said


_READ = """
import sys
from pyspark.sql import SparkSession
import tidelog.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
tidelog.spark.register(spark)
print("rows", spark.read.format("tidelog").option("path", sys.argv[1]).load().count())
"""


def test_workers_run_the_python_of_the_program(built: BuiltLog, tmp_path: Path) -> None:
    """And not any ``python3`` of the path, which need not have what they import."""
    orders(built)
    other = tmp_path / "bin/python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYSPARK_")}
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(_ROOT / "src")
    ended = subprocess.run(
        [sys.executable, "-c", _READ, built.path],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.stdout.strip() == "rows 4", ended.stderr[-3000:]
