"""VACUUM of copies, by the output; and by somebody else, beside a running pipeline."""

from __future__ import annotations

import json
import os
import time
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
from tidelog.outputs.lake.delta import vacuum
from tidelog.outputs.lake.delta_log.table_state import PREVIOUS

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


def test_the_output_removes_what_vacuum_would(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and vectors that were replaced more than a week ago, and what no commit names; also
    with ``--once``.
    """
    table = built.table("public.t", {"id": "int64", "p": "text"})
    days = 24 * 3600

    def batch(*keys: int, **options: Any) -> None:
        for key in keys:
            built.insert(table, str(key), f"a/{key % 2}")
        built.flush()
        options = {"partition_by": {"public.t": ["p"]}, **options}
        lake.run(output=lake.output(options=lake.options(**options)))

    batch(*range(20))
    root = Path(lake.path) / "public/t"
    # A file of each partition gets a vector; then one loses all rows, the other gets a new vector.
    for keys in ((0, 1), (3, *range(0, 20, 2)), (5,)):
        for key in keys:
            built.update(table, str(key), f"a/{key % 2}")
        batch()
    old = time.time() - 30 * days
    *earlier, newest = sorted((root / "_delta_log").glob("*.json"))
    for log in (*earlier, newest):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if log != newest:
                line.get("remove", {})["deletionTimestamp"] = int((time.time() - 8 * days) * 1000)
            line.get("commitInfo", {}).pop(PREVIOUS, None)  # the commit before it is altered too
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for file in root.rglob("*"):
        os.utime(file, (old, old))
    (root / "left.parquet").touch()
    os.utime(root / "left.parquet", (old, old))
    (root / "under way.parquet").touch()
    session = lake.spark.newSession()
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    found = session.sql(f"VACUUM delta.`{root}` RETAIN 168 HOURS DRY RUN").collect()
    expected = {row[0].removeprefix(f"file:{root}/") for row in found}
    before = {file for file in root.rglob("*") if file.is_file()}
    monkeypatch.setattr(vacuum, "FIRST_S", 0.0)
    batch(21, vacuum_after_s=7.0 * days)
    gone = {str(file.relative_to(root)) for file in before if not file.exists()}
    assert gone == {name for name in expected if not (root / name).is_dir()}
    assert any(name.startswith("p=a%2F0/") for name in gone)
    assert any("deletion_vector" in name for name in gone)
    assert len(lake.rows("public.t")) == 21


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
        for value in (f"once {turn}", f"twice {turn}"):  # the first one's file is not needed then
            pipeline.built.update(pipeline.table, str(turn), value)
            expected[turn] = value
            if expected.pop(ROWS - turn, None):
                pipeline.built.delete(pipeline.table, str(ROWS - turn))
            pipeline.built.flush()
            pipeline.wait_for(lambda: rows() == expected)
        before = set(directory.glob("*.parquet"))
        session.sql(f"VACUUM delta.`{directory}` RETAIN 0 HOURS")
        after = set(directory.glob("*.parquet"))
        assert before - after, "it removed what the newest version does not need"
        assert rows() == expected
    assert process.code is None
    assert "tries again" not in process.said, process.said


def test_a_file_that_is_gone_is_reported_with_a_way_out(lake: Lake, built: BuiltLog) -> None:
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
    with pytest.raises(OutputError, match=r"a file of the table is missing.*restore the table"):
        lake.run()
    lake.spark.sql(f"RESTORE TABLE {lake.name('public.orders')} TO VERSION AS OF 1")
    lake.run()
    assert [row[:2] for row in lake.rows("public.orders")] == [
        (0, "n0"), (1, "changed"), (2, "n2"), (3, "n3"), (9, "later")
    ]  # fmt: skip
