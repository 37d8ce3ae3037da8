"""Event log → Delta of the same changes, captured from each kind of source, ``local[2]``.

``fold``   what executors do alone: read the event log, decode, fold to the newest state of a key
``delta``  the whole way, all processes

    python -m benchmarks.bench_delta_sources [fold delta] [--source NAME] [--changes N] [--keys N]

Every server gets the same rows and the same updates, and the shipped capture makes its event log.
PostgreSQL's CPU a row is the floor of the others; of several rounds each source's best counts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_capture import Bench, bench, result
from benchmarks.mysql_orders import DATABASE, NUMBERS_ROWS, SERVERS, UPDATE, mysql_bench
from benchmarks.spark_workload import Meter, Reading, report
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.ports import OutputBatch, TableRange
from tidelog.spark import spark_session
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.pipeline import LoopOptions, run_output_loops

FLOOR = "postgres"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Source:
    kind: str
    table: TableName
    log: Path
    keys: int
    loaded: int  # the offset behind the keys' inserts


def updates(changes: int, keys: int) -> Iterator[str]:
    """Transactions of 1,000 neighbours, wherever they are: the same for each source."""
    chosen = random.Random(5)
    for _ in range(0, changes, NUMBERS_ROWS):
        first = chosen.randint(1, keys - NUMBERS_ROWS + 1)
        yield UPDATE.format(first=first, last=first + NUMBERS_ROWS - 1)


@contextmanager
def server(kind: str) -> Iterator[Bench]:
    with bench() if kind == FLOOR else mysql_bench(kind) as here:
        yield here


def captured(kind: str, directory: Path, changes: int, keys: int) -> Source:
    """An event log of the workload, made by the shipped capture."""
    with server(kind) as here:
        with here.capture() as process:
            process.terminate()
            result(process)
        here.fill(keys, NUMBERS_ROWS)
        with here.capture(keys) as process:
            result(process)
        log = EventLog.open(str(here.config.log.path))
        loaded = log.latest_offset()
        database = () if kind == FLOOR else (DATABASE,)
        for statement in updates(changes, keys):
            here.server.execute(statement.replace("NOW(6)", "now()"), *database)
        with here.capture(changes) as process:
            result(process)
        path = directory / kind
        shutil.copytree(str(here.config.log.path), path)
    table = TableName("public" if kind == FLOOR else DATABASE, "orders")
    return Source(kind, table, path, keys, loaded)


def fold(sources: list[Source], changes: int, rounds: int) -> list[Row]:
    cpu = dict.fromkeys((source.kind for source in sources), float("inf"))
    for _ in range(1 + 2 * rounds):
        for source in sources:
            cpu[source.kind] = min(cpu[source.kind], folded_s(source) / changes * 1e6)
    return [
        Row(
            f"{kind}: event log read, decoded and folded, {changes:,} updates, CPU a row",
            f"{cpu[kind]:.2f} µs",
            f"{cpu[FLOOR]:.2f} µs (the same from PostgreSQL)",
            f"{cpu[kind] / cpu[FLOOR]:.2f} ×",
            "",
        )
        for kind in cpu
        if kind != FLOOR
    ]


def folded_s(source: Source) -> float:
    """CPU seconds of this process."""
    log = EventLog.open(str(source.log))
    schema = log.schemas.versions(source.table)[-1]
    options = {"path": str(source.log), "table": str(source.table), "shape": "changes"}
    plan = ReadPlan(SourceOptions.parse(options), schema, shapes.changes(schema))
    began, rows = time.process_time(), 0
    for batch in executor.batches(plan, log, log.segments(source.loaded)):
        rows += batch.num_rows
    if not 0 < rows <= source.keys:
        raise RuntimeError(f"{source.kind}: {rows:,} keys changed of {source.keys:,}")
    return time.process_time() - began


def delta(sources: list[Source], changes: int, rounds: int, scratch: Path) -> list[Row]:
    spark = spark_session("local[2]")
    kinds = [source.kind for source in sources]
    cpu = dict.fromkeys(kinds, float("inf"))
    speed = dict.fromkeys(kinds, 0.0)
    if rounds > 1:
        written(spark, sources[0], scratch)  # the JVM compiles what all of them run
    for _ in range(rounds):
        for source in sources:
            reading = written(spark, source, scratch)
            report(f"event log of {source.kind} → Delta", changes, reading)
            cpu[source.kind] = min(cpu[source.kind], reading.cpu_seconds / changes * 1e6)
            speed[source.kind] = max(speed[source.kind], changes / reading.seconds)
    spark.stop()
    return [
        Row(
            f"{kind}: event log → Delta, {changes:,} updates over {sources[0].keys:,} keys, "
            "CPU a row over all processes",
            f"{cpu[kind]:.1f} µs ({speed[kind]:,.0f} rows/s)",
            f"{cpu[FLOOR]:.1f} µs ({speed[FLOOR]:,.0f} rows/s; the same from PostgreSQL)",
            f"{cpu[kind] / cpu[FLOOR]:.2f} ×",
            "≤ 1.3 ×",
        )
        for kind in kinds[1:]
    ]


def written(spark: Any, source: Source, scratch: Path) -> Reading:
    """The keys are there already; what the changes cost."""
    lake = scratch / "lake"
    log = EventLog.open(str(source.log))
    ids = frozenset(schema.schema_id for schema in log.schemas.versions(source.table))
    output = DeltaOutput(spark, str(source.log), str(lake))
    size = sum(s.payload_bytes for s in log.segments(log.head_offset, source.loaded))
    ranges = (TableRange(source.table, ids, source.keys, size),)
    try:
        output.write(OutputBatch(log.generation, log.head_offset, source.loaded, ranges))
        with Meter() as meter:
            # A name of its own: an earlier one has delivered all.
            name = f"pipeline-{next(_numbers)}"
            run_output_loops(spark, str(source.log), [output], LoopOptions(once=True), name=name)
    finally:
        output.close()
    rows = spark.read.format("delta").load(f"{lake}/{source.table.namespace}/orders").count()
    if rows != source.keys:
        raise RuntimeError(f"{source.kind}: {rows:,} rows in the table, not {source.keys:,}")
    shutil.rmtree(lake)
    return meter.reading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["fold", "delta"])
    parser.add_argument("--source", action="append", choices=list(SERVERS), help="default: each")
    parser.add_argument("--changes", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.changes, given.keys, given.rounds = 20_000, 5_000, 1
    changes = given.changes
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        kinds = [FLOOR, *(given.source or SERVERS)]
        sources = [captured(kind, scratch, changes, given.keys) for kind in kinds]
        for part in given.parts:
            if part == "fold":
                show(fold(sources, changes, given.rounds))
            else:
                show(delta(sources, changes, given.rounds, scratch))


if __name__ == "__main__":
    main()
