"""`tidelog verify` of copies in Delta that are equal: one large table, and many small ones.

The large one by checksums, against all rows read and compared, and beside a floor: the server's
digests alone, and the copy's files read by Arrow alone.

python -m benchmarks.bench_verify [--rows 500000] [--tables 500]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from tests.support.postgres import PostgresServer

import tidelog
from benchmarks.bench_many_tables import create_table
from benchmarks.spark_workload import Meter, report
from benchmarks.table import Row, show
from tidelog import app
from tidelog.app import verification
from tidelog.app.sources.kinds import source_kind
from tidelog.config import Config, load_config
from tidelog.errors import TidelogError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest

SQL = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int, at timestamptz, total numeric(12,2), paid boolean,
  status text, note text, weight float8, ref uuid, tags text[]
);
INSERT INTO orders SELECT i, i % 9973, '2024-01-01Z'::timestamptz + i * interval '1 second',
  i * 0.37, i % 3 = 0, 'open', 'order number ' || i, i / 7.0, md5(i::text)::uuid, array['a', 'b']
FROM generate_series(1, {rows}) i;
"""


class _ByRows(verification.ComparedSource):
    """Never sums up."""

    def why_not(self, *_: object) -> str:
        return "asked for"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tables", type=int, default=500, help="small ones, of 100 rows")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.tables = 20_000, 5
    rows: list[Row] = []
    with PostgresServer(version=16) as server:
        if given.rows:
            dsn = server.create_database("shop")
            server.execute(SQL.format(rows=given.rows), "shop")
            with _delivered(dsn) as config:
                rows.append(_large(given.rows, config))
        if given.tables:
            dsn = server.create_database("many")
            with psycopg.connect(dsn, autocommit=True) as sql:
                for number in range(given.tables):
                    sql.execute(create_table(number).encode())
            with _delivered(dsn) as config:
                rows.append(_many(given.tables, config))
    show(rows)


@contextmanager
def _delivered(dsn: str) -> Iterator[Config]:
    """All tables are in Delta; capture runs on."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        file = Path(directory) / "tidelog.yaml"
        file.write_text(
            f"source: {{kind: postgres, url: '{dsn}', slot: bench_{dsn.rpartition('/')[2]}}}\n"
            f"log: {{path: {directory}/log}}\n"
            f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
            f"outputs: [{{kind: delta, path: {directory}/lake}}]\n"
            f"pipeline: {{checkpoint: {directory}/checkpoint, master: 'local[2]'}}\n"
        )
        config = load_config(file)
        with tidelog.Capture(config):
            while not _dumped(config):
                time.sleep(0.2)
            tidelog.Pipeline(config, once=True).run()
            yield config


def _large(rows: int, config: Config) -> Row:
    _verified(config)  # Spark has started, and what it will is compiled
    with Meter() as meter:
        sums_s = _verified(config)
    report("verify by checksums", rows, meter.reading)
    sums_us = meter.reading.cpu_seconds * 1e6 / rows
    with Meter() as meter:
        _floor(config)
    report("floor: the server's digests, and the copy's files read", rows, meter.reading)
    floor_us = meter.reading.cpu_seconds * 1e6 / rows
    compared = verification.ComparedSource
    verification.ComparedSource = _ByRows  # type: ignore[misc]
    try:
        with Meter() as meter:
            rows_s = _verified(config)
    finally:
        verification.ComparedSource = compared  # type: ignore[misc]
    report("verify by rows", rows, meter.reading)
    return Row(
        f"`tidelog verify`, PostgreSQL → Delta ({rows:,} rows of 10 columns, equal)",
        f"{rows / sums_s:,.0f} rows/s, {sums_us:.1f} µs CPU a row",
        f"{floor_us:.1f} µs (the server's digests, and the files read by Arrow), "
        f"{rows / rows_s:,.0f} rows/s (every row read and compared)",
        f"{sums_us / floor_us:.2f} × the floor's CPU",
        "–",
    )


def _floor(config: Config) -> None:
    """What is to be done at least."""
    kind, table = source_kind(config), TableName("public", "orders")
    with closing(kind.catalogue()) as catalogue, closing(kind.digests()) as digests:
        shape = catalogue.shape(table)
        assert shape is not None
        digests.digest(ChunkRequest(table), shape.schema, shape.schema.column_names)
    for file in Path(config.log.path).parent.glob("lake/public/orders/*.parquet"):
        pq.read_table(file, use_threads=False)


def _many(tables: int, config: Config) -> Row:
    told = []
    for turn in ("the first time", "again"):
        with Meter() as meter:
            seconds = _verified(config, tables)
        report(f"verify of many tables, {turn}", tables, meter.reading)
        told.append(f"{turn} {seconds:.1f} s, {meter.reading.cpu_seconds:.1f} s CPU")
    return Row(
        f"`tidelog verify` of {tables:,} tables of 100 rows", "; ".join(told), "", "", "≤ 90 s"
    )


def _dumped(config: Config) -> bool:
    try:
        dumps = app.status(config).document.get("dumps", ())
    except TidelogError:
        return False  # it has not begun
    return bool(dumps) and all(each["status"] == "completed" for each in dumps)


def _verified(config: Config, tables: int = 1) -> float:
    """Seconds."""
    begun = time.perf_counter()
    found = app.verify(config).to_dict()
    assert found["equal"], found
    assert len(found["tables"]) == tables
    assert not any(each["unsettled"] for each in found["tables"])
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
