"""examples/activity_log runs: a real shop, and the moment its orders stop coming in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration]

EXAMPLE = Path(__file__).parents[3] / "examples" / "activity_log"


def test_the_example_shows_where_inserts_fell_away(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    try:
        page, written = importlib.import_module("run").run(tmp_path, 18.0)
    finally:
        for name in ("run", "dashboard"):
            sys.modules.pop(name, None)
    text = page.read_text()
    assert "Inserts of public.orders</strong> fell from" in text
    # Every row that the shop wrote is a record, once.
    files = ds.dataset(tmp_path / "data" / "activity", partitioning="hive", format="parquet")
    frame = files.to_table(columns=["table", "op", "version"]).group_by(["table", "op"])
    counts = {
        f"{row['op']} {row['table']}": row["version_count_distinct"]
        for row in frame.aggregate(
            [("version", "count_distinct"), ("version", "count")]
        ).to_pylist()
        if row["version_count"] == row["version_count_distinct"]
    }
    ops = {"insert": "c", "update": "u", "delete": "d"}
    for statement, rows in written.items():
        verb, table = statement.split()
        more = 1 if statement == "update customers" else 0  # the example's last one
        assert counts[f"{ops[verb]} public.{table}"] == rows + more
