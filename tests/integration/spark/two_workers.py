"""Decodes one event log on two executors, and brings it to outputs: a process, for it needs a Spark
of its own. Prints what it found as JSON.

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

from tidelog.outputs.delta import DeltaOutput
from tidelog.outputs.executing import Delivery
from tidelog.outputs.files import FilesOutput
from tidelog.outputs.files_writer import FileFormat
from tidelog.pipeline import spark_session
from tidelog.pipeline.arrow_frames import map_in_arrow
from tidelog.pipeline.run import run_pipeline
from tidelog.state.sqlite import SqliteState
from tidelog.testing.build_log import BuiltLog

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


def executors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Which executor's daemon this worker was forked from, and how many rows it got."""
    rows = sum(len(batch) for batch in batches)
    yield pa.RecordBatch.from_pydict({"executor": [os.getppid()], "rows": [rows]})


def main() -> None:
    directory = Path(sys.argv[1])
    built = build(directory / "log")
    spark = spark_session(
        "local-cluster[2,1,1024]",
        conf={
            "spark.driver.memory": "1g",
            "spark.executor.memory": "800m",
            "spark.sql.shuffle.partitions": "2",
            # Both are there before the first task is given.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.locality.wait": "0s",
        },
    )
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

    class Executors:
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return executors(batches)

    by_executor: dict[int, int] = {}
    for row in map_in_arrow(rows, Executors(), shape).collect():
        by_executor[row["executor"]] = by_executor.get(row["executor"], 0) + row["rows"]
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
    run_pipeline(spark, built.path, outputs, str(directory / "checkpoint"), once=True)
    for output in outputs:
        output.close()
    lake = {
        f"shop.t{n}": spark.read.format("delta").load(f"{directory}/lake/shop/t{n}").count()
        for n in range(TABLES)
    }
    files = spark.read.parquet(str(directory / "files"))
    print(
        json.dumps(
            {
                "by_executor": list(by_executor.values()),
                "lake": lake,
                "files": files.count(),
                "versions": files.select("version").distinct().count(),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
