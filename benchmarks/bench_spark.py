"""Spark source, typed, envelope and raw, ``local[2]``, into the noop sink.

The floor of the same run: typed batches that were made before, handed over by a Python source that
does nothing else. That is what Spark takes to get such rows from Python.

    python -m benchmarks.bench_spark [--rows 1500000]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.spark_workload import Meter, build, report
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.spark import spark_session
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes


class Prepared(DataSource):
    """Hands the batches of an Arrow file over, again and again."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def schema(self) -> Any:
        log = EventLog.open(self.options["log"])
        return shapes.typed(log.schemas.versions(TableName("bench", "orders"))[-1], None)

    def reader(self, schema: Any) -> DataSourceReader:
        return PreparedReader(self.options["file"], int(self.options["rows"]))


class PreparedReader(DataSourceReader):
    def __init__(self, file: str, rows: int) -> None:
        self.file, self.rows = file, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(16)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.file) as file:
            batches = pa.ipc.open_file(file).read_all().to_batches()
        left = self.rows // 16
        while left > 0:
            for batch in batches:
                if left > 0:
                    yield batch.slice(0, left)
                    left -= batch.num_rows


def prepare(log_path: Path, file: Path) -> None:
    """Typed batches of the log's last segments, in an Arrow file."""
    log = EventLog.open(log_path)
    schema = log.schemas.versions(TableName("bench", "orders"))[-1]
    options = SourceOptions.parse({"path": str(log_path), "table": "bench.orders"})
    reading = ReadPlan(options, schema, shapes.typed(schema, None))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, reading.arrow_schema) as writer:
        for batch in executor.batches(reading, log, log.segments(log.head_offset)[-4:]):
            writer.write_batch(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--log", type=Path, help="reuse or keep the event log here")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    rows = 250_000 if given.quick else given.rows
    with tempfile.TemporaryDirectory() as scratch:
        path = given.log or Path(scratch) / "log"
        if not path.exists():
            build(path, rows - 200_000, 200_000)
        prepared = Path(scratch) / "prepared.arrow"
        prepare(path, prepared)
        spark = spark_session("local[2]", delta=False)
        spark.dataSource.register(Prepared)
        source = {"path": str(path)}
        typed = {**source, "table": "bench.orders"}
        floor = {"log": str(path), "file": str(prepared), "rows": str(rows)}
        runs: list[tuple[str, str, dict[str, str]]] = [
            ("typed, first run of the session", "tidelog", typed),
            ("floor: prepared batches", "prepared", floor),
            ("floor: prepared batches", "prepared", floor),
            ("typed", "tidelog", typed),
            ("typed", "tidelog", typed),
            ("typed, 3 columns", "tidelog", {**typed, "columns": "id,status,amount"}),
            ("envelope", "tidelog", source),
            ("raw", "tidelog", {**source, "shape": "raw"}),
        ]
        readings = {}
        for label, kind, options in runs:
            with Meter() as meter:
                frame = spark.read.format(kind).options(**options).load()
                frame.write.format("noop").mode("overwrite").save()
            report(f"Spark source, {label}", rows, meter.reading)
            readings[label] = meter.reading
        spark.stop()
    warm, floor_run = readings["typed"], readings["floor: prepared batches"]
    show(
        [
            Row(
                "Spark source, typed, `local[2]`, into the noop sink",
                f"{rows / warm.seconds:,.0f} rows/s",
                f"{rows / floor_run.seconds:,.0f} rows/s (ready Arrow batches through Spark)",
                f"{floor_run.seconds / warm.seconds:.2f} ×",
                "≥ 400,000 rows/s",
            )
        ]
    )


if __name__ == "__main__":
    main()
