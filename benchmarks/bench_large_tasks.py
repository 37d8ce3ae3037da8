"""A dump of many rows, then one transaction of as many, into Delta with little memory: peak
resident memory of the JVM and of Spark's Python workers. `tidelog verify` compares all rows.

    python -m benchmarks.bench_large_tasks [--rows 2000000] [--memory 1g] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from tests.support.postgres import PostgresServer

from benchmarks.command_line import Service, command, configure, megabytes
from benchmarks.table import Row, show

_TABLE = """CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, c numeric(12, 2), d timestamptz,
e text, f bigint, g bool, h date, i text)"""
_COLUMNS = "n, n, md5(n::text), n, now(), md5((n + 1)::text), n, true, now(), md5((n + 2)::text)"
_TIMEOUT_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--memory", default="1g", help="spark.driver.memory")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows = 2_000
    with PostgresServer(16) as server, tempfile.TemporaryDirectory() as scratch:
        dsn = server.create_database("large")
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute(_TABLE)
            rows = f"INSERT INTO t SELECT {_COLUMNS} FROM generate_series(1, {given.rows}) n"
            sql.execute(rows.encode())
            sys.exit(measure(sql, dsn, Path(scratch), given))


def measure(
    sql: psycopg.Connection[tuple[object, ...]],
    dsn: str,
    directory: Path,
    given: argparse.Namespace,
) -> int:
    configure(directory, dsn, given.memory, "{kind: delta, path: lake}")
    rows, equal = [], True
    with Service(directory, "capture") as capture:
        for what, statement in (
            (f"a dump of {given.rows:,} rows", ""),
            (f"a transaction of {given.rows:,} updates", "UPDATE t SET a = a + 1, b = md5(b)"),
        ):
            if statement:
                sql.execute(statement.encode())
            capture.wait_for(lambda: _settled(directory), _TIMEOUT_S, 2.0)
            began = time.perf_counter()
            with Service(directory, "pipeline", "--once") as pipeline:
                code = pipeline.wait(_TIMEOUT_S)
            took = time.perf_counter() - began
            if code:
                print(f"{what}: it ended with {code}: {pipeline.said[-3000:]}", file=sys.stderr)
            equal &= code == 0
            said = f"{took:.0f} s, {megabytes(pipeline.peaks)}"
            print(f"{what}: {said}", file=sys.stderr, flush=True)
            rows.append(Row(f"{what} → Delta, {given.memory} for the driver", said, "", "", ""))
        rows.append(Row("capture", megabytes(capture.peaks), "", "", ""))
        with Service(directory, "pipeline"):
            verified = command(directory, "verify")
    equal &= bool(verified.last["equal"])
    rows.append(Row("verify", f"{verified.seconds:.0f} s", "", "", ""))
    show(rows)
    print("all equal" if equal else f"NOT EQUAL: {verified.said[-2000:]}", file=sys.stderr)
    return 0 if equal else 1


def _settled(directory: Path) -> bool:
    """No dump runs, and all that was committed is in the event log."""
    found = command(directory, "status")
    if found.code:
        return False
    dumps = found.last.get("dumps") or [{"status": "none"}]
    told = found.last.get("lag_bytes")
    return all(each["status"] == "completed" for each in dumps) and told is not None and told < 4096


if __name__ == "__main__":
    main()
