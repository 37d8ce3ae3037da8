"""Spark source, typed and envelope, ``local[2]``, into the noop sink.

The floor of the same run: the same Arrow batches through Spark without reading or decoding anything,
is what Spark itself takes to get rows from a Python source.

    python benchmarks/bench_spark.py [--rows 1500000]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.spark_workload import Meter, build, report
from tidelog.pipeline import spark_session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--log", type=Path)
    rows = parser.parse_args().rows
    given = parser.parse_args().log
    with tempfile.TemporaryDirectory() as scratch:
        path = given or Path(scratch) / "log"
        if not path.exists():
            build(path, rows - 200_000, 200_000)
        spark = spark_session("local[2]", delta=False)
        for label, options in (
            ("typed, first run (cold JVM)", {"table": "bench.orders"}),
            ("typed", {"table": "bench.orders"}),
            ("typed, 3 columns", {"table": "bench.orders", "columns": "id,status,amount"}),
            ("envelope", {}),
            ("raw", {"shape": "raw"}),
        ):
            with Meter() as meter:
                frame = spark.read.format("tidelog").option("path", str(path)).options(**options)
                frame.load().write.format("noop").mode("overwrite").save()
            report(f"Spark source, {label}", rows, meter.reading)
        spark.stop()


if __name__ == "__main__":
    main()
