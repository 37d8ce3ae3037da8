"""The oracle's writers: what the server does to them is no failure of theirs."""

from __future__ import annotations

import random
import time

import psycopg
import pytest
from tests.support.oracle import workload_mysql, workload_postgres
from tests.support.oracle.workload import Mix, OracleWorkload, Table, Undo, WorkloadWriter
from tests.support.oracle.workload_postgres import PostgresWriter, PostgresWriters

pytestmark = pytest.mark.integration


class Cut(OracleWorkload):
    """Its first transaction loses its connection when it is about to roll back."""

    cut = False
    dsn = ""

    def _writes(self, writer: WorkloadWriter, rng: random.Random) -> None:
        if self.cut:
            return
        self.cut = True
        assert isinstance(writer, PostgresWriter)
        with psycopg.connect(self.dsn, autocommit=True) as other:
            pid = writer.connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        raise Undo


@pytest.mark.parametrize("tables", [workload_postgres.TABLES, workload_mysql.TABLES])
def test_spellings_of_one_key_have_one_lock(tables: dict[str, Table]) -> None:
    numbers = tables["app.nums"]
    assert numbers.place(["7.5"]) == numbers.place(["7.50"])
    assert numbers.lock(["7.5"]) == numbers.lock(["7.50"])


def test_writer_whose_connection_is_cut_while_it_rolls_back_continues(database: str) -> None:
    mix = Mix(("app.ints",), bulk=False, truncate=False, ddl=False, prepared=False, long=False)
    workload = Cut(PostgresWriters(database), 1, mix, writers=1)
    workload.dsn = database
    workload.start()
    deadline = time.monotonic() + 20
    while not workload.committed and time.monotonic() < deadline and workload._failure is None:
        time.sleep(0.02)
    workload.stop()
    assert workload.cut
    assert workload.committed
