"""Capture as it is shipped (fsync on, flush 50 ms, windows and schema versions active).

``backlog``  1.5 M row changes in transactions of 1,000 → durable event log, against pg_recvlogical
``latency``  commit → durable at 2,000 single-row transactions a second
``dump``     1 M rows while that workload runs, and what it does to the latency
``huge``     5 M row changes in one transaction: memory

    python -m benchmarks.bench_capture backlog latency dump huge [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from tests.support.postgres import PostgresServer

from benchmarks.table import Row, show
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump

TABLE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int, status text, amount numeric(12, 2), quantity int,
  placed timestamptz, updated timestamp, note text, reference text, active boolean)
"""
INSERT = """
INSERT INTO orders SELECT g, g % 10000, 'shipped', g % 1000 + 0.25, g % 10, now(), now(),
  'a note of some thirty characters', md5(g::text), g % 2 = 0
FROM generate_series({first}::bigint, {last}::bigint) g
"""
SETTINGS = {"logical_decoding_work_mem": "1GB", "max_wal_size": "16GB", "shared_buffers": "512MB"}


class Bench:
    """A server with the table, an event log, and the shipped configuration."""

    def __init__(
        self,
        server: PostgresServer,
        directory: Path,
        snapshot: str = "no_data",
        log: Path | None = None,
    ) -> None:
        self.server = server
        self.directory = directory
        self.dsn = server.dsn()
        self.config_file = directory / "tidelog.yaml"
        self.config_file.write_text(
            f"source: {{kind: postgres, url: '{self.dsn}', tables: ['public.*'], "
            f"snapshot: {snapshot}}}\nlog: {{path: {log or directory / 'log'}}}\n"
            f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        )
        server.execute(TABLE)

    @property
    def config(self) -> Config:
        return load_config(self.config_file)

    @contextmanager
    def capture(self, records: int = 0, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The capture process, leading; ``options``: see `benchmarks.capture_process`."""
        command = [sys.executable, "-m", "benchmarks.capture_process", str(self.config_file)]
        process = subprocess.Popen(
            [*command, "--records", str(records), *options], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            if "ready" not in process.stdout.readline():
                raise RuntimeError("capture did not start")
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)

    def fill(self, rows: int, transaction_rows: int) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for first in range(1, rows + 1, transaction_rows):
                last = min(rows, first + transaction_rows - 1)
                connection.execute(INSERT.format(first=first, last=last))


@contextmanager
def bench(snapshot: str = "no_data", log: Path | None = None) -> Iterator[Bench]:
    with (
        tempfile.TemporaryDirectory() as directory,
        PostgresServer(16, SETTINGS, fsync=True) as server,
    ):
        yield Bench(server, Path(directory), snapshot, log)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=600)
    report: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return report


def backlog(quick: bool) -> list[Row]:
    rows = 50_000 if quick else 1_500_000
    with bench() as here:
        with here.capture() as process:
            process.terminate()
            result(process)
        for floor in ("floor1", "floor2"):
            here.server.execute(f"SELECT pg_copy_logical_replication_slot('tidelog', '{floor}')")
        here.fill(rows, 1_000)
        end = here.server.execute("SELECT pg_current_wal_lsn()::text")[0][0]
        here.server.execute("CHECKPOINT")
        before = recvlogical(here, "floor1", end)
        with here.capture(rows) as process:
            ours = result(process)
        # Before and after, the better counts: the machine may be busy for one of them.
        floor_s, floor_cpu = min(before, recvlogical(here, "floor2", end))
    return [
        Row(
            f"backlog of {rows:,} row changes → durable event log",
            f"{rows / ours['seconds']:,.0f} rows/s",
            f"{rows / floor_s:,.0f} rows/s (pg_recvlogical to a file)",
            f"{floor_s / ours['seconds']:.2f} ×",
            "≥ 0.95 ×",
        ),
        Row(
            "the same, client CPU a row",
            f"{ours['cpu_s'] / rows * 1e6:.2f} µs",
            f"{floor_cpu / rows * 1e6:.2f} µs",
            "",
            "≤ 4 µs",
        ),
        Row("the same, peak resident memory", f"{ours['peak_mb']:.0f} MB", "", "", "≤ 400 MB"),
    ]


def recvlogical(here: Bench, slot: str, end: str) -> tuple[float, float]:
    """Seconds and CPU seconds of pg_recvlogical over the same backlog."""
    command = [
        str(here.server.binary("pg_recvlogical")), "--dbname", here.dsn, "--slot", slot,
        "--start", "--endpos", end, "--file", str(here.directory / "floor.out"),
        "--option", "proto_version=1", "--option", "publication_names=tidelog",
        "--option", "messages=true",
    ]  # fmt: skip
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def single_row_workload(
    here: Bench, per_second: int, seconds: int, keys: int = 100_000
) -> Iterator[None]:
    """pgbench committing updates of single rows, of keys up to ``keys``, at a fixed rate."""
    script = here.directory / "workload.sql"
    script.write_text(
        f"\\set id random(1, {keys})\n"
        "UPDATE orders SET amount = amount + 1, updated = now() WHERE id = :id;\n"
    )
    process = subprocess.Popen(
        [
            str(here.server.binary("pgbench")), "--no-vacuum", "--client", "8", "--jobs", "1",
            "--rate", str(per_second), "--time", str(seconds), "--file", str(script),
            "--protocol", "prepared", here.dsn,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def latency(quick: bool) -> list[Row]:
    seconds = 4 if quick else 20
    with bench() as here:
        here.fill(100_000, 10_000)
        with here.capture() as process, single_row_workload(here, 2_000, seconds + 30):
            time.sleep(3)
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(seconds)
            process.terminate()
            alone = result(process)
    found = alone["latency_ms"]
    rate = found["count"] / seconds
    return [
        Row(
            f"commit → durable at {rate:,.0f} single-row transactions a second",
            f"p50 {found['p50']:.0f} ms, p99 {found['p99']:.0f} ms",
            "flush interval 50 ms",
            f"p99 {found['p99'] / 50:.2f} ×",
            "≤ 2 ×",
        )
    ]


def dump(quick: bool) -> list[Row]:
    rows = 100_000 if quick else 1_000_000
    quiet_s = 3 if quick else 10
    with bench() as here:
        here.fill(rows, 50_000)
        here.server.execute("VACUUM ANALYZE orders")
        began = time.perf_counter()
        with (
            psycopg.connect(here.dsn) as connection,
            connection.cursor() as cursor,
            cursor.copy("COPY (SELECT * FROM orders) TO STDOUT") as copy,
        ):
            for _ in copy:
                pass
        copy_s = time.perf_counter() - began
        reports = []
        for with_dump in (False, True):
            with here.capture() as process, single_row_workload(here, 2_000, 600):
                time.sleep(3)
                os.kill(process.pid, signal.SIGUSR1)
                if with_dump:
                    began = time.perf_counter()
                    command = StartDump(dump_id="bench", tables=("public.orders",))
                    app.send_command(here.config, command, timeout_s=10)
                    finished = app.dump_wait(here.config, "bench", timeout_s=600).to_dict()
                    took = (finished["finished_ms"] - finished["requested_ms"]) / 1000
                    os.kill(process.pid, signal.SIGUSR2)
                else:
                    time.sleep(quiet_s)
                process.terminate()
                reports.append(result(process))
    quiet, busy = (report["latency_ms"]["p99"] for report in reports)
    return [
        Row(
            f"dump of {rows:,} rows, 2,000 transactions a second running",
            f"{rows / took:,.0f} rows/s",
            f"{rows / copy_s:,.0f} rows/s (COPY in one stream, idle)",
            f"{copy_s / took:.2f} ×",
            "≥ 150,000 rows/s",
        ),
        Row(
            "the same, commit → durable",
            f"p99 {busy:.0f} ms",
            f"p99 {quiet:.0f} ms (no dump)",
            f"{busy / quiet:.2f} ×",
            "≤ 2 ×",
        ),
        Row(
            "the same, peak resident memory", f"{reports[1]['peak_mb']:.0f} MB", "", "", "≤ 400 MB"
        ),
    ]


def huge(quick: bool) -> list[Row]:
    rows = 200_000 if quick else 5_000_000
    with bench() as here:
        with here.capture() as process:
            process.terminate()
            result(process)
        here.fill(rows, rows)
        with here.capture(rows) as process:
            ours = result(process)
    return [
        Row(
            f"{rows:,} row changes in one transaction: peak resident memory",
            f"{ours['peak_mb']:.0f} MB",
            "",
            "",
            "≤ 400 MB",
        )
    ]


PARTS = {"backlog": backlog, "latency": latency, "dump": dump, "huge": huge}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parts", nargs="*", default=list(PARTS))
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    for part in options.parts:
        show(PARTS[part](options.quick))


if __name__ == "__main__":
    main()
