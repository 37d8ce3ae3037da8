"""A cluster of two executors: both process one log's events for an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.spark import engine_two_workers
from tests.integration.spark.engine_two_workers import ROWS

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]


@pytest.mark.timeout(600)  # of executors, each with all its imports
def test_two_executors_share_one_logs_events(tmp_path: Path) -> None:
    root = Path(engine_two_workers.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.engine_two_workers", str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        timeout=560,
        check=True,
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["in_order"] == found["by_key"] == list(range(ROWS))
    assert found["executors"] == found["consuming"] == 2
    assert found["still"], "the first engine to end took the other's session along"
    assert not found["after"], "the last engine to end left the session that engines began"
