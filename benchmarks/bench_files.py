"""Event log → activity log in Parquet, against pyarrow writing the same records, ``local[2]``.

python -m benchmarks.bench_files [--changes 2000000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tests.support.output_options import LAYOUT, file_format

from benchmarks.spark_workload import Meter, build_tables, delivered_s, report
from benchmarks.table import Row, show
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.files.output import FilesOutput
from tidelog.spark import spark_session
from tidelog.state.sqlite import SqliteState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=2_000_000)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.changes = 8_000
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch:
        _run(given, Path(scratch))


def _run(given: argparse.Namespace, scratch: Path) -> None:
    log = scratch / "log"
    build_tables(log, given.changes, given.tables)
    spark = spark_session("local[2]", delta=False)

    def bring(name: str) -> float:
        output = FilesOutput(
            spark, str(log), SqliteState(f"sqlite:///{scratch / 'state.db'}"),
            Delivery(name, keyed=False, order="none"), path=str(scratch / name),
            layout=LAYOUT, file_format=file_format(),
        )  # fmt: skip
        return delivered_s(spark, log, output, name)

    bring("first")
    with Meter() as meter:
        seconds = bring("second")
    rows, floor = _floor(scratch / "second", scratch / "floor.parquet")
    report("event log → files", rows, meter.reading)
    show(
        [
            Row(
                f"event log → Parquet files ({given.tables} tables, {rows:,} changes)",
                f"{rows / seconds:,.0f} rows/s",
                f"{rows / floor:,.0f} rows/s (pyarrow writes the same records, one thread)",
                f"{floor / seconds:.2f} ×",
                "–",
            )
        ]
    )
    spark.stop()


def _floor(path: Path, target: Path) -> tuple[int, float]:
    """Rows, and the seconds that writing them takes; what is read first is not counted."""
    rows, seconds = 0, 0.0
    for fragment in ds.dataset(path, format="parquet").get_fragments():
        table = fragment.to_table()
        started = time.perf_counter()
        pq.write_table(table, target, compression="zstd")
        seconds += time.perf_counter() - started
        rows += table.num_rows
    return rows, seconds


if __name__ == "__main__":
    main()
