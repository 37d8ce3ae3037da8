"""``rewrite_data_files`` and UPDATE by other sessions, while a pipeline merges."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.integration.iceberg.conftest import IcebergLake
from tests.integration.spark.rewriting import TABLE, merge_beside

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]


def test_what_others_rewrote_meanwhile_is_merged_into_again_by_iceberg(
    lake: IcebergLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.outputs.lake")

    def rewrite(session: Any) -> None:
        session.sql(
            f"CALL lake.system.rewrite_data_files(table => '{TABLE}', "
            "options => map('rewrite-all', 'true'))"
        )

    merge_beside(lake, rewrite, lambda: caplog.text.count("is settled again"))
