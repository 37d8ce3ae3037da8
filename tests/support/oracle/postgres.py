"""PostgreSQL under the history oracle: a slot of its own has the truth."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence, Set
from typing import Any

import psycopg
from tests.support.oracle import workload_postgres as workload
from tests.support.oracle.dumps import Seen
from tests.support.oracle.pgoutput import parse_stream
from tests.support.oracle.values import Change, Key, Row, Transaction
from tests.support.oracle.workload import AUDIT, Table
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import publication_sql

from tidelog.config import Config
from tidelog.config.source import PostgresSourceSection
from tidelog.model.records import ChunkMeta
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.connect import connect

SETTINGS = {
    "deadlock_timeout": "50ms",
    "max_wal_size": "1GB",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "logical_decoding_work_mem": "64kB",  # transactions spill, as large ones do
    "track_commit_timestamp": "on",
}


class PostgresOracle:
    """See `tests.support.oracle.source.OracleSource`."""

    strategies: tuple[str, ...] = ("table", "message", "snapshot")
    faults: tuple[str, ...] = ("terminate", "restart")
    blocking = True
    prepares = False  # see `Mix`
    alters = True

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.tables = workload.TABLES

    @property
    def port(self) -> int:
        return self.server.port

    def create(self, name: str, seed: int) -> None:
        self._name = name
        directly = self.server.create_database(name)
        self._dsn = directly.replace(f":{self.server.port}/", f":{self.port}/")
        self.writers = workload.PostgresWriters(self._dsn)
        self._set_up()
        workload.fill(self._dsn, seed)

    def _set_up(self) -> None:
        workload.set_up(self._dsn)

    def drop(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.server.drop_database(self._name)

    def section(self, watermarks: str, initial: str) -> str:
        return (
            f"{{kind: postgres, url: '{self._dsn}', tables: ['app.*'], slot: {self._slot}, "
            f"watermarks: {watermarks}, snapshot_mode: {initial}}}"
        )

    @property
    def _slot(self) -> str:
        """Capture's."""
        return f"slot_{self._name}"[:63]

    def prepare(self, config: Config) -> None:
        source = config.source
        assert isinstance(source, PostgresSourceSection)
        if source.watermarks != "snapshot":
            return
        publications = Publications(
            source.publication_name, source.tables, strategy="snapshot", slot=source.slot
        )
        with connect(self._dsn, purpose="publication") as connection:
            while statements := publication_sql(publications, connection):
                for statement in statements:
                    connection.execute(statement.encode())

    def run(self, statement: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def strike(self, fault: str, rng: random.Random) -> None:
        if fault == "restart":
            self.server.restart(mode="immediate")
            return
        who = rng.choice(("backend_type = 'walsender'", "application_name LIKE 'tidelog%'"))
        with contextlib.suppress(psycopg.Error):
            self.server.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {who} "
                f"AND datname = '{self._name}'"
            )

    def promote(self, rng: random.Random) -> str:
        return ""

    def mark(self) -> int:
        for _attempt in range(100):
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
                    assert row is not None
                    return int(row[0])
            except psycopg.OperationalError:  # the server restarts
                time.sleep(0.1)
        raise AssertionError("the server does not come back")

    def last_write(self, rng: random.Random) -> int:
        with psycopg.connect(self._dsn) as connection:
            writer = workload.PostgresWriter(connection, rng)
            for table in self.tables.values():
                writer.put(table, table.random_key(rng))
            return int(writer.one("SELECT pg_current_xact_id()::text::int8"))

    def reached(self, mark: int, xids: Set[int]) -> bool:
        return mark in xids

    def truth(self, xids: Set[int] = frozenset()) -> list[Transaction]:
        keys = {table.name: table.key for table in self.tables.values()}
        found = parse_stream(workload.truth_messages(self._dsn), keys, AUDIT)
        for transaction in found:  # the schema may have tables that are judged apart
            transaction.changes = [each for each in transaction.changes if each.table in keys]
        return found

    def rows(self, table: Table) -> dict[Key, Row]:
        return workload.source_rows(self._dsn, table)

    def text(self, column: str, value: Any) -> str:
        return str(value)

    def sight(self, snapshot: str) -> Seen:
        return Seen.of(snapshot)

    def begun(self, chunk: ChunkMeta) -> int:
        return Seen.of(chunk.snapshot).xmax

    def same(self, change: Change, record: Change) -> bool:
        return (
            change.op == record.op
            and change.table == record.table
            and (change.payload == record.payload or change.op == "T")
            and change.xid == record.xid & 0xFFFFFFFF
            and (change.position, change.commit_us) == (record.position, record.commit_us)
        )

    def place(self, table: str, key: Sequence[str | None]) -> object:
        return self.tables[table].place(key)
