"""A cluster of two executors: both decode one log, and outputs get every record once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.spark import two_workers
from tests.integration.spark.two_workers import ROWS, SEGMENTS, TABLES

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


def test_two_executors_decode_one_log(tmp_path: Path) -> None:
    root = Path(two_workers.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.two_workers", str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        timeout=560,
        check=True,
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    inserted = SEGMENTS * ROWS
    assert len(found["by_executor"]) == 2
    assert sum(found["by_executor"]) == inserted + 2
    assert min(found["by_executor"]) > 0
    assert found["lake"] == {f"shop.t{n}": inserted - 1 for n in range(TABLES)}
    assert found["killed"] == found["lake"]  # an executor was, amid the rows
    assert found["files"] == found["versions"] == TABLES * (inserted + 2)
