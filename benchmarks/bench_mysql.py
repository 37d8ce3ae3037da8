"""Capture of MySQL and MariaDB as it is shipped, measured as `benchmarks.bench_capture` does it.

``backlog``  1.5 M row changes in transactions of 1,000 → durable event log, against mysqlbinlog
``decode``   such records to typed Arrow, one core, beside python-mysql-replication
``latency``  commit → durable at 2,000 single-row transactions a second
``dump``     1 M rows while that workload runs, and what it does to the latency

    python -m benchmarks.bench_mysql [backlog decode latency dump] [--source NAME] [--quick]
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from benchmarks.bench_capture import result
from benchmarks.mysql_orders import (
    DATABASE,
    SERVERS,
    MySqlBench,
    mysql_bench,
    single_row_load,
)
from benchmarks.table import Row, show
from tidelog import app
from tidelog.codecs.decode import decode as decode_records
from tidelog.control.commands import SetDumpOptions, StartDump
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableSchema

PER_SECOND = 2_000
DECODE_ROWS = 8_192


def backlog(kind: str, quick: bool) -> list[Row]:
    rows, runs = (50_000, 1) if quick else (1_500_000, 3)
    with mysql_bench(kind) as here:
        here.place()
        file = here.new_binlog()
        here.fill(rows, 1_000)
        floors, ours = [here.raw_copy(file)], []
        for _ in range(runs):
            here.replace()
            with here.capture(rows) as process:
                ours.append(result(process))
            floors.append(here.raw_copy(file))
    # The better counts: the machine may be busy for one of them.
    floor_s, floor_cpu = (min(each) for each in zip(*floors, strict=True))
    seconds, cpu_s = (min(each[name] for each in ours) for name in ("seconds", "cpu_s"))
    return [
        Row(
            f"{kind}: backlog of {rows:,} row changes → durable event log",
            f"{rows / seconds:,.0f} rows/s",
            f"{rows / floor_s:,.0f} rows/s (mysqlbinlog --raw to a file)",
            f"{floor_s / seconds:.2f} ×",
            "≥ 0.7 ×",
        ),
        Row(
            f"{kind}: the same, client CPU a row",
            f"{cpu_s / rows * 1e6:.2f} µs",
            f"{floor_cpu / rows * 1e6:.2f} µs",
            "",
            "≤ 4 µs",
        ),
        Row(
            f"{kind}: the same, peak resident memory",
            f"{max(each['peak_mb'] for each in ours):.0f} MB",
            "",
            "",
            "≤ 400 MB",
        ),
    ]


def decode(kind: str, quick: bool) -> list[Row]:
    rows = 20_000 if quick else 200_000
    theirs_rows = rows // 10
    with mysql_bench(kind) as here:
        here.place()
        file = here.new_binlog()
        here.fill(rows, 1_000)
        here.update(rows)
        with here.capture(2 * rows) as process:
            result(process)
        log = EventLog.open(str(here.config.log.path))
        records = pa.concat_tables(log.read(ref) for ref in log.segments(log.head_offset))
        records = records.filter(pc.greater(records.column("schema_id"), 0))
        schema = log.schemas.get(records.column("schema_id")[0].as_py())
        theirs_s = min(python_reader(here, file, theirs_rows) for _ in range(2))
    found = {}
    for name, kind_of_change in (("inserts", RecordKind.INSERT), ("updates", RecordKind.UPDATE)):
        chosen = records.filter(pc.equal(records.column("kind"), int(kind_of_change)))
        batches = chosen.combine_chunks().to_batches(max_chunksize=DECODE_ROWS)
        found[name] = min(decoded_s(batches, schema) for _ in range(4)) / len(chosen)
    payloads = chosen.column("payload").combine_chunks()
    began = time.process_time()
    payloads.take(pa.array(np.arange(len(payloads))))
    copied = (time.process_time() - began) / len(payloads)
    return [
        Row(
            f"{kind}: decode to typed Arrow, one core, batches of {DECODE_ROWS:,}, inserts",
            f"{1 / found['inserts']:,.0f} rows/s",
            f"{theirs_rows / theirs_s:,.0f} rows/s (python-mysql-replication, to Python values, "
            "CPU time with reading)",
            f"{theirs_s / theirs_rows / found['inserts']:.0f} ×",
            "≥ 1,000,000 rows/s",
        ),
        Row(
            f"{kind}: the same, updates, both images",
            f"{1 / found['updates']:,.0f} rows/s",
            f"{1 / copied:,.0f} rows/s (copy the payloads)",
            f"{copied / found['updates']:.2f} ×",
            "",
        ),
    ]


def decoded_s(batches: list[pa.RecordBatch], schema: TableSchema) -> float:
    """CPU seconds."""
    began = time.process_time()
    for batch in batches:
        decode_records(batch, schema)
    return time.process_time() - began


def python_reader(here: MySqlBench, file: str, rows: int) -> float:
    """CPU seconds that python-mysql-replication takes for the first ``rows`` inserted rows."""
    stream = BinLogStreamReader(
        {"host": "127.0.0.1", "port": here.server.port, "user": "root"},
        server_id=77, log_file=file, log_pos=4, resume_stream=True,
        only_events=[WriteRowsEvent], is_mariadb=here.server.flavor == "mariadb",
    )  # fmt: skip
    began, seen = time.process_time(), 0
    for event in stream:
        seen += len(event.rows)
        if seen >= rows:
            break
    took = time.process_time() - began
    stream.close()
    return took * rows / seen


def latency(kind: str, quick: bool) -> list[Row]:
    seconds = 4 if quick else 20
    with mysql_bench(kind) as here:
        here.fill(100_000, 10_000)
        with here.capture(0, *clock(kind)) as process, single_row_load(here, PER_SECOND, 100_000):
            time.sleep(3)
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGUSR2)
            process.terminate()
            report = result(process)
    found = report["latency_ms"]
    rate = found["count"] / seconds
    return [
        Row(
            f"{kind}: {since(kind)} → durable at {rate:,.0f} single-row transactions a second",
            f"p50 {found['p50']:.0f} ms, p99 {found['p99']:.0f} ms",
            "flush interval 50 ms",
            f"p99 {found['p99'] / 50:.2f} ×",
            "≤ 2 ×",
        ),
        stages(kind, report),
    ]


def stages(kind: str, report: dict[str, Any]) -> Row:
    """What the slowest hundredth waited for."""
    read, queued, began, durable = report["stages_ms"]
    return Row(
        f"{kind}: of the slowest hundredth: commit → read → decoded → append begins → durable",
        f"{read:.0f}, {queued:.0f}, {began:.0f}, {durable:.0f} ms",
        "",
        "",
        "",
    )


def clock(kind: str) -> tuple[str, ...]:
    """MariaDB's binlog tells commits to the second: the statements' own times are measured from."""
    return ("--clock", "updated") if kind == "mariadb" else ()


def since(kind: str) -> str:
    return "begin of the statement" if clock(kind) else "commit"


def dump(kind: str, quick: bool) -> list[Row]:
    rows, quiet_s = (100_000, 3) if quick else (1_000_000, 10)
    with mysql_bench(kind) as here:
        here.fill(rows, 50_000)
        here.server.execute("ANALYZE TABLE orders", DATABASE)
        select_s = min(here.select_all() for _ in range(2))
        reports, source = [], []
        for with_dump in (False, True):
            with (
                here.capture(0, *clock(kind)) as process,
                single_row_load(here, PER_SECOND, 100_000) as ended,
            ):
                options = SetDumpOptions(parallelism=2, chunk_rows=10_000)
                app.send_command(here.config, options, timeout_s=30)
                time.sleep(3)
                os.kill(process.pid, signal.SIGUSR1)
                if with_dump:
                    command = StartDump(dump_id="bench", tables=(f"{DATABASE}.orders",))
                    app.send_command(here.config, command, timeout_s=30)
                    finished = app.dump_wait(here.config, "bench", timeout_s=600).to_dict()
                    took = (finished["finished_ms"] - finished["requested_ms"]) / 1000
                else:
                    time.sleep(quiet_s)
                os.kill(process.pid, signal.SIGUSR2)
                source.append(ended())
                process.terminate()
                reports.append(result(process))
    quiet, busy = (report["latency_ms"]["p99"] for report in reports)
    return [
        Row(
            f"{kind}: dump of {rows:,} rows, parallelism 2, 2,000 transactions a second running",
            f"{rows / took:,.0f} rows/s",
            f"{rows / select_s:,.0f} rows/s (SELECT streamed by the client program, idle)",
            f"{select_s / took:.2f} ×",
            "≥ 100,000 rows/s",
        ),
        Row(
            f"{kind}: the same, {since(kind)} → durable",
            f"p99 {busy:.0f} ms",
            f"p99 {quiet:.0f} ms (no dump)",
            f"{busy / quiet:.2f} ×",
            "≤ 2 ×",
        ),
        stages(kind, reports[1]),
        Row(
            f"{kind}: the same, peak resident memory",
            f"{reports[1]['peak_mb']:.0f} MB",
            "",
            "",
            "≤ 400 MB",
        ),
    ]


PARTS: dict[str, Callable[[str, bool], list[Row]]] = {
    "backlog": backlog,
    "decode": decode,
    "latency": latency,
    "dump": dump,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--source", action="append", choices=list(SERVERS), help="default: each")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    options = parser.parse_args()
    for part in options.parts:
        for kind in options.source or SERVERS:
            show(PARTS[part](kind, options.quick))


if __name__ == "__main__":
    main()
