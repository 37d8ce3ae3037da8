"""`tidelog verify` of a table that is equal: by checksums, against all rows read and compared.

python -m benchmarks.bench_verify [--rows 500000]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import tidelog
from benchmarks.spark_workload import Meter, report
from benchmarks.table import Row, show
from tidelog import app
from tidelog.app.verify import compare
from tidelog.config import Config, load_config
from tidelog.demo.servers.postgres import PostgresServer
from tidelog.eventlog.reader import EventLog

SQL = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int, at timestamptz, total numeric(12,2), paid boolean,
  status text, note text, weight float8, ref uuid, tags text[]
);
INSERT INTO orders SELECT i, i % 9973, '2024-01-01Z'::timestamptz + i * interval '1 second',
  i * 0.37, i % 3 = 0, 'open', 'order number ' || i, i / 7.0, md5(i::text)::uuid, array['a', 'b']
FROM generate_series(1, {rows}) i;
"""


class _ByRows(compare.ComparedSource):
    """Never sums up."""

    def why_not(self, *_: object) -> str:
        return "asked for"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.rows = 20_000
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch,
        PostgresServer(version=16) as server,
    ):
        dsn = server.create_database("shop")
        server.execute(SQL.format(rows=given.rows), "shop")
        _run(given.rows, _config(Path(scratch), dsn))


def _config(directory: Path, dsn: str) -> Config:
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', slot: bench}}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: [{{kind: delta, path: {directory}/lake}}]\n"
        f"pipeline: {{checkpoint: {directory}/checkpoint, master: 'local[2]'}}\n"
    )
    return load_config(file)


def _run(rows: int, config: Config) -> None:
    stop = threading.Event()
    capture = threading.Thread(target=tidelog.Capture(config).run, args=(stop,), daemon=True)
    capture.start()
    try:
        while not (EventLog.exists(str(config.log.path)) and _dumped(config)):
            time.sleep(0.2)
        app.pipeline(config, once=True, stop_event=threading.Event())
        _verified(config)  # Spark has compiled what it will
        sums_s = _verified(config)
        with Meter() as meter:
            sums_s = min(sums_s, _verified(config))
        report("verify by checksums", rows, meter.reading)
        compare.ComparedSource = _ByRows  # type: ignore[misc]
        with Meter() as meter:
            rows_s = min(_verified(config), _verified(config))
        report("verify by rows, twice", 2 * rows, meter.reading)
    finally:
        stop.set()
        capture.join(30)
    show(
        [
            Row(
                f"`tidelog verify`, PostgreSQL → Delta ({rows:,} rows of 10 columns, equal)",
                f"{rows / sums_s:,.0f} rows/s",
                f"{rows / rows_s:,.0f} rows/s (every row read and compared)",
                f"{rows_s / sums_s:.2f} ×",
                "–",
            )
        ]
    )


def _dumped(config: Config) -> bool:
    dumps = app.status(config).get("dumps", ())
    return any(dump["status"] == "completed" for dump in dumps)


def _verified(config: Config) -> float:
    """Seconds."""
    begun = time.perf_counter()
    found = app.verify(config)
    assert found["equal"], found
    assert found["tables"][0]["unsettled"] == 0
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
