"""Many tables in one stream → Delta: what 200 MERGEs of few rows cost, ``local[2]``.

Each table changes at a steady rate, and a batch is what came in within the stated freshness. The
floor, from the same run: as many MERGEs as there were, of no rows at all, and as many rows at what
one costs in a stream of one table. Costs are CPU seconds of all processes.

    python -m benchmarks.bench_tables [--tables 200] [--rate 20] [--freshness 60] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.build_log import BuiltLog

from benchmarks.spark_workload import COLUMNS, Meter, Reading, append, drawn, report
from benchmarks.table import Row, show
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.pipeline import spark_session
from tidelog.spark.queries.run import run_pipeline

_PARALLEL = 2  # the output's default
_BATCHES = 3  # the first is not counted: Spark compiles its code


class Stream:
    """An event log of some tables, and the pipeline that brings it over."""

    def __init__(self, spark: Any, directory: Path, tables: int, keys: int) -> None:
        self.spark = spark
        self.directory = directory
        self.keys = keys
        self.built = BuiltLog(directory / "log")
        self.random, self.notes = drawn(1)
        self.schemas = [self.built.table(f"bench.orders{n}", COLUMNS) for n in range(tables)]
        for schema in self.schemas:
            self._append(schema, np.arange(keys), "I")
        self.run()

    def change(self, rows: int) -> None:
        """``rows`` changes of random keys in each table."""
        for schema in self.schemas:
            self._append(schema, self.random.integers(0, self.keys, rows), "")

    def _append(self, schema: Any, ids: Any, kind: str) -> None:
        salts = np.arange(len(ids))
        append(self.built, schema, ids, salts, self.notes, self.random, kind)

    def run(self) -> None:
        """Bring over what is there, in one batch."""
        output = DeltaOutput(
            self.spark, str(self.directory / "log"), str(self.directory / "lake"),
            parallel_tables=_PARALLEL,
        )  # fmt: skip
        try:
            run_pipeline(
                self.spark, str(self.directory / "log"), [output], once=True,
                max_batch_bytes=4 << 30,
            )  # fmt: skip
        finally:
            output.close()

    def merge_nothing(self) -> None:
        """A MERGE of no rows into each table."""

        def merge(number: int) -> None:
            self.spark.sql(
                f"MERGE INTO delta.`{self.directory}/lake/bench/orders{number}` t "
                f"USING (SELECT * FROM delta.`{self.directory}/lake/bench/orders0` WHERE id < 0) s "
                "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(merge, range(len(self.schemas))))


def measured(what: str, rows: int, work: Callable[[], None]) -> Reading:
    with Meter() as meter:
        work()
    report(what, rows, meter.reading)
    return meter.reading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rate", type=int, default=20, help="changes a second and table")
    parser.add_argument("--freshness", type=int, default=60, help="seconds of a batch")
    parser.add_argument("--keys", type=int, default=5_000, help="rows of a table")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.keys, given.freshness = 4, 500, 5
    tables, each = given.tables, given.rate * given.freshness
    rows = tables * each
    with tempfile.TemporaryDirectory() as scratch:
        spark = spark_session("local[2]")
        many = Stream(spark, Path(scratch) / "many", tables, given.keys)
        one = Stream(spark, Path(scratch) / "one", 1, tables * given.keys)
        counted = []
        for _ in range(_BATCHES):
            many.change(each)
            one.change(rows)
            counted = [
                measured(f"{tables} tables", rows, many.run),
                measured("one table", rows, one.run),
                measured(f"{tables} MERGEs of nothing", rows, many.merge_nothing),
            ]
        spark.stop()
    ours, single, nothing = (reading.cpu_seconds for reading in counted)
    floor = nothing + single
    show(
        [
            Row(
                f"{tables} tables × {given.rate} changes/s → Delta, fresh to {given.freshness} s: "
                "CPU of a batch",
                f"{ours:.1f} s CPU in {counted[0].seconds:.1f} s",
                f"{floor:.1f} s ({tables} empty MERGEs {nothing:.1f} + {rows:,} rows {single:.1f})",
                f"{ours / floor:.2f} ×",
                "≤ 1.3 ×",
            )
        ]
    )


if __name__ == "__main__":
    main()
