"""Commit in PostgreSQL → visible in an output, at a fixed rate of single-row transactions.

``delta``   a table of --rows rows in Delta
``files``   an append-only output: Parquet files

    python -m benchmarks.bench_latency [delta files] [--rows 200000] [--rate 1000] [--seconds 60]
        [--warm 180 ...] [--remote sc://localhost:15002]

Several times for --warm: what is seen after each of them.

`tidelog run` as it is shipped, capture and pipeline in one process. What is measured is read from
what it left: the server's time of each commit stands in the event log, and the time at which an
output made an offset visible is that of the file that did so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.bench_capture import Bench, bench, single_row_workload
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind

Visible = list[tuple[int, float]]  # the offset up to which, and when (seconds)


def visible_in_delta(root: Path) -> Visible:
    """From the commits of the table."""
    found = []
    for file in sorted((root / "public" / "orders" / "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            if line.startswith('{"txn"'):
                found.append((json.loads(line)["txn"]["version"], file.stat().st_mtime))
    return found


def visible_in_files(root: Path) -> Visible:
    """From the files: their names tell the offsets, moving them into place sets their ctime."""
    moved: dict[int, float] = {}
    for file in root.glob("table=*/date=*/*.parquet"):
        end = int(file.stem.split("-")[-2])
        moved[end] = max(moved.get(end, 0.0), file.stat().st_ctime)
    return sorted(moved.items())


OUTPUTS: dict[str, tuple[str, str, Callable[[Path], Visible], str]] = {
    "delta": (
        "in Delta", "kind: delta", visible_in_delta, "p50 ≤ 1 s, p99 ≤ 2 s",
    ),
    "files": (
        "appended to Parquet files", "kind: files", visible_in_files, "p50 ≤ 1.5 s",
    ),
}  # fmt: skip


def latencies_s(log: EventLog, visible: Visible, since: float, until: float) -> npt.NDArray:  # type: ignore[type-arg]
    """Of each change committed in that time, how long it took to become visible."""
    ends = np.array([end for end, _ in visible])
    times = np.maximum.accumulate([at for _, at in visible])
    parts = []
    for ref in log.segments(log.head_offset):
        records = log.read(ref, ("offset", "kind", "commit_ts"))
        kind = records.column("kind").to_numpy()
        committed = records.column("commit_ts").to_numpy() / 1e6
        chosen = (kind == int(RecordKind.UPDATE)) & (committed >= since) & (committed < until)
        offsets = records.column("offset").to_numpy()[chosen]
        place = np.searchsorted(ends, offsets, side="right")
        if len(place) and place.max() == len(ends):
            raise RuntimeError("changes of the measured time never became visible")
        parts.append(times[place] - committed[chosen])
    return np.concatenate(parts)


def measure(
    kind: str, rows: int, rate: int, seconds: int, warms_s: Sequence[int], spark: str
) -> list[Row]:
    what, output, visible, goal = OUTPUTS[kind]
    with bench("initial") as here:
        here.fill(rows, 50_000)
        root = here.directory / "copies"
        with here.config_file.open("a") as config:
            config.write(
                f"outputs: [{{{output}, path: {root}}}]\n"
                f"pipeline: {{checkpoint: {here.directory / 'checkpoint'}, {spark}}}\n"
            )
        with running(here):
            wait_for(lambda: EventLog.exists(str(here.config.log.path)))
            log = EventLog.open(str(here.config.log.path))
            wait_for(lambda: bool(v := visible(root)) and v[-1][0] >= rows)
            spans = []
            with single_row_workload(here, rate, max(warms_s) + seconds + 60, rows):
                start = time.time()
                for warm_s in warms_s:
                    time.sleep(max(0, start + warm_s - time.time()))
                    since = time.time()
                    time.sleep(seconds)
                    spans.append((since, time.time()))
            end = log.latest_offset()
            wait_for(lambda: visible(root)[-1][0] >= end)
        delivered = visible(root)
        return [_row(f"{what}, {rows:,} rows", log, delivered, *span, goal) for span in spans]


def _row(what: str, log: EventLog, visible: Visible, since: float, until: float, goal: str) -> Row:
    found = latencies_s(log, visible, since, until)
    before = sum(at < since for _, at in visible)
    batches = sum(since <= at < until for _, at in visible)
    p50, p99, most = np.percentile(found, [50, 99, 100])
    per_second = len(found) / (until - since)
    return Row(
        f"commit → {what}, {per_second:,.0f} transactions/s, after {before:,} batches",
        f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s",
        f"{(until - since) / max(1, batches):.1f} s a batch",
        "",
        goal,
    )


@contextmanager
def running(here: Bench) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "run", str(here.config_file)],
        stdout=subprocess.DEVNULL,
        stderr=(here.directory / "run.log").open("wb"),
    )
    try:
        yield process
    except TimeoutError:
        sys.stderr.write((here.directory / "run.log").read_text()[-2000:])
        raise
    finally:
        process.terminate()
        process.wait(60)


def wait_for(what: Callable[[], object], timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("the output did not get there")
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(OUTPUTS))
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=200_000)
    # Batches take half as long once the JVM has compiled Spark.
    parser.add_argument("--warm", type=int, nargs="+", default=[180])
    parser.add_argument("--remote", help="a Spark Connect server, e.g. sc://localhost:15002")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    spark = f"remote: '{given.remote}'" if given.remote else "master: 'local[2]'"
    seconds, warms_s = (5, [10]) if given.quick else (given.seconds, sorted(given.warm))
    for part in given.parts:
        show(measure(part, given.rows, given.rate, seconds, warms_s, spark))


if __name__ == "__main__":
    main()
