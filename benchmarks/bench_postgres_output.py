"""Event log → PostgreSQL, against the best bulk load of the same rows by hand, ``local[2]``.

By hand: rows as COPY text in memory, by one connection and by two at once; the better counts. The
rows of a first dump go into the same tables, empty and with their primary keys. The states that
changes of random rows (90 % updates) leave go into a temporary table and from there by INSERT … ON
CONFLICT DO UPDATE into tables that hold the first rows.

python -m benchmarks.bench_postgres_output [--rows 600000] [--changes 600000] [--tables 4]
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from tests.support.build_log import BuiltLog

from benchmarks.spark_workload import COLUMNS, Meter, append, delivered_s, drawn, report
from benchmarks.table import Row, show
from tidelog.demo.servers.postgres import PostgresServer
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.database.output import DatabaseOutput
from tidelog.outputs.database.postgres import Postgres
from tidelog.spark import spark_session
from tidelog.state.sqlite import SqliteState

_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--changes", type=int, default=600_000)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.changes = 8_000, 8_000
    with (
        PostgresServer(18, _SETTINGS, fsync=True) as server,
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch,
    ):
        _run(given, server, Path(scratch))


def _run(given: argparse.Namespace, server: PostgresServer, scratch: Path) -> None:
    spark = spark_session("local[2]", delta=False)
    random, notes = drawn(1)
    names = [f"orders{number}" for number in range(given.tables)]
    keys, changes = given.rows // given.tables, given.changes // given.tables

    def grow(built: BuiltLog, kind: str) -> None:
        for name in names:
            table = built.table(f"bench.{name}", COLUMNS)
            ids = np.arange(keys) if kind else random.integers(0, keys, changes)
            append(built, table, ids, np.arange(len(ids)), notes, random, kind)

    def bring(place: str, log: Path) -> float:
        output = DatabaseOutput(
            spark, str(log), SqliteState(f"sqlite:///{scratch / f'{place}.db'}"),
            Delivery("bench"), Postgres(server.dsn(place)), batch_rows=50_000,
        )  # fmt: skip
        return delivered_s(spark, log, output, place)

    log = scratch / "log"
    built = BuiltLog(log)
    grow(built, "I")
    server.create_database("warm")
    bring("warm", log)  # workers, compiled kernels
    server.create_database("filled")
    with Meter() as meter:
        seconds = bring("filled", log)
    report("event log → PostgreSQL, first rows", given.rows, meter.reading)
    tables = [f"bench.{name}" for name in names]
    since = built.log.latest_offset()
    floor = _by_hand(server, "first", tables, given.rows)
    server.create_database("before", template="filled")
    grow(built, "")
    with Meter() as meter:
        changed_s = bring("filled", log)
    report("event log → PostgreSQL, changes", given.changes, meter.reading)
    changed_floor = _by_hand(server, "changes", tables, given.changes, since)
    show(
        [
            Row(
                f"event log → PostgreSQL (first {given.rows:,} rows of {given.tables} tables)",
                f"{given.rows / seconds:,.0f} rows/s",
                f"{given.rows / floor:,.0f} rows/s (COPY by hand)",
                f"{floor / seconds:.2f} ×",
                "≥ 0.7 ×",
            ),
            Row(
                f"event log → PostgreSQL ({given.changes:,} changes of them)",
                f"{given.changes / changed_s:,.0f} changes/s",
                f"{given.changes / changed_floor:,.0f} changes/s (COPY and ON CONFLICT of the "
                "states they leave, by hand)",
                f"{changed_floor / changed_s:.2f} ×",
                "≥ 0.7 ×",
            ),
        ]
    )
    spark.stop()


def _by_hand(
    server: PostgresServer, what: str, tables: list[str], count: int, since: int = 0
) -> float:
    """Seconds of the better of two ways to bring rows over, those of versions from ``since`` on."""
    texts: dict[str, list[memoryview]] = {}
    with psycopg.connect(server.dsn("filled")) as connection:
        for table in tables:
            rows = f"SELECT * FROM {table} WHERE _tidelog_version >= {since} ORDER BY id"
            with connection.cursor().copy(f"COPY ({rows}) TO STDOUT".encode()) as copy:
                whole = memoryview(b"".join(copy))
            texts[table] = [whole[n : n + (1 << 20)] for n in range(0, len(whole), 1 << 20)]
    upsert = ", ".join(f"{name} = excluded.{name}" for name in [*COLUMNS, "_tidelog_version"])

    def load(connection: psycopg.Connection[Any], mine: list[str]) -> None:
        for table in mine:
            into = table
            if since:
                into = f"stage_{table.partition('.')[2]}"
                connection.execute(f"CREATE TEMP TABLE {into} (LIKE {table})".encode())
            with connection.cursor().copy(f"COPY {into} FROM STDIN".encode()) as copy:
                for piece in texts[table]:
                    copy.write(piece)
            if since:
                connection.execute(
                    f"INSERT INTO {table} SELECT * FROM {into} "
                    f"ON CONFLICT (id) DO UPDATE SET {upsert}".encode()
                )
            connection.commit()

    found: list[float] = []
    for count_at_once in (1, 2, 1, 2):
        server.drop_database("byhand")
        server.create_database("byhand", template="before" if since else "warm")
        with psycopg.connect(server.dsn("byhand"), autocommit=True) as connection:
            if not since:
                connection.execute(f"TRUNCATE {', '.join(tables)}".encode())
            connection.execute(b"CHECKPOINT")
        shares = [tables[n::count_at_once] for n in range(count_at_once)]
        # Open until the meter has read: what a process that ended has used is not known.
        connections = [psycopg.connect(server.dsn("byhand")) for _ in shares]
        with Meter() as meter, ThreadPoolExecutor(count_at_once) as pool:
            list(pool.map(load, connections, shares))
        for connection in connections:
            connection.close()
        report(f"{what} by hand, {count_at_once} at once", count, meter.reading)
        found.append(meter.reading.seconds)
    return min(found)


if __name__ == "__main__":
    main()
