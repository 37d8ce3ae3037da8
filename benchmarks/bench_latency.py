"""Commit in PostgreSQL → visible in an output, at a fixed rate of single-row transactions.

``delta``, ``iceberg``   a table of --rows rows
``files``   an append-only output: Parquet files
``kafka``, ``postgres``, ``http``    as a consumer, a reader, the API sees them

    python -m benchmarks.bench_latency [delta iceberg files kafka postgres http] [--rows 200000]
        [--rate 1000] [--seconds 60] [--warm 180 ...] [--trigger 1s] [--remote sc://localhost:15002]

Several times for --warm: what is seen after each of them. Cores are those that `tidelog run` and
Spark use, while idle (for half a minute) and in the measured time.

`tidelog run` as it is shipped, capture and pipeline in one process. What is measured is read from
what it left: the server's time of each commit stands in the event log, and the time at which an
output made an offset visible is that of the file that did so. A consumer of the topic notes when a
message came, the API when it stored a request, and a reader of the copy polls its newest version.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import psycopg
from confluent_kafka import Consumer
from tests.support.http_receiver import HttpReceiver
from tests.support.kafka import KafkaServer
from tests.support.postgres import PostgresServer

from benchmarks.bench_capture import Bench, bench, single_row_workload
from benchmarks.table import Row, show
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind
from tidelog.outputs.kafka.client import VERSION_HEADER

Visible = list[tuple[int, float]]  # the offset up to which, and when (seconds)
Destination = tuple[str, Callable[[], Visible]]  # the output's options


@contextmanager
def delta(root: Path) -> Iterator[Destination]:
    """From the commits of the table."""

    def visible() -> Visible:
        found = []
        for file in sorted((root / "public" / "orders" / "_delta_log").glob("*.json")):
            for line in file.read_text().splitlines():
                if line.startswith('{"txn"'):
                    found.append((json.loads(line)["txn"]["version"], file.stat().st_mtime))
        return found

    yield f"kind: delta, path: {root}", visible


@contextmanager
def iceberg(root: Path) -> Iterator[Destination]:
    """From the newest metadata file of a catalog of files, which is polled."""

    def watch(found: Visible, stop: threading.Event) -> None:
        known, folder = "", root / "public" / "orders" / "metadata"
        while not stop.wait(0.02):
            with suppress(OSError):
                version = (folder / "version-hint.text").read_text()
                if version and version != known:
                    seen = time.time()
                    metadata = json.loads((folder / f"v{version}.metadata.json").read_text())
                    ends = [
                        v for n, v in metadata["properties"].items() if n.endswith("/committed")
                    ]
                    found += [(int(end), seen) for end in ends]
                    known = version

    with _watching(watch) as found:
        yield f"kind: iceberg, path: {root}", lambda: list(found)


@contextmanager
def files(root: Path) -> Iterator[Destination]:
    """From the files: their names tell the offsets, moving them into place sets their ctime."""

    def visible() -> Visible:
        moved: dict[int, float] = {}
        for file in root.glob("table=*/date=*/*.parquet"):
            end = int(file.stem.split("-")[-2])
            moved[end] = max(moved.get(end, 0.0), file.stat().st_ctime)
        return sorted(moved.items())

    yield f"kind: files, path: {root}", visible


@contextmanager
def kafka(_root: Path) -> Iterator[Destination]:
    def watch(found: Visible, stop: threading.Event) -> None:
        settings = {"bootstrap.servers": server.servers, "group.id": "bench"}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        while "orders" not in consumer.list_topics(timeout=30).topics and not stop.wait(0.2):
            pass
        consumer.subscribe(["orders"])
        while not stop.is_set():
            for message in consumer.consume(10_000, 0.02):
                found.append((int(dict(message.headers())[VERSION_HEADER]) + 1, time.time()))
        consumer.close()

    jvm = ["-Xmx512m", "-XX:+UseSerialGC"]
    with KafkaServer(jvm=jvm) as server, _watching(watch) as found:
        yield f"kind: kafka, servers: '{server.servers}', topic: '{{name}}'", lambda: sorted(found)


@contextmanager
def postgres(_root: Path) -> Iterator[Destination]:
    def watch(found: Visible, stop: threading.Event) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            while not stop.wait(0.02):
                with suppress(psycopg.errors.UndefinedTable):
                    query = "SELECT max(_tidelog_version) FROM public.orders"
                    [(newest,)] = connection.execute(query).fetchall()
                    if newest is not None and (not found or newest >= found[-1][0]):
                        found.append((newest + 1, time.time()))

    with PostgresServer(18) as server, _watching(watch) as found:
        yield f"kind: postgres, url: '{server.dsn()}'", lambda: list(found)


@contextmanager
def http(root: Path) -> Iterator[Destination]:
    receiver = HttpReceiver(root.with_suffix(".db"))
    receiver.start()
    try:
        query = "SELECT at, json_extract(event, '$.__version') FROM events"

        def visible() -> Visible:
            return sorted((version + 1, at) for at, version in receiver._read(query))

        yield f"kind: http, format: flat, url: '{receiver.url}/events/{{table}}'", visible
    finally:
        receiver.kill()


@contextmanager
def _watching(watch: Callable[[Visible, threading.Event], None]) -> Iterator[Visible]:
    found: Visible = []
    stop = threading.Event()
    thread = threading.Thread(target=watch, args=(found, stop))
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


_GOAL = "p50 ≤ 0.4 s, p99 ≤ 1 s"
OUTPUTS: dict[str, tuple[str, Callable[[Path], AbstractContextManager[Destination]], str]] = {
    "delta": ("in Delta", delta, "p50 ≤ 1 s, p99 ≤ 2 s"),
    "iceberg": ("in Iceberg", iceberg, "p50 ≤ 1.5 s, p99 ≤ 3 s"),
    "files": ("appended to Parquet files", files, "p50 ≤ 1.5 s"),
    "kafka": ("in Kafka", kafka, _GOAL),
    "postgres": ("in PostgreSQL", postgres, _GOAL),
    "http": ("posted by HTTP", http, _GOAL),
}


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


def _after_last_change(log: EventLog) -> int:
    for ref in reversed(log.segments(log.head_offset)):
        records = log.read(ref, ("offset", "kind"))
        chosen = records.column("kind").to_numpy() == int(RecordKind.UPDATE)
        if chosen.any():
            return int(records.column("offset").to_numpy()[chosen][-1]) + 1
    raise RuntimeError("there are no changes")


def measure(
    kind: str, rows: int, rate: int, seconds: int, warms_s: Sequence[int], spark: str
) -> list[Row]:
    what, destination, goal = OUTPUTS[kind]
    with bench("initial") as here, destination(here.directory / "copies") as (output, visible):
        here.fill(rows, 50_000)
        with here.config_file.open("a") as config:
            config.write(
                f"outputs: [{{{output}}}]\n"
                f"pipeline: {{checkpoint: {here.directory / 'checkpoint'}, {spark}}}\n"
            )
        with running(here) as process:
            wait_for(lambda: EventLog.exists(str(here.config.log.path)))
            log = EventLog.open(str(here.config.log.path))
            wait_for(lambda: bool(v := visible()) and v[-1][0] >= rows)
            spans = []
            since, before = time.time(), cpu_s(process)
            time.sleep(seconds / 2)
            idle = (cpu_s(process) - before) / (time.time() - since)
            with single_row_workload(here, rate, max(warms_s) + seconds + 60, rows):
                start = time.time()
                for warm_s in warms_s:
                    time.sleep(max(0, start + warm_s - time.time()))
                    since, before = time.time(), cpu_s(process)
                    time.sleep(seconds)
                    cores = (cpu_s(process) - before) / (time.time() - since)
                    spans.append((since, time.time(), f"{cores:.2f} cores, idle {idle:.2f}"))
            time.sleep(2)  # until capture has the last changes
            end = _after_last_change(log)
            wait_for(lambda: visible()[-1][0] >= end)
        delivered = visible()
        return [_row(f"{what}, {rows:,} rows", log, delivered, *span, goal) for span in spans]


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of the process, its children and those that ended."""
    used = 0.0
    for each in [found := psutil.Process(process.pid), *found.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            used += sum(each.cpu_times()[:4])
    return used


def _row(
    what: str,
    log: EventLog,
    visible: Visible,
    since: float,
    until: float,
    cores: str,
    goal: str,
) -> Row:
    found = latencies_s(log, visible, since, until)
    seen = len({at for _, at in visible if since <= at < until})
    p50, p99, most = np.percentile(found, [50, 99, 100])
    per_second = len(found) / (until - since)
    return Row(
        f"commit → {what}, {per_second:,.0f} transactions/s",
        f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s",
        f"{(until - since) / max(1, seen):.1f} s between two looks that showed more",
        cores,
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
    parser.add_argument("--trigger", help="pipeline.trigger_ms")
    parser.add_argument("--remote", help="a Spark Connect server, e.g. sc://localhost:15002")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    spark = f"remote: '{given.remote}'" if given.remote else "master: 'local[2]'"
    spark += f", trigger_ms: {given.trigger}" if given.trigger else ""
    seconds, warms_s = (5, [10]) if given.quick else (given.seconds, sorted(given.warm))
    for part in given.parts:
        show(measure(part, given.rows, given.rate, seconds, warms_s, spark))


if __name__ == "__main__":
    main()
