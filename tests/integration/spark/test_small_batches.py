"""A small batch is written by the pipeline's process: seen from outside, no Spark runs."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyiceberg.table import StaticTable
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of
from tests.support.iceberg_readers import by_pyiceberg

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Pipeline:
    return Pipeline(built, tmp_path)


def run_once(pipeline: Pipeline, *, small_batch_bytes: int, kind: str = "delta") -> bool:
    """Deliver all; whether Spark ran."""
    pipeline.configure({"kind": kind, "path": "lake"})
    text = pipeline.file.read_text()
    small = f"trigger_ms: 50, small_batch_bytes: {small_batch_bytes}"
    pipeline.file.write_text(text.replace("trigger_ms: 50", small))
    pipeline.write(10)
    command = [sys.executable, "-m", "tidelog", "pipeline", "--once", str(pipeline.file)]
    java = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        own = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                started = own.children(recursive=True)
                java = java or any("SparkSubmit" in " ".join(p.cmdline()) for p in started)
            time.sleep(0.02)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0
    assert java or "Spark" not in said, said
    return java


@pytest.mark.parametrize(("small_batch_bytes", "java"), [(1 << 20, False), (100, True), (0, True)])
def test_java_runs_for_what_is_no_small_batch(
    pipeline: Pipeline, tmp_path: Path, small_batch_bytes: int, java: bool
) -> None:
    for count in (10, 20):
        assert run_once(pipeline, small_batch_bytes=small_batch_bytes) == java
        for read in (by_delta_rs, by_duckdb):
            found = rows_of(read(str(tmp_path / "lake/public/t")))
            assert [row["id"] for row in found] == list(range(1, count + 1))


def test_spark_does_not_run_for_a_small_batch_of_iceberg(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Iceberg's library has a Java process of its own."""
    assert not run_once(pipeline, small_batch_bytes=1 << 20, kind="iceberg")
    table = StaticTable.from_metadata(str(tmp_path / "lake/public/t/metadata/v2.metadata.json"))
    assert [row["id"] for row in by_pyiceberg(table)] == list(range(1, 11))


def test_a_session_that_does_not_start_is_reported_though_batches_are_small(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.configure(
        {"kind": "delta", "path": "lake"}, conf={"spark.driver.memory": "4 elephants"}
    )
    pipeline.write(10)
    process = pipeline.start()
    try:
        assert process.wait(240) == 2, process.said
        assert "Spark does not start" in process.said
    finally:
        process.close()
