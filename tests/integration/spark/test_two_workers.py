"""A cluster of two executors: both decode one log, and outputs get every record once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.executors import told_by
from tests.integration.spark import two_workers
from tests.integration.spark.two_workers import ROWS, SEGMENTS, TABLES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]


def test_two_executors_decode_one_log(tmp_path: Path) -> None:
    found = told_by(two_workers.__name__, str(tmp_path))
    inserted = SEGMENTS * ROWS
    assert len(found["by_executor"]) == 2
    assert sum(found["by_executor"]) == inserted + 2
    assert min(found["by_executor"]) > 0
    assert found["lake"] == {f"shop.t{n}": inserted - 1 for n in range(TABLES)}
    assert found["killed"] == found["lake"]  # an executor was, amid the rows
    assert found["files"] == found["versions"] == TABLES * (inserted + 2)
