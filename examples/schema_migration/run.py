"""The example from beginning to end, everything embedded: from MySQL to PostgreSQL, another shape.

    python run.py [--dir DIRECTORY] [--customers 2000]

A real MySQL with an application that writes all the while, and a PostgreSQL with the new table. The
table is dumped and kept up to date; reads of both are compared; then the application is stopped,
the last changes arrive, everything is compared once more, and the new application may write.
Needs `pip install 'tidelog[demo]'` and Java.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

import tidelog
from tidelog import Config, load_config
from tidelog.demo.servers.mysql import MySqlServer
from tidelog.demo.servers.postgres import PostgresServer

HERE = Path(__file__).parent
OLD = """
CREATE TABLE kunden (
  id INT PRIMARY KEY AUTO_INCREMENT, vorname VARCHAR(40), nachname VARCHAR(40),
  guthaben_cent INT NOT NULL DEFAULT 0, aktiv TINYINT NOT NULL DEFAULT 1,
  angelegt DATETIME NOT NULL DEFAULT '2026-01-01 12:00:00'
)
"""
NEW = """
CREATE SCHEMA crm;
CREATE TABLE crm.customers (
  customer_id bigint PRIMARY KEY, full_name text NOT NULL, balance numeric(12, 2) NOT NULL,
  active boolean NOT NULL, created timestamp NOT NULL
);
"""
READS = 200


class OldShop(threading.Thread):
    """The application, on the old database until it is stopped."""

    def __init__(self, server: MySqlServer, database: str, customers: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._database = database
        self._customers = customers
        self._ending = threading.Event()
        self.written = 0

    def run(self) -> None:
        chosen = random.Random(1)
        with self._server.connect(self._database) as connection:
            cursor = connection.cursor()
            while not self._ending.wait(0.005):
                key = chosen.randint(1, self._customers)
                what = chosen.random()
                if what < 0.6:
                    sql = "UPDATE kunden SET guthaben_cent = guthaben_cent + 250 WHERE id = %s"
                elif what < 0.8:
                    sql = "INSERT INTO kunden (vorname, nachname) VALUES ('Neu', %s)"
                elif what < 0.9:
                    sql = "UPDATE kunden SET aktiv = 1 - aktiv WHERE id = %s"
                else:
                    sql = "DELETE FROM kunden WHERE id = %s"
                cursor.execute(sql, (key,))
                self.written += 1

    def switch_off(self) -> None:
        self._ending.set()
        self.join(30)


def old_view(server: MySqlServer, database: str, ids: list[int]) -> dict[int, tuple[Any, ...]]:
    """Customers as the new application wants them, read from the old table by its own mapping."""
    listed = ", ".join(map(str, ids)) or "0"
    rows = server.execute(
        f"SELECT id, vorname, nachname, guthaben_cent, aktiv FROM kunden WHERE id IN ({listed})",
        database,
    )
    return {
        row[0]: (" ".join(part for part in row[1:3] if part), Decimal(row[3]) / 100, bool(row[4]))
        for row in rows
        if row[2] is not None
    }


def new_view(url: str, ids: list[int]) -> dict[int, tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT customer_id, full_name, balance, active FROM crm.customers "
            "WHERE customer_id = ANY(%s)",
            (ids,),
        ).fetchall()
    return {row[0]: tuple(row[1:]) for row in rows}


@contextmanager
def migrating(config: Config) -> Iterator[None]:
    """Capture and pipeline, beside the application."""
    with tidelog.Capture(config):
        wait_for(lambda: tidelog.status(config).document.get("dumps"), "capture leads")
        with tidelog.Pipeline(config):
            yield


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within three minutes: {what}")
        time.sleep(0.2)


def migrate(directory: Path, customers: int) -> dict[str, Any]:
    """What was seen on the way."""
    with MySqlServer() as old, PostgresServer(16) as new:
        old.create_database("shop")
        old.execute(OLD, "shop")
        for first in range(0, customers, 1000):
            rows = ", ".join(
                f"('Kim', {'NULL' if n % 50 == 0 else repr(f'Name {n}')}, {n})"
                for n in range(first, min(customers, first + 1000))
            )
            old.execute(
                f"INSERT INTO kunden (vorname, nachname, guthaben_cent) VALUES {rows}", "shop"
            )
        url = new.create_database("crm")
        new.execute(NEW, "crm")
        os.environ |= {
            "OLD_URL": old.url, "OLD_DATABASE": "shop", "NEW_URL": url, "DATA": str(directory),
        }  # fmt: skip
        config = load_config(HERE / "tidelog.yaml")
        shop = OldShop(old, "shop", customers)
        shop.start()
        with migrating(config):
            wait_for(
                lambda: new_view(url, list(range(1, 20))), "the first rows are in the new table"
            )
            before = tidelog.verify_outputs(config)  # while the old shop writes
            ids = random.Random(2).sample(range(1, customers + 1), min(READS, customers))
            seen = old_view(old, "shop", ids)
            reads_equal = sum(new_view(url, [key]).get(key) == row for key, row in seen.items())
            shop.switch_off()
            after = tidelog.verify_outputs(config)
            ids = [row[0] for row in old.execute("SELECT id FROM kunden", "shop")]
            same = old_view(old, "shop", ids) == new_view(url, ids)
        with psycopg.connect(url) as connection:  # the switch: the new application writes
            connection.execute(
                "INSERT INTO crm.customers VALUES (1000000, 'New Customer', 0, true, now())"
            )
    [first], [last] = before.tables, after.tables
    return {
        "written_meanwhile": shop.written,
        "equal_while_writing": first.equal,
        "reads_compared": len(seen),
        "reads_equal": reads_equal,
        "equal_after_the_switch": last.equal and same,
        "rows": last.rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("schema-migration"))
    parser.add_argument("--customers", type=int, default=2000)
    given = parser.parse_args()
    shutil.rmtree(given.dir, ignore_errors=True)
    given.dir.mkdir(parents=True)
    for name, value in migrate(given.dir.resolve(), given.customers).items():
        print(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    main()
