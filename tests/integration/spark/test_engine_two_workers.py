"""A cluster of two executors: both process one log's events for an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.executors import told_by
from tests.integration.spark import engine_two_workers
from tests.integration.spark.engine_two_workers import ROWS

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]


@pytest.mark.timeout(600)  # of executors, each with all its imports
def test_two_executors_share_one_logs_events(tmp_path: Path) -> None:
    found = told_by(engine_two_workers.__name__, str(tmp_path))
    assert found["in_order"] == found["by_key"] == list(range(ROWS))
    assert found["executors"] == found["consuming"] == 2
    assert found["still"], "the first engine to end took the other's session along"
    assert not found["after"], "the last engine to end left the session that engines began"
