"""Keys that are read again: an UPDATE that moves every row's key and leaves its TOAST as it is.

The log has only some of the columns of such rows, so that capture reads each again. Another table
takes an insert every few milliseconds meanwhile: how far behind does its log fall?

    python -m benchmarks.bench_rereads [--rows 300000] [--quick]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

import psycopg

from benchmarks.bench_capture import Bench, bench, result
from benchmarks.table import Row, show
from tidelog.capture.dumps.refetch_queue import REFETCH_DUMP_ID
from tidelog.eventlog.reader import EventLog

DOCUMENT_BYTES = 2_100
"""More than fits into a row without TOAST, uncompressed."""
EVERY_S = 0.005
GIVE_UP_S = 1800.0


def fill(here: Bench, rows: int) -> None:
    here.server.execute("CREATE TABLE document (id bigint PRIMARY KEY, n int, body text)")
    here.server.execute("ALTER TABLE document ALTER body SET STORAGE EXTERNAL")
    here.server.execute("CREATE TABLE beat (id bigserial PRIMARY KEY, written timestamptz)")
    with psycopg.connect(here.dsn, autocommit=True) as connection:
        for first in range(1, rows + 1, 10_000):
            connection.execute(
                "INSERT INTO document SELECT g, 1, rpad(g::text, %s, 'x') "
                "FROM generate_series(%s::bigint, %s::bigint) g",
                (DOCUMENT_BYTES, first, min(rows, first + 9_999)),
            )
    here.server.execute("VACUUM (FREEZE, ANALYZE) document")
    here.server.execute("CHECKPOINT")


def beat(dsn: str, stop: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.wait(EVERY_S):
            connection.execute("INSERT INTO beat (written) VALUES (clock_timestamp())")


def read_again(here: Bench, since: int) -> tuple[int, int]:
    """How many keys were asked for from this offset on, and where the log ends."""
    log = EventLog.open(str(here.config.log.path))
    chunks = [(meta, chunk) for meta, chunk in log.chunks() if meta.first >= since]
    return sum(c.keys_requested for _, c in chunks if c.dump_id == REFETCH_DUMP_ID), log.tail.next


def run(rows: int) -> list[Row]:
    with bench() as here:
        fill(here, rows)
        with here.capture(0, "--clock", "written") as process:
            stop = threading.Event()
            beats = threading.Thread(target=beat, args=(here.dsn, stop))
            beats.start()
            try:
                time.sleep(3)
                os.kill(process.pid, signal.SIGUSR1)
                since = read_again(here, 0)[1]
                began = time.perf_counter()
                here.server.execute("UPDATE document SET id = id + 1000000000")
                committed = time.perf_counter()
                while (count := read_again(here, since)[0]) < rows:
                    if time.perf_counter() - began > GIVE_UP_S:
                        raise RuntimeError(f"only {count:,} of {rows:,} keys were read again")
                    time.sleep(0.2)
                took = time.perf_counter() - committed
                os.kill(process.pid, signal.SIGUSR2)
            finally:
                stop.set()
                beats.join()
            process.terminate()
            ours = result(process)
    lag = ours["latency_ms"]
    return [
        Row(
            f"{rows:,} moved keys with unchanged TOAST, from their commit until read again",
            f"{rows / took:,.0f} keys/s",
            f"{rows / (committed - began):,.0f} rows/s (their UPDATE)",
            f"{(committed - began) / took:.2f} ×",
            "≥ 20,000 keys/s",
        ),
        Row(
            "the same, another table's INSERT → durable",
            f"p50 {lag['p50']:,.0f} ms, p99 {lag['p99']:,.0f} ms, max {lag['max']:,.0f} ms",
            "",
            "",
            "",
        ),
        Row("the same, peak resident memory", f"{ours['peak_mb']:.0f} MB", "", "", "≤ 400 MB"),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=300_000)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    show(run(5_000 if options.quick else options.rows))


if __name__ == "__main__":
    main()
