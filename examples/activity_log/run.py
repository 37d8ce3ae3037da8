"""The example from beginning to end, everything embedded: a shop whose checkout breaks.

    python run.py [--dir DIRECTORY] [--seconds 60]

A real PostgreSQL, a shop that writes, capture beside it; after two thirds of the time orders stop
coming in. Then Spark brings the event log over to files, and the dashboard shows what happened.
Needs `pip install 'tidelog[demo]'` and Java.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dashboard
import psycopg

import tidelog
from tidelog import load_config
from tidelog.demo.servers.postgres import PostgresServer

HERE = Path(__file__).parent
TABLES = """
CREATE TABLE customers (id serial PRIMARY KEY, name text, visits int DEFAULT 0);
CREATE TABLE carts (id serial PRIMARY KEY, customer int, items int DEFAULT 0);
CREATE TABLE orders (id serial PRIMARY KEY, customer int, state text, total numeric(9, 2));
INSERT INTO customers (name) SELECT 'customer ' || n FROM generate_series(1, 200) n;
INSERT INTO carts (customer, items) SELECT n, 1 FROM generate_series(1, 200) n;
"""
# Ten times a second each, of about so many rows; the checkout is what breaks.
CHECKOUT = """
INSERT INTO orders (customer, state, total)
SELECT 1 + random() * 199, 'new', 9.95 FROM generate_series(1, %s)
"""
STATEMENTS = (
    (CHECKOUT, 5),
    ("UPDATE orders SET state = 'sent' WHERE id > (SELECT max(id) FROM orders) - %s", 2),
    ("INSERT INTO carts (customer, items) SELECT 1, 1 FROM generate_series(1, %s)", 3),
    ("UPDATE carts SET items = items + 1 WHERE id > (SELECT max(id) FROM carts) - %s", 6),
    ("DELETE FROM carts WHERE id IN (SELECT id FROM carts ORDER BY id LIMIT %s)", 1),
    ("UPDATE customers SET visits = visits + 1 WHERE id <= %s", 4),
)


def shop(url: str, seconds: float) -> dict[str, int]:
    """Write for that long; the rows by statement."""
    written: dict[str, int] = {}
    started = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        for turn in range(int(seconds * 10)):
            time.sleep(max(0.0, started + turn / 10 - time.monotonic()))
            works = turn < seconds * 10 * 2 / 3
            for number, (statement, usual) in enumerate(STATEMENTS):
                if statement is CHECKOUT and not works:
                    continue
                rows = max(1, usual + (1, 0, -1, 0)[(turn // 10 + number) % 4])
                done = connection.execute(statement, (rows,))
                words = statement.split()
                name = f"{words[0].lower()} {words[1] if words[0] == 'UPDATE' else words[2]}"
                written[name] = written.get(name, 0) + done.rowcount
    return written


def dumped(statuses: list[dict[str, Any]]) -> bool:
    """Are the rows read that were there before? Then every change since is captured as such."""
    dumps = statuses[-1].get("dumps", []) if statuses else []
    return bool(dumps) and all(dump["status"] == "completed" for dump in dumps)


def captured(statuses: list[dict[str, Any]], since_s: float) -> bool:
    """Does the event log hold all commits up to then, as the newest status says?"""
    newest = statuses[-1].get("capture", {}) if statuses else {}
    return float(newest.get("last_commit_ts", 0)) / 1e6 >= since_s


def wait(engine: tidelog.CaptureGroup, until: Callable[[], bool]) -> None:
    """Raises what ended capture, or TimeoutError after two minutes."""
    deadline = time.monotonic() + 120
    while not until():
        for failure in engine.failures.values():
            raise failure
        if time.monotonic() > deadline:
            raise TimeoutError("capture does not get on")
        time.sleep(0.2)


def run(directory: Path, seconds: float) -> tuple[Path, dict[str, int]]:
    """The page, and what the shop wrote."""
    shutil.copy(HERE / "tidelog.yaml", directory)
    with PostgresServer(16) as server:
        server.create_database("shop")
        url = server.dsn("shop")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        config = load_config(directory / "tidelog.yaml", {**os.environ, "SHOP_URL": url})
        statuses: list[dict[str, Any]] = []
        with tidelog.CaptureGroup(
            [config], pipelines=False, on_status=lambda _, status: statuses.append(status)
        ) as engine:
            wait(engine, lambda: dumped(statuses))
            print(f"a shop writes for {seconds:.0f} s; its checkout breaks after two thirds")
            written = shop(url, seconds)
            with psycopg.connect(url, autocommit=True) as connection:
                ended = time.time()
                connection.execute("UPDATE customers SET visits = 0 WHERE id = 1")
            wait(engine, lambda: captured(statuses, ended))
    print("Spark brings the event log over to files")
    tidelog.Pipeline(config, once=True).run()
    page = directory / "activity.html"
    activity = dashboard.read(config.outputs[0].path, bucket_s=1)  # type: ignore[attr-defined]
    page.write_text(dashboard.page(activity, "Activity of the shop"), encoding="utf-8")
    for drop in dashboard.drops(activity):
        print(f"{dashboard.KINDS[drop.op]} of {drop.table} fell at {activity.at(drop.start)}")
    return page, written


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("activity-log-demo"))
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    asked.dir.mkdir(parents=True)
    page, _ = run(asked.dir, asked.seconds)
    print(f"open {page}")


if __name__ == "__main__":
    main()
