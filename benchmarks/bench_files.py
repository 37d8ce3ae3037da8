"""Event log → activity log in Parquet, against typed Arrow columns of as many rows, as structs,
that pyarrow writes with the same codec. Tasks and floor run in this process, by turns.

python -m benchmarks.bench_files [--changes 2000000]
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tests.support.output_options import LAYOUT, file_format

from benchmarks.spark_workload import TasksHere, build_tables, delivered_s, typed_rows
from benchmarks.table import Row, show
from tidelog.outputs.base.writer import Delivery
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

    tasks, numbers = TasksHere(), count()
    bring("first")
    done = ds.dataset(scratch / "first", format="parquet")
    rows = done.count_rows()
    typed = typed_rows(rows)
    (ours, _), (floor, _) = tasks.by_turns(
        "µs CPU a row, seconds",
        rows,
        lambda: bring(f"run{next(numbers)}"),
        lambda: _floor(typed, scratch / "floor.parquet"),
        1 if given.quick else 5,
    )
    show(
        [
            Row(
                f"event log → Parquet files ({given.tables} tables, {rows:,} changes)",
                f"{ours:.2f} µs CPU a row",
                f"{floor:.2f} µs (pyarrow writes as many rows)",
                f"{floor / ours:.2f} ×",
                "≥ 0.8 ×",
            )
        ]
    )
    spark.stop()


def _floor(rows: pa.Table, target: Path) -> None:
    """Write what each record has: ``op``, four numbers, a time, the key, the row as a struct."""
    count = rows.num_rows
    at = pa.array(np.arange(count))
    fixed = dict.fromkeys(("version", "position", "xid"), at)
    row = rows.to_struct_array().combine_chunks()
    key = pa.StructArray.from_arrays([row.field("id")], ["id"])
    pq.write_table(
        pa.table({
            "op": pa.repeat(pa.scalar("u"), count), **fixed,
            "ts": at.view(pa.timestamp("us", "UTC")),
            "schema_version": pa.repeat(pa.scalar(1, pa.int32()), count),
            "key": key, "after": row,
        }),
        target, compression=file_format().compression,
    )  # fmt: skip


if __name__ == "__main__":
    main()
