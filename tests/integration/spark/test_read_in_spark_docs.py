"""The examples of the page about reading in Spark, run one after the other."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.unit.spark.dumped import dump

from tidelog.spark import register
from tidelog.spark.datasource.options import _NAMES
from tidelog.spark.formats.shapes import ENVELOPE, RAW, SEGMENTS, VARIANT

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "read-in-spark.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "spark-source.md").read_text(encoding="utf-8")


def shop(built: BuiltLog) -> None:
    customers = built.table("public.customers", {"id": "int64", "name": "text"}, relation_id=2)
    columns = {"id": "int64", "customer": "int64", "total": "decimal(10,2)"}
    orders = built.table("public.orders", columns)
    dump(built, customers, [["7", "Ann"]], "d1")
    dump(built, orders, [["1", "7", "9.50"]], "d1")
    built.update(orders, "1", "7", "12.50")
    built.insert(orders, "2", "7", "1.00")
    built.delete(orders, "2")
    built.flush()


@pytest.mark.spark
def test_examples_of_the_page_run(
    spark: Any, built: BuiltLog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop(built)
    register(spark)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            text = block.replace("/var/lib/tidelog/log", built.path)
            exec(text.replace("/var/lib/tidelog", str(tmp_path)), names)
    finally:
        if "watch" in names:
            spark.streams.removeListener(names["watch"])
    assert names["hour"].count() == 4
    assert [row.op for row in names["history"].collect()] == ["r", "u"]
    assert names["lines"].collect()[0].total == names["history"].collect()[1].after.total
    assert names["then"].tables == ["public.customers", "public.orders"]
    totals = names["everything"].selectExpr("after:total::string t").collect()
    assert [row.t for row in totals] == [None, "9.5", "12.5", "1", None]
    assert names["json"].count() == 5
    assert names["since"].isStreaming
    assert "Lag(bytes=0, records=0, seconds=0.0)" in capfd.readouterr().out


def test_every_option_and_column_is_on_the_reference_page() -> None:
    for name in _NAMES:
        assert f"- `{name}`: " in REFERENCE
    for shape in (ENVELOPE, VARIANT, RAW, SEGMENTS):
        for column in shape.names:
            assert f"`{column}`" in REFERENCE, column


def test_the_hour_of_the_page_is_that_of_built_logs() -> None:
    assert datetime.fromtimestamp(1_700_000_000, UTC).isoformat() == "2023-11-14T22:13:20+00:00"
