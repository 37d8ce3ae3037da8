"""How what the Delta output costs grows: with a table's rows, its batches, its files, the tables.

Tasks run in this process, so that CPU is that of the output alone: decoding, folding, looking keys
up, writing, committing. The Spark job that carries the tasks costs the same whatever they hold: a
line of its own. Each batch is of 1,000 changes of random keys, or of 10 in each of 20 tables.

``rows``      tables of 10^5 to 10^6 rows (with --long: to 2·10^7): their first rows, then batches
``batches``   a table after 1 to 200 batches (--long: to 5,000), by turns with one of the same rows
              that was written at once; then a full scan of both by DuckDB
``files``     tables of 10 to 300 files (--long: to 1,000), which are not put together
``tables``    10 and 100 tables of 100 rows (--long: to 1,000): first rows of all, then batches
``history``   batches into tables of 10^5 rows (--long: to 10^6) with ``holds: history``, by turns
              with copies of the same rows
``iceberg``   Iceberg by turns with Delta, in a catalog of files: first rows of a table of 10^5 rows
              (--long: also 10^6), batches into it, as a copy and as a history, and into 20 tables
``hot``, ``cold``    all with Spark, into both: see `benchmarks.bench_delta`

    python -m benchmarks.bench_lake [rows batches files tables history iceberg hot cold] [--long]
        [--largest N] [--picture FILE] [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import psutil
from pyspark import cloudpickle
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import duckdb_extension

from benchmarks.growth_picture import Curve, write_picture
from benchmarks.spark_workload import COLUMNS, Meter, append, drawn
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.outputs.lake import jobs
from tidelog.outputs.lake.contents import TableContents
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.outputs.lake.iceberg.output import IcebergOptions, IcebergOutput
from tidelog.spark import spark_session
from tidelog.spark.datasource.partitions import whole_segments
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.executor_jobs import run_on_executors
from tidelog.spark.output_loop import MAX_BATCH_BYTES

SIZES = {
    "rows": ((1_000, 4_000), (100_000, 1_000_000), (100_000, 1_000_000, 5_000_000, 20_000_000)),
    "batches": ((1, 30), (1, 50, 200), (1, 50, 200, 1_000, 2_000, 5_000)),
    "files": ((2, 5), (10, 100, 300), (10, 100, 300, 1_000)),
    "tables": ((2, 4), (10, 100), (10, 100, 500, 1_000)),
    "history": ((1_000,), (100_000,), (100_000, 1_000_000)),
    "iceberg": ((1_000,), (100_000,), (100_000, 1_000_000)),
}
"""Of each part: with --quick, by default, with --long."""
WITH_SPARK: dict[str, list[str]] = {
    "hot": [],
    "cold": ["--cold", "--keys", "1000000", "--changes", "500000"],
}
_CHANGES = 1_000
_CHUNK = 100_000
_WARM, _COUNTED = 5, 15  # batches


class Workload:
    """An event log of some tables, and copies of them."""

    def __init__(self, spark: Any, directory: Path, tables: int = 1) -> None:
        directory.mkdir()
        self._directory, self._spark = directory, spark
        self._built = BuiltLog(directory / "log")
        self._random, self._notes = drawn(1)
        self._schemas = [
            self._built.table(f"bench.orders{number}", COLUMNS) for number in range(tables)
        ]

    def insert(self, keys: Any) -> None:
        """These keys into every table, in segments of a dump's size."""
        for schema in self._schemas:
            for start in range(0, len(keys), _CHUNK):
                part = keys[start : start + _CHUNK]
                append(self._built, schema, part, part, self._notes, self._random, "I")

    def change(self, rows: int, keys: int, tables: int = 1) -> None:
        """``rows`` of the first ``tables``, of keys below ``keys``."""
        for schema in self._schemas[:tables]:
            ids = self._random.integers(0, keys, rows)
            append(self._built, schema, ids, np.arange(rows), self._notes, self._random, "")

    def copy(self, name: str, holds: TableContents = "copy", *, iceberg: bool = False) -> Copy:
        root = str(self._directory / name)
        return Copy(self._spark, self._built.path, root, holds, iceberg=iceberg)


class Copy:
    """Copies of the tables of a log, by an output; ``tables`` are at ``root``/bench/orders…"""

    def __init__(
        self, spark: Any, log: str, root: str, holds: TableContents, *, iceberg: bool = False
    ) -> None:
        self._log, self._root = EventLog.open(log), root
        self._output: DeltaOutput | IcebergOutput
        if iceberg:
            catalog = {"type": "hadoop", "warehouse": root}
            of_iceberg = IcebergOptions(holds={"*.*": holds})
            self._output = IcebergOutput(spark, log, catalog, options=of_iceberg)
        else:
            options = DeltaOptions(holds={"*.*": holds})
            self._output = DeltaOutput(spark, log, root, options=options)
        self._end = self._log.head_offset

    def write(self) -> float:
        """Bring all over that is there and was not yet, in batches of a pipeline's size: CPU
        seconds, also of the JVM, in which Iceberg's library commits.
        """
        end, before, start = self._log.latest_offset(), _jvm_cpu_s(), time.process_time()
        while self._end < end:
            until = whole_segments(self._log, self._end, end, MAX_BATCH_BYTES)
            until = self._output.end_of_batch(self._end, until)
            self._output.write(batch_of(self._log, self._end, until))
            self._end = until
        ours = time.process_time() - start  # without the search for the JVM
        return ours + _jvm_cpu_s() - before

    def leave_small_files(self) -> None:
        self._output._maintain = lambda: None  # type: ignore[method-assign]

    def scan(self) -> float:
        """CPU seconds of DuckDB, which reads all columns of the first table."""
        columns = ", ".join(f"max({name})" for name in COLUMNS)
        with duckdb.connect() as connection:
            connection.execute(f"LOAD '{duckdb_extension()}'")
            start = time.process_time()
            query = f"SELECT {columns} FROM delta_scan('{self._root}/bench/orders0')"
            connection.execute(query).fetchall()
            return time.process_time() - start

    def log_bytes(self) -> int:
        """Of the newest checkpoint of the first table; 0: there is none."""
        log = Path(self._root) / "bench" / "orders0" / "_delta_log"
        found = sorted(log.glob("*.checkpoint.parquet"))
        return found[-1].stat().st_size if found else 0

    def close(self) -> None:
        self._output.close()


def batches(workload: Workload, copies: Sequence[Copy], *change: int) -> list[float]:
    """CPU milliseconds of a batch into each copy, by turns."""
    taken: list[list[float]] = [[] for _ in copies]
    for number in range(_WARM + _COUNTED):
        workload.change(*change)
        for copy, found in zip(copies, taken, strict=True):
            spent = copy.write()
            if number >= _WARM:
                found.append(spent * 1e3)
    return [median(each) for each in taken]


def _jvm_cpu_s() -> float:
    below = psutil.Process().children(recursive=True)
    jvms = [each.cpu_times() for each in below if each.name() == "java"]
    return float(sum(each.user + each.system for each in jvms))


def of_rows(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    points: list[tuple[int, float]] = []
    for size in sizes:
        workload = Workload(spark, scratch / f"rows{size}")
        workload.insert(np.arange(size))
        copy = workload.copy("lake")
        first = copy.write() / size * 1e6
        (took,) = batches(workload, [copy], _CHANGES, size)
        points.append((size, took))
        what = f"first rows of a table, {size:,} rows: CPU a row"
        show([Row(what, f"{first:.1f} µs", "", "", "≤ 8 µs")])
        show([_batch(f"{_CHANGES:,} changes in a table of {size:,} rows", points)])
        copy.close()
    return [Curve("rows of the table", points)]


def of_batches(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    keys = 200_000 if max(sizes) > 100 else 2_000
    workload = Workload(spark, scratch / "batches")
    workload.insert(np.arange(keys))
    old = workload.copy("old")
    old.write()
    aged: list[tuple[int, float]] = []
    new: list[tuple[int, float]] = []
    done = 0
    for size in sizes:
        for _ in range(size - done):
            workload.change(_CHANGES, keys)
            old.write()
        fresh = workload.copy(f"fresh{size}")
        fresh.write()
        took, beside = batches(workload, [old, fresh], _CHANGES, keys)
        done = size + _WARM + _COUNTED
        aged.append((size, took))
        new.append((size, beside))
        what = f"{_CHANGES:,} changes in a table of {keys:,} rows, after {size:,} batches"
        cost, floor = f"{took:.0f} ms", f"{beside:.0f} ms (a new copy)"
        show([Row(f"{what}: CPU", cost, floor, f"{took / beside:.2f} ×", "≤ 1.3 ×")])
        fresh.close()
    rewritten = workload.copy("once")
    rewritten.write()
    slow, quick = (median(copy.scan() for _ in range(5)) for copy in (old, rewritten))
    kept, found = f"{old.log_bytes() / 1e3:,.0f} kB", f"{slow * 1e3:.0f} ms"
    floor = f"{quick * 1e3:.0f} ms (the table written at once)"
    what = "full scan of the copy then, by DuckDB: CPU"
    show(
        [
            Row(f"its newest checkpoint, after {done:,} batches", kept, "", "", ""),
            Row(what, found, floor, f"{slow / quick:.2f} ×", "≤ 1.5 ×"),
        ]
    )
    for copy in (old, rewritten):
        copy.close()
    return [Curve("batches before", aged), Curve("the same rows, written at once", new)]


def of_files(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    points: list[tuple[int, float]] = []
    each = 200
    for size in sizes:
        workload = Workload(spark, scratch / f"files{size}")
        copy = workload.copy("lake")
        copy.leave_small_files()
        for number in range(size):
            workload.insert(np.arange(number * each, (number + 1) * each))
            copy.write()
        (took,) = batches(workload, [copy], _CHANGES, size * each)
        points.append((size, took))
        show([_batch(f"{_CHANGES:,} changes in a table of {size:,} files and more", points)])
        copy.close()
    return [Curve("files of the table", points)]


def of_tables(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    points: list[tuple[int, float]] = []
    for size in sizes:
        workload = Workload(spark, scratch / f"tables{size}", size)
        workload.insert(np.arange(100))
        copy, changed = workload.copy("lake"), min(20, size)
        first = copy.write()
        (took,) = batches(workload, [copy], 10, 100, changed)
        points.append((size, took))
        what = f"first rows of {size:,} tables: CPU a table"
        show([Row(what, f"{first / size * 1e3:.0f} ms", "", "", "")])
        show([_batch(f"10 changes in each of {changed} of {size:,} tables", points)])
        copy.close()
    return [Curve("tables, 20 of which change", points)]


def of_history(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    points: list[tuple[int, float]] = []
    for size in sizes:
        workload = Workload(spark, scratch / f"history{size}")
        workload.insert(np.arange(size))
        history, copy = workload.copy("history", "history"), workload.copy("lake")
        for each in (history, copy):
            each.write()
        took, beside = batches(workload, [history, copy], _CHANGES, size)
        points.append((size, took))
        what = f"{_CHANGES:,} changes in a history of {size:,} rows: CPU"
        floor, ratio = f"{beside:.0f} ms (a copy)", f"{took / beside:.2f} ×"
        show([Row(what, f"{took:.0f} ms", floor, ratio, "≤ 1.5 ×")])
        for each in (history, copy):
            each.close()
    return [Curve("rows of the history", points)]


def of_iceberg(spark: Any, scratch: Path, sizes: Sequence[int]) -> list[Curve]:
    """The JVM's CPU is known to 10 ms, so batches are compared by their mean."""

    def show_both(what: str, unit: str, scale: float, delta: float, iceberg: float) -> None:
        floor = f"{delta * scale:.1f} {unit} (Delta)"
        ratio = f"{iceberg / delta:.2f} ×"
        show([Row(what, f"{iceberg * scale:.1f} {unit}", floor, ratio, "≤ 1.5 ×")])

    def compare(workload: Workload, holds: TableContents, *change: int) -> list[float]:
        """First rows, then batches: CPU seconds into Delta and Iceberg."""
        copies = [workload.copy(f"{holds}{at}", holds, iceberg=bool(at)) for at in range(2)]
        first = [copy.write() for copy in copies]
        taken = [0.0, 0.0]
        for number in range(_WARM + _COUNTED):
            workload.change(*change)
            for at, copy in enumerate(copies):
                spent = copy.write()
                taken[at] += spent / _COUNTED if number >= _WARM else 0.0
        for copy in copies:
            copy.close()
        return [*first, *taken]

    compare(Workload(spark, scratch / "warm"), "copy", 100, 1_000)  # the JVM compiles
    for size in sizes:
        for holds in ("copy", "history"):
            workload = Workload(spark, scratch / f"{holds}{size}")
            workload.insert(np.arange(size))
            delta, iceberg, *taken = compare(workload, holds, _CHANGES, size)
            what = f"{_CHANGES:,} changes in a {holds} of {size:,} rows: CPU"
            show_both(f"first {size:,} rows, {holds}: CPU a row", "µs", 1e6 / size, delta, iceberg)
            show_both(what, "ms", 1e3, *taken)
    workload = Workload(spark, scratch / "tables", 20)
    workload.insert(np.arange(100))
    _, _, *taken = compare(workload, "copy", 10, 100, 20)
    show_both("10 changes in each of 20 tables: CPU", "ms", 1e3, *taken)
    return []


def warm_up(spark: Any, scratch: Path) -> None:
    """What is compiled or imported once is not counted."""
    workload = Workload(spark, scratch / "warm")
    workload.insert(np.arange(1_000))
    copy = workload.copy("lake")
    copy.write()
    batches(workload, [copy], 100, 1_000)
    copy.close()


PARTS: dict[str, Callable[[Any, Path, Sequence[int]], list[Curve]]] = {
    "rows": of_rows, "batches": of_batches, "files": of_files, "tables": of_tables,
    "history": of_history, "iceberg": of_iceberg,
}  # fmt: skip


def _batch(what: str, points: Sequence[tuple[int, float]]) -> Row:
    """``points``: size and milliseconds, the newest last; the first is what it is compared to."""
    (least, first), (_, took) = points[0], points[-1]
    ratio = f"{took / first:.2f} ×" if len(points) > 1 else ""
    return Row(f"{what}: CPU", f"{took:.0f} ms", f"{first:.0f} ms ({least:,})", ratio, "")


def job_ms(spark: Any) -> float:
    """CPU of all processes for a job of two tasks that do nothing."""
    for _ in range(20):
        run_on_executors(spark, len, ["", ""])
    with Meter() as meter:
        for _ in range(20):
            run_on_executors(spark, len, ["", ""])
    return meter.reading.cpu_seconds / 20 * 1e3


def here(_spark: Any, function: Callable[[Any], Any], items: Sequence[Any], **_: Any) -> list[Any]:
    """As `run_on_executors`, in this process."""
    return [
        cloudpickle.loads(cloudpickle.dumps(function(cloudpickle.loads(cloudpickle.dumps(item)))))  # type: ignore[no-untyped-call]
        for item in items
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="default: all")
    parser.add_argument("--long", action="store_true", help="large ones, too: an hour and more")
    parser.add_argument("--largest", type=int, help="leave larger sizes out")
    parser.add_argument("--picture", type=Path, help="write the curves there")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    size = 0 if given.quick else 2 if given.long else 1
    wanted = given.parts or [*PARTS, *WITH_SPARK]
    for name in [each for each in WITH_SPARK if each in wanted]:  # memory and CPU of their own
        options = [*WITH_SPARK[name], *(["--quick"] if given.quick else [])]
        for lake in ("delta", "iceberg"):
            command = [sys.executable, "-m", "benchmarks.bench_delta", "--lake", lake, *options]
            subprocess.run(command, check=True)
    spark = spark_session("local[2]", delta=False, iceberg=True)
    nothing = job_ms(spark)
    show([Row("a Spark job of two tasks that do nothing: CPU", f"{nothing:.0f} ms", "", "", "")])
    jobs.run_on_executors = here  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as scratch:
        warm_up(spark, Path(scratch))
    curves = []
    for part in [each for each in PARTS if each in wanted]:
        sizes = [each for each in SIZES[part][size] if each <= (given.largest or each)]
        with tempfile.TemporaryDirectory() as scratch:
            found = PARTS[part](spark, Path(scratch), sizes)
        curves.append(found)
    if given.picture:
        write_picture(given.picture, curves)
    spark.stop()


if __name__ == "__main__":
    main()
