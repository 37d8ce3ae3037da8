"""Event log → PostgreSQL, MySQL, MariaDB, against the same server's bulk load by hand of as many
typed Arrow rows, which one call of Arrow formats. Tasks and floor run in this process, by turns,
over one connection each.

First rows go into empty tables with a primary key. Changes are 90 % updates of random rows; by hand
the states that they leave go into a temporary table, and from there by INSERT … ON CONFLICT (or ON
DUPLICATE KEY) UPDATE into a table of the first rows.

    python -m benchmarks.bench_databases [postgres mysql mariadb] [--rows 200000] [--tables 4]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from tests.support.build_log import BuiltLog
from tests.support.mysql import MariaDbServer, MySqlServer
from tests.support.postgres import PostgresServer

from benchmarks.mysql_orders import SETTINGS
from benchmarks.spark_workload import COLUMNS, TasksHere, append, delivered_s, drawn, typed_rows
from benchmarks.table import Row, show
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.database.dialect import Dialect
from tidelog.outputs.database.mysql import MySql, MySqlSession
from tidelog.outputs.database.output import DatabaseOutput
from tidelog.outputs.database.postgres import Postgres
from tidelog.spark import spark_session
from tidelog.state.sqlite import SqliteState

_POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
_SERVERS: dict[str, Any] = {
    "postgres": lambda: PostgresServer(18, _POSTGRES, fsync=True),
    "mysql": lambda: MySqlServer(settings=SETTINGS, fsync=True),
    "mariadb": lambda: MariaDbServer(settings=SETTINGS, fsync=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"default: {', '.join(_SERVERS)}")
    parser.add_argument("--rows", type=int, default=200_000, help="and as many changes")
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows = 8_000
    spark = spark_session("local[2]", delta=False)
    for kind in given.kinds or _SERVERS:
        with (
            _SERVERS[kind]() as server,
            tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch,
        ):
            show(_measure(spark, kind, server, given, Path(scratch)))
    spark.stop()


def _measure(spark: Any, kind: str, server: Any, given: Any, scratch: Path) -> list[Row]:
    random, notes = drawn(1)
    names = [f"orders{number}" for number in range(given.tables)]
    keys, log = given.rows // given.tables, scratch / "log"
    built, tasks = BuiltLog(log), TasksHere()

    def grow(kind: str) -> None:
        for name in names:
            table = built.table(f"bench.{name}", COLUMNS)
            ids = np.arange(keys) if kind else random.integers(0, keys, keys)
            append(built, table, ids, np.arange(keys), notes, random, kind)

    def bring(name: str, namespace: str) -> None:
        output = DatabaseOutput(
            spark, str(log), SqliteState(f"sqlite:///{scratch / 'state.db'}"), Delivery(name),
            dialect, namespace=namespace, own="tidelog", batch_rows=50_000,
        )  # fmt: skip
        delivered_s(spark, log, output, name)

    dialect: Dialect = (Postgres if kind == "postgres" else MySql)(server.dsn())
    grow("I")
    bring("warm", "warm")  # compiled kernels
    session = dialect.connect("floor")
    rows = typed_rows(keys)
    rows = rows.set_column(0, "id", pa.array(np.arange(keys)))
    shown = []

    def first_floor() -> None:
        session.begin()
        for name in names:
            _load(session, dialect.quoted("floor", name), rows)
        session.commit()

    def changes_floor() -> None:
        listed = ", ".join(map(dialect.quoted, COLUMNS))
        new, conflict = "VALUES({0})", "ON DUPLICATE KEY UPDATE"
        if kind == "postgres":
            new, conflict = "excluded.{0}", "ON CONFLICT (id) DO UPDATE SET"
        sets = ", ".join(f"{n} = {new.format(n)}" for n in map(dialect.quoted, COLUMNS))
        stage = dialect.quoted(*["floor"][kind == "postgres" :], "stage")
        for name in names:
            table, like = dialect.quoted("floor", name), f"LIKE {dialect.quoted('warm', name)}"
            # Outside of a transaction: MySQL's GTIDs allow nothing else.
            session.rows(f"CREATE TEMPORARY TABLE {stage} ({like})")
            session.begin()
            _load(session, stage, some)
            session.rows(
                f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {stage} {conflict} {sets}"
            )
            session.commit()
            session.rows(f"DROP TABLE {stage}")

    def empty(namespace: str) -> None:
        dialect.create_namespace(session, namespace)
        for name in names:
            table, like = dialect.quoted(namespace, name), dialect.quoted("warm", name)
            same = f"(LIKE {like} INCLUDING ALL)" if kind == "postgres" else f"LIKE {like}"
            session.rows(f"DROP TABLE IF EXISTS {table}")
            session.rows(f"CREATE TABLE {table} {same}")

    runs = 1 if given.quick else 3
    filled = [f"filled{n}" for n in range(runs)]
    waiting = iter(filled)

    def first_ours() -> None:
        empty("floor")
        name = next(waiting)
        bring(name, name)

    found = tasks.by_turns("first rows: µs CPU, seconds", given.rows, first_ours, first_floor, runs)
    shown += _rows(kind, "first rows", given.rows, *found)
    grow("")
    left = len(np.unique(np.random.default_rng(1).integers(0, keys, keys)))
    some = rows.take(np.sort(np.random.default_rng(1).permutation(keys)[:left]))
    waiting = iter(filled)

    def changes_ours() -> None:
        name = next(waiting)
        bring(name, name)

    found = tasks.by_turns(
        "changes: µs CPU, seconds", given.rows, changes_ours, changes_floor, runs
    )
    shown += _rows(kind, "changes of them", given.rows, *found)
    session.close()
    return shown


def _rows(
    kind: str, what: str, count: int, ours: tuple[float, float], floor: tuple[float, float]
) -> list[Row]:
    return [
        Row(
            f"event log → {kind}, {count:,} {what}",
            f"{ours[0]:.1f} µs CPU, {count / ours[1]:,.0f}/s",
            f"{floor[0]:.1f} µs CPU, {count / floor[1]:,.0f}/s (by hand)",
            f"{floor[1] / ours[1]:.2f} × in time",
            "",
        )
    ]


def _load(session: Any, table: str, rows: pa.Table) -> None:
    """By PostgreSQL's COPY or MySQL's LOAD DATA, as lines that Arrow writes."""
    mysql = isinstance(session, MySqlSession)
    if mysql:  # which has no true
        at = rows.schema.get_field_index("shipped")
        rows = rows.set_column(at, "shipped", rows.column("shipped").cast(pa.int8()))
    out = pa.BufferOutputStream()
    plain = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    csv.write_csv(rows, out, plain)
    lines = memoryview(out.getvalue())
    listed = ", ".join(COLUMNS)
    if mysql:
        session._connection.load(
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 ({listed})",
            lines,
        )
        return
    with session._connection.cursor().copy(f"COPY {table} ({listed}) FROM STDIN".encode()) as copy:
        copy.write(lines)


if __name__ == "__main__":
    main()
