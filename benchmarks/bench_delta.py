"""Event log → Delta or Iceberg: changes over keys that are in the table already, ``local[2]``.

``hot``: the session that writes has filled the table before, so its JVM has compiled what it runs.
``--cold``: another process has filled it, and the batch is the first thing that the session does.

python -m benchmarks.bench_delta [--changes 1500000] [--keys 200000] [--cold] [--lake iceberg]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.spark_workload import Meter, build, report
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.outputs.lake.iceberg.output import IcebergOutput
from tidelog.spark import spark_session
from tidelog.spark.output_loop import MAX_BATCH_BYTES
from tidelog.spark.pipeline import BatchProgress, LoopOptions, run_output_loops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_500_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--lake", choices=("delta", "iceberg"), default="delta")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--batch-bytes", type=int, default=MAX_BATCH_BYTES)
    parser.add_argument("--cold", action="store_true", help="fill the table in another process")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)  # the lake; what --cold starts
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    title = given.lake.capitalize()
    if given.quick:
        given.changes, given.keys = 20_000, 5_000
    with tempfile.TemporaryDirectory() as scratch:
        path = given.log or Path(scratch) / "log"
        if not path.exists():
            build(path, given.changes, given.keys)
        lake = given.fill or Path(scratch) / "lake"
        if given.cold:
            _fill_in_another_process(path, lake, given.keys, given.lake)
        iceberg = given.lake == "iceberg"
        conf = dict(c.split("=", 1) for c in given.conf)
        spark = spark_session("local[2]", conf=conf, delta=not iceberg, iceberg=iceberg)

        def open_output() -> DeltaOutput | IcebergOutput:
            if iceberg:
                catalog = {"type": "hadoop", "warehouse": str(lake)}
                return IcebergOutput(spark, str(path), catalog)
            return DeltaOutput(spark, str(path), str(lake))

        def progress(done: BatchProgress) -> None:
            print(f"  batch {done.number}: {done.rows:,} rows in {done.seconds:.1f} s", flush=True)

        def run(name: str, batch_bytes: int) -> None:
            output = open_output()
            try:
                run_output_loops(
                    spark, str(path), [output],
                    LoopOptions(once=True, max_batch_bytes=batch_bytes),
                    name=name, on_progress=progress,
                )  # fmt: skip
            finally:
                output.close()

        # The keys' inserts are a batch of their own: 200 k dump-like rows into an empty table.
        log = EventLog.open(path)
        first = log.chain().segments
        head = sum(s.payload_bytes for s in first[: 1 + -(-given.keys // 24_000)])
        if not given.cold:
            with Meter() as meter:
                _load(open_output(), head, log, given.keys)
            report(f"event log → {title}, new table", given.keys, meter.reading)
        if given.fill:
            return
        with Meter() as meter:
            run("changes", given.batch_bytes)
        report(f"event log → {title}", given.changes, meter.reading)
        written = meter.reading
        with Meter() as meter:
            frame = spark.read.format("tidelog").option("path", str(path))
            frame = frame.option("table", "bench.orders").load()
            frame.write.format("noop").mode("overwrite").save()
        everything = given.changes + given.keys
        show(
            [
                Row(
                    f"event log → {title}, {given.changes:,} changes over {given.keys:,} keys, "
                    f"{'cold' if given.cold else 'hot'} session",
                    f"{given.changes / written.seconds:,.0f} rows/s",
                    f"{everything / meter.reading.seconds:,.0f} rows/s (the same, only read)",
                    f"{meter.reading.seconds / written.seconds * given.changes / everything:.2f} ×",
                    "≥ 60,000 rows/s",
                ),
                Row(
                    "the same, CPU a row over all processes",
                    f"{written.cpu_seconds / given.changes * 1e6:.1f} µs",
                    f"{meter.reading.cpu_seconds / everything * 1e6:.1f} µs",
                    "",
                    "≤ 8 µs",
                ),
            ]
        )
        spark.stop()
        shutil.rmtree(lake, ignore_errors=True)


def _fill_in_another_process(path: Path, root: Path, keys: int, lake: str) -> None:
    command = [sys.executable, "-m", "benchmarks.bench_delta", "--log", str(path), "--lake", lake]
    subprocess.run([*command, "--fill", str(root), "--keys", str(keys)], check=True)


def _load(output, head, log, keys):  # type: ignore[no-untyped-def]
    from tidelog.model.schema import TableName
    from tidelog.ports import OutputBatch, TableRange

    table = TableName("bench", "orders")
    end, rows = 0, 0
    for segment in log.chain().segments:
        if rows >= keys:
            break
        rows, end = rows + segment.rows, segment.next
    ids = frozenset([1])
    output.write(
        OutputBatch(log.generation, log.head_offset, end, (TableRange(table, ids, rows, head),))
    )
    output.close()


if __name__ == "__main__":
    main()
