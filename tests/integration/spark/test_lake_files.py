"""Spark reads the files that are written, and skips none that has rows for a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.skipped_files import conditions, write_tables

pytestmark = pytest.mark.spark


def test_spark_skips_no_file_with_rows_for_a_query(spark: Any, tmp_path: Path) -> None:
    with_statistics, _, parted = write_tables(tmp_path)
    chosen = conditions()
    # A cut text, rounded times; NaN and the last values; what is above all but those.
    for table, where, ids in (
        (with_statistics, *chosen[3]),
        (with_statistics, *chosen[5]),
        (with_statistics, *chosen[6]),
        (parted, *chosen[5]),
    ):
        rows = spark.read.format("delta").load(str(table)).where(where).select("id").collect()
        assert [row.id for row in rows] == ids, (table.name, where)
