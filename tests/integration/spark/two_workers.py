"""Decodes one event log on two executors, and brings it to outputs: a process, for it needs a Spark
of its own; then once more while an executor is killed. Prints what it found as JSON.

python -m tests.integration.spark.two_workers DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests import executors
from tests.support.build_log import BuiltLog

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.files.output import FilesOutput
from tidelog.outputs.files.writer import FileFormat
from tidelog.outputs.lake.delta.output import DeltaOptions, DeltaOutput
from tidelog.spark import spark_session
from tidelog.spark.executor_jobs import map_in_arrow
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.state.sqlite import SqliteState

TABLES, SEGMENTS, ROWS = 3, 8, 500


def build(path: Path) -> BuiltLog:
    built = BuiltLog(path)
    tables = [
        built.table(f"shop.t{n}", {"id": "int64", "name": "text"}, relation_id=n + 1)
        for n in range(TABLES)
    ]
    for segment in range(SEGMENTS):
        for table in tables:
            for row in range(ROWS):
                built.insert(table, str(segment * ROWS + row), f"n{segment}")
        built.flush()
    for table in tables:
        built.update(table, "1", "changed")
        built.delete(table, "2")
    built.flush()
    return built


def by_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Which executor's daemon this worker was forked from, and how many rows it got."""
    rows = sum(len(batch) for batch in batches)
    yield pa.RecordBatch.from_pydict({"executor": [os.getppid()], "rows": [rows]})


def main() -> None:
    directory = Path(sys.argv[1])
    built = build(directory / "log")
    spark = spark_session(executors.MASTER, conf=executors.CONF)
    from pyspark.sql.types import LongType, StructField, StructType

    rows: Any = (
        spark.read.format("tidelog")
        .option("path", built.path)
        .option("table", "shop.t0")
        .option("partitions", "4")
        .option("partitionBytes", "1")
        .load()
        .select("version")
    )
    shape = StructType([StructField("executor", LongType()), StructField("rows", LongType())])

    class ByExecutor:
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return by_executor(batches)

    decoded: dict[int, int] = {}
    for row in map_in_arrow(rows, ByExecutor(), shape).collect():
        decoded[row["executor"]] = decoded.get(row["executor"], 0) + row["rows"]
    state = f"sqlite:///{directory}/state.db"
    outputs: list[Any] = [
        DeltaOutput(spark, built.path, str(directory / "lake")),
        FilesOutput(
            spark,
            built.path,
            SqliteState(state),
            Delivery("files", keyed=False, order="none"),
            path=str(directory / "files"),
            layout="table={table}",
            file_format=FileFormat("parquet", "json", "zstd", 64 << 20),
        ),
    ]
    run_output_loops(spark, built.path, outputs, LoopOptions(once=True))
    for output in outputs:
        output.close()

    def bring_over() -> None:
        output = DeltaOutput(
            spark, built.path, str(directory / "killed"),
            name="killed", options=DeltaOptions(steps=executors.KILL_ONE),
        )  # fmt: skip
        try:
            run_output_loops(spark, built.path, [output], LoopOptions(once=True))
        finally:
            output.close()

    executors.with_one_killed(directory / "died", bring_over)

    def counted(root: str) -> dict[str, int]:
        return {
            f"shop.t{n}": spark.read.format("delta").load(f"{directory}/{root}/shop/t{n}").count()
            for n in range(TABLES)
        }

    files = spark.read.parquet(str(directory / "files"))
    print(
        json.dumps(
            {
                "by_executor": list(decoded.values()),
                "killed": counted("killed"),
                "lake": counted("lake"),
                "files": files.count(),
                "versions": files.select("version").distinct().count(),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
