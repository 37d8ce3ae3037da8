"""Reads one event log through Spark Connect: a process, for a session of Connect and one of another
kind don't live in one. Prints what it found as JSON.

python -m tests.integration.spark.remote_session DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.build_log import BuiltLog
from tests.unit.spark.dumped import dump

import tidelog
from tidelog.errors import UsageError
from tidelog.spark import as_of, spark_session

TABLE = "public.orders"
NOT_STARTED = "failed to connect back"
TRIES = 5


def patient(work: Callable[[], Any]) -> Any:
    """Spark gives a Python worker ten seconds to start, whatever else the machine does."""
    for number in range(TRIES):
        try:
            return work()
        except PySparkException as error:
            if NOT_STARTED not in str(error) or number + 1 == TRIES:
                raise
    return None


def build(directory: Path) -> BuiltLog:
    built = BuiltLog(directory / "log")
    orders = built.table(TABLE, {"id": "int64", "total": "decimal(10,2)"})
    dump(built, orders, [["1", "9.50"]], "d1")
    built.update(orders, "1", "12.50")
    built.insert(orders, "2", "1.00")
    built.delete(orders, "2")
    built.flush()
    return built


def stream(spark: SparkSession, built: BuiltLog, directory: Path) -> dict[str, Any]:
    log = spark.readStream.format("tidelog").options(path=built.path, table=TABLE).load()
    query = (
        log.select("version", "op")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    lag = tidelog.spark.lag_of(query.lastProgress)
    rows = spark.read.parquet(str(directory / "rows")).orderBy("version").collect()
    return {"ops": [row.op for row in rows], "left": None if lag is None else lag.records}


def batches(spark: SparkSession, built: BuiltLog, directory: Path) -> list[str]:
    log = spark.readStream.format("tidelog").options(path=built.path, table=TABLE).load()
    target = str(directory / "batches")

    def write(frame: Any, _number: int) -> None:
        frame.write.mode("append").parquet(target)

    query = (
        log.select("version", "op")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint-of-batches"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [row.op for row in spark.read.parquet(target).orderBy("version").collect()]


def refused() -> str:
    try:
        spark_session("local[2]")
    except UsageError as error:
        return str(error)
    return ""


def main() -> None:
    directory = Path(sys.argv[1])
    built = build(directory)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()

    def read(**options: str) -> Any:
        return spark.read.format("tidelog").options(path=built.path, **options).load()

    def ops(frame: Any) -> list[str]:
        return [row.op for row in frame.orderBy("version").collect()]

    def view() -> list[str]:
        options = f"path '{built.path}', table '{TABLE}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING tidelog OPTIONS ({options})")
        return ops(spark.sql("SELECT * FROM orders"))

    found: dict[str, Any] = {"typed": patient(lambda: ops(read(table=TABLE)))}
    tidelog.spark.register(spark)
    found["registered"] = patient(lambda: ops(read(table=TABLE)))
    found["key"] = patient(lambda: ops(read(table=TABLE, key='{"id": 1}')))
    for shape in ("envelope", "variant", "raw", "segments"):
        found[shape] = patient(lambda shape=shape: read(shape=shape).count())
    found["view"] = patient(view)
    found["as_of"] = patient(
        lambda: [row.asDict() for row in as_of(spark, built.path).table(TABLE).collect()]
    )
    found["stream"] = patient(lambda: stream(spark, built, directory))
    found["batches"] = patient(lambda: batches(spark, built, directory))
    found["refused"] = refused()
    print(json.dumps(found, default=str))
    spark.stop()


if __name__ == "__main__":
    main()
