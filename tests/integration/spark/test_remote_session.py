"""Programs that reach Spark through Spark Connect (``sc://…``) read the event log as others do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

CHANGES = ["r", "u", "c", "d"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    for package in ("grpc_status", "pandas", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect: pip install 'pyspark[connect]'")
    directory = tmp_path_factory.mktemp("remote")
    command = [sys.executable, "-m", "tests.integration.spark.remote_session", str(directory)]
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert ended.returncode == 0, ended.stderr[-5000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def test_every_shape_is_read(found: dict[str, Any]) -> None:
    """Also before `register`: the server finds the source where Tidelog is installed."""
    assert found["typed"] == found["registered"] == found["view"] == CHANGES
    assert found["key"] == ["r", "u"]
    assert (found["envelope"], found["variant"]) == (4, 4)
    assert found["raw"] > 4
    assert found["segments"] > 1


def test_tables_are_as_they_were(found: dict[str, Any]) -> None:
    [row] = found["as_of"]
    assert (row["id"], row["total"]) == (1, "12.50")


def test_streams_run_and_tell_their_lag(found: dict[str, Any]) -> None:
    assert found["stream"] == {"ops": CHANGES, "left": 0}
    assert found["batches"] == CHANGES


def test_a_pipeline_in_such_a_session_is_refused(found: dict[str, Any]) -> None:
    assert "Spark Connect" in found["refused"]
