"""The table that all peers copy, its changes, and a digest to compare copies with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psycopg
from tests.support.postgres import PostgresServer

from benchmarks.bench_capture import INSERT, SETTINGS, TABLE

TRANSACTION_ROWS = 1_000
COLUMNS = (
    *("id", "customer", "status", "amount", "quantity", "placed", "updated"),
    *("note", "reference", "active"),
)
TEXT_OF_TIME = "YYYY-MM-DD HH24:MI:SS.US"


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of row 0, whose column ``customer`` tells the number: copies are not compared in it.

    ``lsn``: the log's end behind it.
    """

    number: int
    lsn: str


@dataclass(frozen=True, slots=True)
class Digest:
    """Of a table's rows as text, in any order, but for row 0."""

    rows: int
    sum: int


def digest(lines: Iterable[bytes]) -> Digest:
    """Args: rows as `COLUMNS` with commas between, times as `TEXT_OF_TIME` in UTC."""
    rows = total = 0
    for line in lines:
        if not line.startswith(b"0,"):
            rows += 1
            found = hashlib.blake2b(line.rstrip(b"\n"), digest_size=8).digest()
            total += int.from_bytes(found, "big")
    return Digest(rows, total % 2**64)


class Source:
    """PostgreSQL with the table of ``rows`` rows, and row 0."""

    def __init__(self, server: PostgresServer, rows: int) -> None:
        self._server = server
        self._rows = rows
        self._marks = 0
        self.rows = rows + 1
        """Also after `change`, which inserts as many as it deletes."""
        self.port = server.port
        self.dsn = server.dsn()
        server.execute(TABLE)
        for first in range(0, rows + 1, 50_000):
            server.execute(INSERT.format(first=first, last=min(rows, first + 49_999)))
        server.execute("VACUUM ANALYZE orders")
        server.execute("CHECKPOINT")

    def mark(self) -> Mark:
        self._marks += 1
        self._server.execute(f"UPDATE orders SET customer = {self._marks} WHERE id = 0")
        return Mark(self._marks, self._server.execute("SELECT pg_current_wal_lsn()::text")[0][0])

    def change(self, changes: int, seed: int = 1) -> None:
        """Transactions of 1,000 rows, wherever they are: 90 % updates, 5 % deletes, 5 % inserts."""
        random = np.random.default_rng(seed)
        ids = random.permutation(self._rows) + 1
        few = TRANSACTION_ROWS // 20
        transactions = changes // TRANSACTION_ROWS
        kept = ids[transactions * few :]
        with psycopg.connect(self.dsn) as connection:
            for number in range(transactions):
                updated = random.choice(kept, TRANSACTION_ROWS - 2 * few, replace=False)
                connection.execute(
                    "UPDATE orders SET amount = amount + 1, status = 'returned', "
                    "updated = clock_timestamp() WHERE id = ANY(%s)",
                    [updated.tolist()],
                )
                deleted = ids[number * few : (number + 1) * few]
                connection.execute("DELETE FROM orders WHERE id = ANY(%s)", [deleted.tolist()])
                first = self._rows + number * few + 1
                connection.execute(INSERT.format(first=first, last=first + few - 1))
                connection.commit()

    def confirmed(self, slot: str, lsn: str) -> bool:
        """Has the slot's reader confirmed that it needs nothing before ``lsn``?"""
        found = self._server.execute(
            f"SELECT confirmed_flush_lsn >= '{lsn}'::pg_lsn FROM pg_replication_slots "
            f"WHERE slot_name = '{slot}'"
        )
        return bool(found and found[0][0])

    def has_slot(self, slot: str) -> bool:
        """Is there a slot that is ready, so that what is confirmed by it comes from its reader?"""
        return bool(
            self._server.execute(
                "SELECT 1 FROM pg_replication_slots "
                f"WHERE slot_name = '{slot}' AND confirmed_flush_lsn IS NOT NULL"
            )
        )

    def wait_until_free(self, slot: str, timeout_s: float = 60) -> None:
        """Until the server has noticed that the slot's reader is gone."""
        deadline = time.monotonic() + timeout_s
        while self._server.execute(
            f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"slot {slot} is still in use")
            time.sleep(0.2)

    def digest(self) -> Digest:
        columns = ", ".join(
            f"to_char({name} AT TIME ZONE 'UTC', '{TEXT_OF_TIME}')" if name == "placed"
            else f"to_char({name}, '{TEXT_OF_TIME}')" if name == "updated"
            else f"{name}::text" if name == "active" else name
            for name in COLUMNS
        )  # fmt: skip
        return digest(self._copied(f"COPY (SELECT {columns} FROM orders) TO STDOUT (FORMAT csv)"))

    def _copied(self, statement: str) -> Iterator[bytes]:
        with (
            psycopg.connect(self.dsn) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for row in copy:
                yield bytes(row)


@contextmanager
def source(rows: int) -> Iterator[Source]:
    with PostgresServer(16, SETTINGS, fsync=True) as server:
        yield Source(server, rows)
