"""Reading PostgreSQL's log: our reader against pg_recvlogical over the same backlog.

The floor is pg_recvlogical writing the same pgoutput messages to a file. Both read a slot each,
over the same transport, in turns; what is shown is each one's best run.

    python benchmarks/bench_stream.py --rows 1500000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import log_reader

from tidelog.model.records import LogBatch, Resume
from tidelog.ports import NullRegistry

TABLE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int, status text, amount numeric(12, 2), quantity int,
  placed timestamptz, updated timestamp, note text, reference uuid, active boolean)
"""
INSERT = """
INSERT INTO orders SELECT g, g %% 10000, 'shipped', g %% 1000 + 0.25, g %% 10, now(), now(),
  'a note of some thirty characters', gen_random_uuid(), g %% 2 = 0
FROM generate_series(%s::bigint, %s::bigint) g
"""


def write_backlog(dsn: str, rows: int, rows_per_transaction: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for first in range(1, rows + 1, rows_per_transaction):
            connection.execute(INSERT, (first, min(rows, first + rows_per_transaction - 1)))


def run_ours(dsn: str, slot: str, begin: Resume, rows: int) -> dict[str, float]:
    reader = log_reader(dsn, NullRegistry(), slot=slot, publication="bench", tables=["public.*"])
    reader.start(begin)
    # Compiled and connected before the clock runs, as pg_recvlogical is.
    began, cpu = time.perf_counter(), _cpu_s()
    seen = payload = 0
    while seen < rows:
        for event in reader.poll(1.0):
            if isinstance(event, LogBatch):
                seen += len(event)
                payload += event.payload_bytes
                reader.acknowledge(event.resume.acknowledge)
    took, cpu = time.perf_counter() - began, _cpu_s() - cpu
    reader.close()
    return {"rows_per_s": rows / took, "cpu_us_per_row": cpu / rows * 1e6, "bytes": payload / rows}


def run_floor(server: PostgresServer, dsn: str, slot: str, rows: int, end: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            str(server.binary("pg_recvlogical")), "--dbname", dsn, "--slot", slot, "--start",
            "--endpos", end, "--file", str(Path(directory, "out")),
            "--option", "proto_version=1", "--option", "publication_names=bench",
            "--option", "messages=true",
        ]  # fmt: skip
        began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return {"rows_per_s": rows / took, "cpu_us_per_row": used / rows * 1e6}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--rows", type=int, default=1_500_000)
    arguments.add_argument("--transaction-rows", type=int, default=1_000)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--version", type=int, default=16)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    settings = {"logical_decoding_work_mem": "1GB", "max_wal_size": "8GB"}
    with PostgresServer(options.version, settings, fsync=True) as server:
        dsn = server.dsn()
        server.execute(TABLE)
        warm = log_reader(dsn, NullRegistry(), slot="first", publication="bench")
        begin = warm.start(None)
        warm.close()
        slots = [f"{name}_{run}" for run in range(options.runs) for name in ("floor", "ours")]
        for slot in slots:
            server.execute(f"SELECT pg_copy_logical_replication_slot('first', '{slot}')")
        write_backlog(dsn, options.rows, options.transaction_rows)
        end = server.execute("SELECT pg_current_wal_lsn()::text")[0][0]
        server.execute("CHECKPOINT")
        ours: list[dict[str, Any]] = []
        floor: list[dict[str, Any]] = []
        for run in range(options.runs):
            floor.append(run_floor(server, dsn, f"floor_{run}", options.rows, end))
            ours.append(run_ours(dsn, f"ours_{run}", begin, options.rows))
    best = max(ours, key=lambda run: run["rows_per_s"])
    best_floor = max(floor, key=lambda run: run["rows_per_s"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if options.json:
        print(json.dumps({"ours": ours, "floor": floor, "peak_mb": peak}))
        return
    for name, run in (("pg_recvlogical to a file", best_floor), ("tidelog log reader", best)):
        speed, cpu = run["rows_per_s"], run["cpu_us_per_row"]
        print(f"{name:26} {speed:>10,.0f} rows/s {cpu:6.2f} µs CPU/row")
    ratio = best["rows_per_s"] / best_floor["rows_per_s"]
    print(f"ratio {ratio:.2f}, {best['bytes']:.0f} bytes a row, peak resident memory {peak:.0f} MB")


if __name__ == "__main__":
    main()
