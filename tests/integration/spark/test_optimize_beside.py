"""OPTIMIZE, Z-ORDER, VACUUM and UPDATE by other sessions, while a pipeline merges."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.rewriting import TABLE, merge_beside

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

CONF = {
    "spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@pytest.mark.parametrize("layout", ["", "ZORDER BY (v)"], ids=["plain", "zorder"])
def test_what_others_rewrote_meanwhile_is_merged_into_again(
    lake: Lake, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    def rewrite(session: Any) -> None:
        for name, value in CONF.items():
            session.conf.set(name, value)
        session.sql(f"OPTIMIZE {lake.name(TABLE)} {layout}")
        session.sql(f"VACUUM {lake.name(TABLE)} RETAIN 1 HOURS")

    caplog.set_level(logging.INFO, "tidelog.outputs.lake.delta")
    merge_beside(lake, rewrite, lambda: caplog.text.count("the batch is settled anew"))
