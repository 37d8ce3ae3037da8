"""Somebody else runs VACUUM on the copies of a pipeline that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import OutputError

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

CONF = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Spark's default of 10,000 takes minutes on two cores: see docs/outputs/delta.md.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
ROWS = 20


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(built, tmp_path)
    made.configure({"kind": "delta", "path": "lake"})
    yield made
    made.close()


@pytest.mark.thorough
def test_vacuum_that_keeps_nothing_between_batches(spark: Any, pipeline: Pipeline) -> None:
    """The process goes on with the files of the newest version, and lacks none of the others."""
    directory = pipeline.directory / "lake/public/t"
    session = spark.newSession()
    for name, value in CONF.items():
        session.conf.set(name, value)

    def rows() -> dict[int, str]:
        found = session.sql(f"SELECT id, v FROM delta.`{directory}`").collect()
        assert len(found) == len({row["id"] for row in found})
        return {row["id"]: row["v"] for row in found}

    pipeline.write(ROWS)
    process = pipeline.start()
    expected = {n: f"v{n}" for n in range(1, ROWS + 1)}
    pipeline.wait_for(lambda: f'"rows": {ROWS}' in process.said)
    for turn in range(1, 3):
        before = set(directory.glob("*.parquet"))
        pipeline.built.update(pipeline.table, str(turn), f"changed {turn}")
        pipeline.built.delete(pipeline.table, str(ROWS - turn))
        expected[turn] = f"changed {turn}"
        del expected[ROWS - turn]
        pipeline.built.flush()
        pipeline.wait_for(lambda: rows() == expected)
        session.sql(f"VACUUM delta.`{directory}` RETAIN 0 HOURS")
        after = set(directory.glob("*.parquet"))
        assert before - after, "it removed what the newest version does not need"
        assert rows() == expected
    assert process.code is None
    assert "tries again" not in process.said, process.said


def test_a_file_that_is_gone_is_told_with_a_way_out(lake: Lake, built: BuiltLog) -> None:
    """VACUUM removes a file that a batch has written and not committed yet, if it keeps nothing."""
    table = orders(built)
    lake.run()
    before = set(Path(lake.path).rglob("part-*.parquet"))
    built.insert(table, "9", "later", "1.5")
    built.update(table, "1", "changed", "1.5")
    built.flush()
    lake.run()
    for file in set(Path(lake.path).rglob("part-*.parquet")) - before:
        file.unlink()
    built.update(table, "9", UNCHANGED, "2.5")  # what it keeps is in that file
    built.flush()
    with pytest.raises(OutputError, match=r"a file of the table is gone.*restore the table"):
        lake.run()
    lake.spark.sql(f"RESTORE TABLE {lake.name('public.orders')} TO VERSION AS OF 1")
    lake.run()
    assert [row[:2] for row in lake.rows("public.orders")] == [
        (0, "n0"), (1, "changed"), (2, "n2"), (3, "n3"), (9, "later")
    ]  # fmt: skip
