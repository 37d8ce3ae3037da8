"""Dumps of a large table: idle, under load, given keys, with little memory, over a kill -9.

    python -m benchmarks.bench_dumps [idle] [loaded] [patient] [keys] [memory] [restart]
        [--quick] [--log DIR]

One server holds the table for all parts. ``--log`` puts the event log elsewhere, such as on another
disk or into memory: what the source's commits wait for at the one disk is then left out. Floors are
taken from the server while nothing else runs: COPY of the table in one stream, one SELECT of the
keys, the workload's latencies without a dump.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.bench_capture import Bench, bench, result
from benchmarks.table import Row, show
from tidelog import app
from tidelog.capture.dumps.refetch_queue import KeySets
from tidelog.capture.session.start import STATUS_KEY
from tidelog.control.commands import CancelDump, SetDumpOptions, StartDump
from tidelog.eventlog.reader import EventLog
from tidelog.state.sqlite import SqliteState

TABLE_NAME = "public.orders"
PER_SECOND = 2_000


class Dumps:
    """The server with its table, and what was measured of it once."""

    def __init__(self, here: Bench, rows: int, quick: bool) -> None:
        self.here, self.rows, self.quick = here, rows, quick
        here.fill(rows, 100_000)
        here.server.execute("VACUUM (FREEZE, ANALYZE) orders")
        here.server.execute("CHECKPOINT")
        self.copy_s = min(self._copy() for _ in range(2))

    def _copy(self) -> float:
        began = time.perf_counter()
        with (
            psycopg.connect(self.here.dsn) as connection,
            connection.cursor() as cursor,
            cursor.copy("COPY (SELECT * FROM orders) TO STDOUT") as copy,
        ):
            for _ in copy:
                pass
        return time.perf_counter() - began

    def options(self, **options: Any) -> None:
        command = SetDumpOptions(**options)
        outcome = app.send_command(self.here.config, command, timeout_s=30).to_dict()
        if outcome["error"] is not None:
            raise RuntimeError(outcome["error"])

    def begin(self, **scope: Any) -> str:
        dump_id = uuid.uuid4().hex
        command = StartDump(dump_id=dump_id, tables=(TABLE_NAME,), **scope)
        outcome = app.send_command(self.here.config, command, timeout_s=60).to_dict()
        if outcome["error"] is not None:
            raise RuntimeError(outcome["error"])
        return dump_id

    def wait(self, dump_id: str) -> dict[str, Any]:
        report = app.dump_wait(self.here.config, dump_id, timeout_s=1200).to_dict()
        if report["status"] != "completed":
            raise RuntimeError("the dump did not complete")
        return report

    def find(self, dump_id: str) -> dict[str, Any]:
        """Its table, as status shows it; empty before the first status."""
        dumps = app.status(self.here.config).document.get("dumps", ())
        found: list[dict[str, Any]] = [d["tables"][0] for d in dumps if d["dump_id"] == dump_id]
        return found[0] if found else {}


def seconds_of(report: dict[str, Any]) -> float:
    return float(report["finished_ms"] - report["requested_ms"]) / 1000


def idle(dumps: Dumps) -> list[Row]:
    with dumps.here.capture() as process:
        dumps.options(parallelism=2, chunk_rows=50_000, rows_per_second=0)
        report = dumps.wait(dumps.begin())
        process.terminate()
        ours = result(process)
    took = seconds_of(report)
    return [
        Row(
            f"dump of {dumps.rows:,} rows, idle source, parallelism 2, chunks of 50,000",
            f"{dumps.rows / took:,.0f} rows/s",
            f"{dumps.rows / dumps.copy_s:,.0f} rows/s (COPY in one stream)",
            f"{dumps.copy_s / took:.2f} ×",
            "≥ 0.5 ×, ≥ 312,000 rows/s",
        ),
        Row("the same, client CPU a row", f"{ours['cpu_s'] / dumps.rows * 1e6:.2f} µs", "", "", ""),
        Row("the same, peak resident memory", f"{ours['peak_mb']:.0f} MB", "", "", "≤ 600 MB"),
    ]


@contextmanager
def workload(here: Bench, seconds: int, rate: int = PER_SECOND) -> Iterator[Path]:
    """pgbench: single-row updates at a fixed rate; the directory with a line a transaction."""
    script, lines = here.directory / "workload.sql", here.directory / uuid.uuid4().hex
    lines.mkdir()
    script.write_text(
        "\\set id random(1, 100000)\n"
        "UPDATE orders SET amount = amount + 1, updated = now() WHERE id = :id;\n"
    )
    process = subprocess.Popen(
        [
            str(here.server.binary("pgbench")), "--no-vacuum", "--client", "8", "--jobs", "1",
            "--rate", str(rate), "--time", str(seconds), "--file", str(script),
            "--protocol", "prepared", "--log", "--log-prefix", str(lines / "log"), here.dsn,
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def source_p99_ms(lines: Path, since: float, until: float) -> float:
    """Of each second the 99th percentile, of these the median: a shared machine stands still now
    and then. pgbench's log: client, transaction, latency (µs), script, seconds, µs, schedule lag.
    """
    tables = []
    for file in lines.iterdir():
        text = file.read_text().rpartition("\n")[0]  # the last line may be cut off
        tables.append(np.loadtxt(text.splitlines(), usecols=(2, 4, 5), ndmin=2))
    table = np.concatenate(tables)
    at = table[:, 1] + table[:, 2] / 1e6
    each = [
        np.percentile(table[(at >= second) & (at < second + 1), 0], 99)
        for second in np.arange(since, until - 1)
    ]
    return float(np.median(each)) / 1000


def loaded(dumps: Dumps) -> list[Row]:
    quiet_s = 3 if dumps.quick else 15
    limits: dict[str, dict[str, int]] = {
        "at full speed": {},
        "rows_per_second=100,000": {"rows_per_second": 100_000},
        "rows_per_second=20,000": {"rows_per_second": 20_000},
        "max_commit_delay=2ms": {"max_commit_delay_ms": 2},
    }
    cases: tuple[str | None, ...] = (None, *limits)  # None: no dump
    found: dict[str | None, list[tuple[float, float, float]]] = {case: [] for case in cases}
    for case in cases * (1 if dumps.quick else 2):
        off = {"rows_per_second": 0, "max_commit_delay_ms": 0}
        with dumps.here.capture() as process:
            dumps.options(parallelism=2, chunk_rows=10_000, **{**off, **limits.get(case or "", {})})
            with workload(dumps.here, 1200) as lines:
                time.sleep(3)
                os.kill(process.pid, signal.SIGUSR1)
                since, rate = time.time(), 0.0
                if case is None:
                    time.sleep(quiet_s)
                else:
                    dump_id = dumps.begin()
                    while time.time() < since + quiet_s or not dumps.find(dump_id):
                        time.sleep(0.2)
                    done = dumps.find(dump_id)
                    until_ms = done["finished_ms"] or time.time() * 1000
                    rate = done["rows_read"] / (until_ms - done["started_ms"]) * 1000
                os.kill(process.pid, signal.SIGUSR2)
                until = time.time()
                app.send_command(dumps.here.config, CancelDump(), timeout_s=30)
            process.terminate()
            log_p99 = result(process)["latency_ms"]["p99"]
            found[case].append((rate, source_p99_ms(lines, since, until), log_p99))
    medians = {case: np.median(np.array(values), axis=0) for case, values in found.items()}
    _, quiet_source, quiet_log = medians[None]
    rows = []
    for name in limits:
        rate, source, log = medians[name]
        rows += [
            Row(
                f"dump beside {PER_SECOND:,} transactions a second, {name}",
                f"{rate:,.0f} rows/s",
                f"{dumps.rows / dumps.copy_s:,.0f} rows/s (COPY in one stream, idle)",
                f"{rate * dumps.copy_s / dumps.rows:.2f} ×",
                "",
            ),
            Row(
                "the same, the source's transactions",
                f"p99 {source:.1f} ms",
                f"p99 {quiet_source:.1f} ms (no dump)",
                f"{source / quiet_source:.2f} ×",
                "≤ 1.5 ×",
            ),
            Row(
                "the same, commit → durable",
                f"p99 {log:.0f} ms",
                f"p99 {quiet_log:.0f} ms (no dump)",
                f"{log / quiet_log:.2f} ×",
                "≤ 2 ×",
            ),
        ]
    return rows


def patient(dumps: Dumps) -> list[Row]:
    """Settings as shipped, few transactions: with a dump and without by turns."""
    turns, turn_s = (1, 3) if dumps.quick else (5, 8)
    rows = []
    for rate in (300, 500):
        found: dict[bool, list[float]] = {False: [], True: []}
        with dumps.here.capture() as process, workload(dumps.here, 1200, rate) as lines:
            dumps.options(parallelism=1, chunk_rows=10_000, rows_per_second=0)
            time.sleep(3)
            for with_dump in (False, True) * turns:
                if with_dump:
                    dump_id = dumps.begin()
                    while not dumps.find(dump_id):
                        time.sleep(0.05)
                since = time.time()
                time.sleep(turn_s)
                found[with_dump].append(source_p99_ms(lines, since, time.time()))
                app.send_command(dumps.here.config, CancelDump(), timeout_s=30)
                time.sleep(1)
            process.terminate()
            result(process)
        quiet, busy = (float(np.median(found[with_dump])) for with_dump in (False, True))
        ratios = np.array(found[True]) / np.array(found[False])
        rows.append(
            Row(
                f"{rate} transactions a second beside a dump as shipped",
                f"p99 {busy:.1f} ms",
                f"p99 {quiet:.1f} ms (no dump)",
                f"{np.median(ratios):.2f} × ({ratios.min():.2f} to {ratios.max():.2f})",
                "≤ 1.5 ×",
            )
        )
    return rows


def keys(dumps: Dumps) -> list[Row]:
    wanted = random.Random(7).sample(range(1, dumps.rows + 1), dumps.rows // 50)
    with psycopg.connect(dumps.here.dsn) as connection:
        select_s = 1e9
        for _ in range(2):
            began = time.perf_counter()
            query = "SELECT * FROM orders WHERE id = ANY(%s)"
            connection.execute(query, (wanted,), binary=False).fetchall()
            select_s = min(select_s, time.perf_counter() - began)
    with dumps.here.capture() as process:
        dumps.options(parallelism=2, chunk_rows=10_000, rows_per_second=0)
        state = SqliteState(dumps.here.config.state.url)
        took = []
        for _ in range(2):
            began = time.perf_counter()
            count = KeySets(state).put("bench", ((str(key),) for key in wanted))
            stored = time.perf_counter() - began
            report = dumps.wait(dumps.begin(key_set="bench"))
            took.append(stored + seconds_of(report))
        state.close()
        process.terminate()
        result(process)
    return [
        Row(
            f"{count:,} given keys of {dumps.rows:,} rows",
            f"{min(took):.2f} s",
            f"{select_s:.2f} s (one SELECT … = ANY)",
            f"{min(took) / select_s:.2f} ×",
            "≤ 3 ×",
        )
    ]


def memory(dumps: Dumps) -> list[Row]:
    chunk_rows, readers = (2_000, 4) if dumps.quick else (50_000, 16)
    with dumps.here.capture() as process:
        dumps.options(parallelism=readers, chunk_rows=chunk_rows, rows_per_second=0)
        report = dumps.wait(dumps.begin())
        process.terminate()
        ours = result(process)
    took = seconds_of(report)
    log = EventLog.open(str(dumps.here.config.log.path))
    sizes = [
        meta.payload_bytes for meta, chunk in log.chunks() if chunk.dump_id == report["dump_id"]
    ]
    chunk_mb = max(sizes) / 2**20
    dump, capture = dumps.here.config.dump, dumps.here.config.capture
    buffers_mb = (dump.buffer_bytes + capture.buffer_bytes + (64 << 20)) / 2**20
    bound = 200 + buffers_mb + readers * 3 * chunk_mb
    return [
        Row(
            f"the same, parallelism {readers}, chunks of {chunk_rows:,} rows ({chunk_mb:.0f} MB)",
            f"{ours['peak_mb']:.0f} MB peak, {dumps.rows / took:,.0f} rows/s",
            f"{bound:,.0f} MB (formula in docs/how-to/dump-a-table.md)",
            f"{ours['peak_mb'] / bound:.2f} ×",
            "≤ 1 ×",
        )
    ]


def restart(dumps: Dumps) -> list[Row]:
    chunks = 500 if dumps.quick else 10_000
    chunk_rows = dumps.rows // chunks
    here = dumps.here
    with here.capture() as process:
        dumps.options(parallelism=4, chunk_rows=chunk_rows, rows_per_second=0)
        dump_id = dumps.begin()
        while dumps.find(dump_id).get("chunks", 0) < 0.4 * chunks:
            time.sleep(0.1)
        process.kill()
        process.wait()
    log = EventLog.open(str(here.config.log.path))
    before = [c for _, c in log.chunks() if c.dump_id == dump_id]
    state = SqliteState(here.config.state.url)
    state.delete(STATUS_KEY)
    began = time.perf_counter()
    with here.capture() as process:
        leads = time.perf_counter() - began
        # Status tells once a second: what it tells is older, never younger.
        while (told := state.get(STATUS_KEY)) is None or not told.value["dump_counters"]["chunks"]:
            time.sleep(0.01)
        resumed = time.perf_counter() - began
        dumps.wait(dump_id)
        process.terminate()
        result(process)
    after = [c for _, c in EventLog.open(str(here.config.log.path)).chunks()]
    ranges = [(c.low_key, c.high_key) for c in after if c.dump_id == dump_id]
    twice = len(ranges) - len({str(found) for found in ranges})
    rows = sum(c.rows_read for c in after if c.dump_id == dump_id)
    return [
        Row(
            f"kill -9 in a dump of {len(ranges):,} chunks, {len(before):,} of them done",
            f"leads {leads:.1f} s after the process starts, next chunk by {resumed:.1f} s; "
            f"{twice} chunks read twice, {rows - dumps.rows:,} rows too many",
            "",
            "",
            "≤ 2 s of work, 0 chunks",
        )
    ]


PARTS = {
    "idle": idle,
    "loaded": loaded,
    "patient": patient,
    "keys": keys,
    "memory": memory,
    "restart": restart,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("parts", nargs="*", default=list(PARTS))
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--log", type=Path, help="where the event log is; it must not exist")
    options = arguments.parse_args()
    with bench(log=options.log) as here:
        dumps = Dumps(here, 200_000 if options.quick else 5_000_000, options.quick)
        for part in options.parts:
            show(PARTS[part](dumps))


if __name__ == "__main__":
    main()
