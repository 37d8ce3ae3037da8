"""What it costs to look at the catalogue of a database of many idle tables: the CPU seconds of the
source and of ours, of a look that finds nothing changed, and of one after a table was altered. And
what a start of capture takes, until a change of a table is durable: the first one, and another.

    python -m benchmarks.bench_looks [looks] [start] [--tables 1500 10000] [--looks 5] [--quick]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import publication_sql

from benchmarks.table import Row, show
from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.session.session import POLL_SHARE, poll_interval
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.ports import Published
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.state.sqlite import SqliteState

_COLUMNS = (
    "id int PRIMARY KEY, a int, b text, c numeric(10, 2), d timestamptz, e text, f bigint, "
    "g bool, h date, i text"
)
_AT_ONCE = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["looks", "start"])
    parser.add_argument("--tables", type=int, nargs="+", default=[1_500, 10_000])
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.looks = [50], 2
    settings = {"max_locks_per_transaction": 1000, "shared_buffers": "256MB"}
    with PostgresServer(16, settings) as server, tempfile.TemporaryDirectory() as scratch:
        for tables in given.tables:
            dsn = server.create_database(f"looks_{tables}")
            with psycopg.connect(dsn, autocommit=True) as sql:
                for first in range(0, tables, _AT_ONCE):
                    numbers = range(first, min(first + _AT_ONCE, tables))
                    sql.execute(";".join(f"CREATE TABLE t{n} ({_COLUMNS})" for n in numbers))
                if "start" in given.parts:
                    sql.execute("VACUUM ANALYZE")
                    start(sql, dsn, Path(scratch) / str(tables), tables)
                if "looks" not in given.parts:
                    continue
                sql.execute("DROP PUBLICATION IF EXISTS tidelog")
                sql.execute("CREATE SCHEMA IF NOT EXISTS tidelog")
                names = ", ".join(f"t{n}" for n in range(tables))
                for statement in publication_sql(Publications("tidelog", ["none.*"]), sql):
                    sql.execute(statement.encode())
                sql.execute(f"ALTER PUBLICATION tidelog ADD TABLE {names}".encode())
                sql.execute("VACUUM ANALYZE")
                measure(sql, dsn, Path(scratch) / f"{tables}.db", tables, given.looks)


def start(sql: psycopg.Connection[Any], dsn: str, directory: Path, tables: int) -> None:
    directory.mkdir()
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', tables: ['public.*'], snapshot: no_data}}\n"
        f"log: {{path: {directory}/log}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n"
    )
    command = [sys.executable, "-m", "benchmarks.capture_process", str(file), "--records", "1"]
    keys, rows = count(1), []
    for what in ("the first start", "another start"):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                sql.execute(b"INSERT INTO t0 (id) VALUES (%s)", (next(keys),))
                time.sleep(0.2)
            report = json.loads(process.communicate()[0].strip().splitlines()[-1])
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cost = f"{took:.1f} s, {cpu:.1f} s CPU of ours, {report['peak_mb']:.0f} MB"
        goal = "≤ 20 s, ≤ 600 MB"
        rows.append(Row(f"{what} of capture of {tables:,} tables", cost, "", "", goal))
    show(rows)


def measure(sql: psycopg.Connection[Any], dsn: str, path: Path, tables: int, looks: int) -> None:
    publications = Publications("tidelog", ["public.*"])
    catalogue = PostgresCatalogue(dsn)
    state = SqliteState(f"sqlite:///{path}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        watch = CatalogueWatch(
            catalogue,
            state,
            ["public.*"],
            unsupported=UnsupportedTables(state, lambda notification: None),
            publish=lambda: Published(publications.sync(connection)),
            snapshot=lambda: None,  # type: ignore[arg-type,return-value]
            request_dump=lambda table, reason: True,
            dump_new=False,
        )
        watch.poll()
        idle = [spent(sql, watch.poll) for _ in range(looks)]
        stamps = [spent(sql, catalogue.stamp) for _ in range(looks)]
        queries = [spent(sql, lambda: catalogue.versions(["public.*"])) for _ in range(looks)]
        altered = []
        for n in range(looks):
            sql.execute(f"COMMENT ON TABLE t{n} IS 'x'".encode())
            sql.execute(f"ALTER TABLE t{n} ALTER a SET STATISTICS 500".encode())
            altered.append(spent(sql, watch.poll))
    catalogue.close()
    state.close()
    rows = []
    for what, found in (("stamp", stamps), ("query of all versions", queries)):
        server, ours, seconds = _median(found)
        cost = f"source {server * 1000:.0f} ms, ours {ours * 1000:.0f} ms of CPU"
        rows.append(Row(f"the {what} of {tables:,} tables", cost, f"{seconds:.3f} s", "", ""))
    for what, found in (("nothing changed", idle), ("a table was altered", altered)):
        server, ours, seconds = _median(found)
        share = (server + ours) / poll_interval(seconds, POLL_SHARE)
        rows.append(
            Row(
                f"a look at {tables:,} tables, {what}",
                f"source {server * 1000:.0f} ms, ours {ours * 1000:.0f} ms of CPU",
                f"one every {poll_interval(seconds, POLL_SHARE):.0f} s",
                f"{share:.1%} of a core",
                f"≤ {POLL_SHARE:.0%}",
            )
        )
    show(rows)


def _median(found: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    server, ours, seconds = (sorted(values)[len(found) // 2] for values in zip(*found, strict=True))
    return server, ours, seconds


def spent(sql: psycopg.Connection[Any], work: Callable[[], object]) -> tuple[float, float, float]:
    """CPU seconds of the source's sessions and of this process, and seconds."""
    pids = [
        row[0]
        for row in sql.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        )
    ]
    sessions = [psutil.Process(pid) for pid in pids]

    def source() -> float:
        return sum(sum(session.cpu_times()[:2]) for session in sessions)

    server, ours, began = source(), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return source() - server, time.process_time() - ours, seconds


if __name__ == "__main__":
    main()
