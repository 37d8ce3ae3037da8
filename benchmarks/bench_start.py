"""What starting costs: `tidelog pipeline --once` with and without work, the first batch of
`tidelog pipeline`, and the first rows of a PostgreSQL after `tidelog run`, by wall time and CPU of
all processes.

python -m benchmarks.bench_start [files] [delta] [run] [--tables 1 21] [--runs 3]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from tests.support.build_log import BuiltLog
from tests.support.postgres import PostgresServer

from benchmarks.spark_workload import COLUMNS, append, drawn
from benchmarks.table import Row, show

OUTPUTS = {
    "files": "{kind: files, path: files}",
    "delta": "{kind: delta, path: lake}",
}
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a command leaves behind becomes our child
_ROWS = 1000  # of each table


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: until the command had ended, or told what was waited for, and CPU of all that it
    started."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outputs", nargs="*", help=f"{', '.join(OUTPUTS)}, run; default: all")
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 21])
    parser.add_argument("--runs", type=int, default=3, help="of each command; the median counts")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.outputs, given.tables, given.runs = ["files"], [1], 1
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    for output in given.outputs or (*OUTPUTS, "run"):
        for tables in given.tables:
            with tempfile.TemporaryDirectory() as scratch:
                if output == "run":
                    _measure_run(Path(scratch), tables)
                else:
                    _measure(Path(scratch), output, tables, given.runs)


def _measure(directory: Path, output: str, tables: int, runs: int) -> None:
    file = directory / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://nobody@localhost:1/none'}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "pipeline: {checkpoint: checkpoint, master: 'local[2]'}\n"
        f"outputs: [{OUTPUTS[output]}]\n"
    )
    built = BuiltLog(directory / "log")
    schemas = [built.table(f"bench.orders{number}", COLUMNS) for number in range(tables)]
    random, notes = drawn(1)
    rounds = iter(range(10_000))

    def write() -> None:
        """A thousand rows more in each table."""
        for schema in schemas:
            ids = np.arange(_ROWS) + next(rounds) * _ROWS
            append(built, schema, ids, np.zeros(_ROWS, np.int64), notes, random, "I")

    write()
    first = _once(directory)
    empty = [_once(directory) for _ in range(runs)]
    filled = []
    for _ in range(runs):
        write()
        filled.append(_once(directory))
    visible = []
    for _ in range(runs):
        write()
        visible.append(_until_visible(directory))
    what = f"{output}, {tables} table{'s'[: tables > 1]}"
    show(
        [
            _row(f"`pipeline --once`, the first batch ever, {what}", [first]),
            _row(f"`pipeline --once`, nothing to do, {what}", empty, "≤ 2 s, ≤ 1.5 s CPU"),
            _row(f"`pipeline --once`, {_ROWS:,} new rows a table, {what}", filled),
            _row(f"first batch visible after `tidelog pipeline`, {what}", visible, "≤ 10 s"),
        ]
    )


def _measure_run(directory: Path, tables: int) -> None:
    with PostgresServer(16) as server:
        dsn = server.create_database("shop")
        for number in range(tables):
            server.execute(
                f"CREATE TABLE t{number} AS SELECT i AS id, 'row ' || i AS name, now() AS at "
                f"FROM generate_series(1, {_ROWS}) i; ALTER TABLE t{number} ADD PRIMARY KEY (id)",
                "shop",
            )
        (directory / "tidelog.yaml").write_text(
            f"source: {{kind: postgres, url: '{dsn}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "pipeline: {checkpoint: checkpoint, master: 'local[2]'}\n"
            "outputs: [{kind: delta, path: lake}]\n"
        )

        def wait(_process: subprocess.Popen[str]) -> None:
            while _filled(directory / "lake") < tables:
                time.sleep(0.05)

        spent = _spent(directory, "run", wait)
    what = f"first rows of {tables} tables of {_ROWS:,} rows in Delta after `tidelog run`"
    show([_row(what, [spent], "≤ 20 s")])


def _filled(lake: Path) -> int:
    commits = lake.glob("*/*/_delta_log/*.json")
    return len({commit.parent for commit in commits if '"add"' in commit.read_text()})


def _row(what: str, found: Sequence[Spent], goal: str = "") -> Row:
    wall = statistics.median(each.wall for each in found)
    cpu = statistics.median(each.cpu for each in found)
    return Row(what, f"{wall:.1f} s, {cpu:.1f} s CPU", "", "", goal)


def _once(directory: Path) -> Spent:
    return _spent(directory, "pipeline", lambda process: process.wait(), "--once")


def _until_visible(directory: Path) -> Spent:
    """The command goes on; it is ended once it has told of a batch."""

    def told(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if "batch" in json.loads(line):
                break

    return _spent(directory, "pipeline", told)


def _spent(
    directory: Path, command: str, wait: Callable[[subprocess.Popen[str]], object], *arguments: str
) -> Spent:
    call = [sys.executable, "-m", "tidelog", command, "tidelog.yaml", "--json", *arguments]
    others = {each.pid for each in psutil.Process().children()}  # a server
    before, began = _cpu(), time.perf_counter()
    with (directory / "stderr").open("w") as errors:
        process = subprocess.Popen(
            call,
            cwd=directory,
            stdout=subprocess.DEVNULL if arguments or command == "run" else subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    wait(process)
    wall = time.perf_counter() - began
    process.terminate()
    if process.stdout is not None:
        process.stdout.read()
    if process.wait() not in (0, -15):
        raise RuntimeError(
            f"it ended with {process.returncode}: {(directory / 'stderr').read_text()}"
        )
    # Spark's JVM and its workers end after the command.
    while left := {each.pid for each in psutil.Process().children()} - others:
        for process_id in left:
            os.waitpid(process_id, 0)
    return Spent(wall, _cpu() - before)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
