"""A primary, its standby, writers, and a capture from the standby."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer
from tests.support.repeatedly import repeatedly
from tests.support.standby import PostgresStandby

Connection = psycopg.Connection[Any]
PUBLISH = (
    "CREATE PUBLICATION tidelog FOR ALL TABLES WITH (publish_via_partition_root = true)",
    "CREATE PUBLICATION tidelog_inserts WITH (publish = 'insert, truncate', "
    "publish_via_partition_root = true)",
)
_numbers = itertools.count(1)


@dataclass
class Pair:
    """A primary, its standby, and one database of them."""

    primary: PostgresServer
    standby: PostgresStandby
    name: str
    sql: Connection
    captures: list[Capture] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        """On the standby."""
        return self.standby.dsn(self.name)

    def on_primary(self) -> Connection:
        return psycopg.connect(self.primary.dsn(self.name), autocommit=True)

    def logging_snapshots(self) -> AbstractContextManager[None]:
        """What an operator does while a slot is made on the standby."""
        log = "SELECT pg_log_standby_snapshot()"
        return repeatedly(lambda: self.primary.execute(log), 0.1)

    def capture(self) -> Capture:
        for statement in PUBLISH:
            self.sql.execute(statement.encode())
        self.standby.replayed()
        capture = self.reading(strategy="snapshot")
        with self.logging_snapshots():
            capture.start()
        return capture

    def reading(self, **options: Any) -> Capture:
        self.captures.append(Capture(self.dsn, options=options))
        return self.captures[-1]


@pytest.fixture(scope="module", params=[16, 18])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, PostgresStandby]]:
    settings = {"max_prepared_transactions": 20, "wal_sender_timeout": 0}
    with (
        PostgresServer(request.param, settings) as primary,
        PostgresStandby(primary, {"max_standby_streaming_delay": "300ms"}) as standby,
    ):
        yield primary, standby


@pytest.fixture
def pair(servers: tuple[PostgresServer, PostgresStandby]) -> Iterator[Pair]:
    primary, standby = servers
    name = f"standby_{next(_numbers)}"
    primary.create_database(name)
    standby.replayed()
    with psycopg.connect(primary.dsn(name), autocommit=True) as sql:
        pair = Pair(primary, standby, name, sql)
        yield pair
    for capture in pair.captures:
        capture.reader.close()
    standby.drop_slots(name)
    primary.drop_database(name)
    standby.replayed()


def write(connect: Callable[[], Connection], writer: int, stop: threading.Event) -> None:
    """Short and long transactions of one writer: savepoints, rollbacks, two phases."""
    chance = random.Random(writer)
    values = itertools.count(1)
    with connect() as connection:
        while not stop.is_set():
            connection.execute("BEGIN")
            for _ in range(chance.randint(1, 4)):
                key = writer * 100 + chance.randrange(5)
                connection.execute("SAVEPOINT s")
                if chance.random() < 0.2:
                    connection.execute("DELETE FROM t WHERE id = %s", (key,))
                else:
                    connection.execute(
                        "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET "
                        "n = excluded.n",
                        (key, next(values)),
                    )
                if chance.random() < 0.2:
                    connection.execute("ROLLBACK TO s")
            if chance.random() < 0.05:
                time.sleep(0.3)
            end = chance.random()
            if end < 0.1:
                connection.execute("ROLLBACK")
            elif end < 0.2:
                connection.execute(f"PREPARE TRANSACTION 'p{writer}'")
                time.sleep(0.02)
                connection.execute(f"COMMIT PREPARED 'p{writer}'")
            else:
                connection.execute("COMMIT")


@contextmanager
def writers(pair: Pair, count: int) -> Iterator[None]:
    """Writers on the primary's table ``t (id int PRIMARY KEY, n int)``, each on keys of its own;
    every write gives its key a greater ``n``.
    """
    stop = threading.Event()
    threads = [
        threading.Thread(target=write, args=(pair.on_primary, number, stop))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
