"""MySQL and MariaDB under the history oracle: their binlog, read a second time, is the truth."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import pymysql
from tests.support.mysql import MySqlFamilyServer
from tests.support.oracle import workload_mysql as workload
from tests.support.oracle.binlog import BinlogTruth
from tests.support.oracle.values import Change, Key, Row, Transaction
from tests.support.oracle.workload import AUDIT, Table

from tidelog.codecs.mysql.binlog.items import pack_position, parse_file_name
from tidelog.config import Config
from tidelog.model.records import ChunkMeta

SETTINGS: dict[str, Any] = {
    "binlog_row_metadata": "FULL",
    "max_binlog_size": "1M",  # a run sees several files
    "binlog_cache_size": 4096,  # transactions spill, as large ones do
    "max_connections": 200,
    "innodb_lock_wait_timeout": 5,
}
_DUMPING = "Binlog Dump%"


@dataclass(frozen=True, slots=True)
class BinlogSight:
    """Sees what begins before a place in the binlog."""

    position: int

    @classmethod
    def of(cls, text: str) -> BinlogSight:
        kind, number, offset = text.split(":")
        if kind != "binlog":
            raise ValueError(f"a snapshot {text!r}")
        return cls(pack_position(int(number), int(offset)))

    def sees(self, xid: int) -> bool:
        return xid < self.position


class MySqlOracle:
    """See `tests.support.oracle.source.OracleSource`."""

    strategies: tuple[str, ...] = ("table", "gtid")
    faults: tuple[str, ...] = ("terminate", "restart", "crash", "rotate")
    blocking = True
    prepares = True

    def __init__(self, server: MySqlFamilyServer, metadata: str = "FULL") -> None:
        """``metadata``: the server's ``binlog_row_metadata``."""
        self.server = server
        self.metadata = metadata
        self.alters = metadata == "FULL"
        self.tables = workload.TABLES

    @property
    def port(self) -> int:
        return self.server.port

    def create(self, name: str, seed: int) -> None:
        self.drop()
        self.writers = workload.MySqlWriters(self.server, port=self.port)
        self._begin = workload.create(self.server, seed)

    def drop(self) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            for database in ("app", "truth", "tidelog"):
                self.server.drop_database(database)

    def section(self, watermarks: str, initial: str) -> str:
        url = self.server.dsn("app").replace(f":{self.server.port}/", f":{self.port}/")
        keys = ", ".join(f"{table}: [{', '.join(k)}]" for table, k in workload.KEYS.items())
        return (
            f"{{kind: {self.server.flavor}, url: '{url}', tables: ['app.*'], "
            f"watermarks: {watermarks}, snapshot_mode: {initial}, keys: {{{keys}}}}}"
        )

    def prepare(self, config: Config) -> None:
        """Nothing: a binlog has no publication."""

    def run(self, statement: str) -> None:
        self.server.execute(statement)

    def strike(self, fault: str, rng: random.Random) -> None:
        if fault == "restart":
            self.server.restart()
        elif fault == "crash":
            self.server.kill()
            self.server.start()
        elif fault == "rotate":
            self.server.execute("FLUSH BINARY LOGS")
        else:
            self._terminate(rng)

    def promote(self, rng: random.Random) -> str:
        return ""

    def _terminate(self, rng: random.Random) -> None:
        """End the connections that read the log, or those of dumps too (not the workload's)."""
        rows = self.server.execute(
            "SELECT id, command, info FROM information_schema.processlist WHERE id <> "
            "CONNECTION_ID()"
        )
        dumping = [row[0] for row in rows if str(row[1]).startswith("Binlog Dump")]
        reading = [row[0] for row in rows if "app." in str(row[2]) and "tidelog" in str(row[2])]
        for thread in dumping if rng.random() < 0.6 else [*dumping, *reading]:
            with contextlib.suppress(pymysql.MySQLError):
                self.server.execute(f"KILL {thread}")

    def mark(self) -> int:
        """The binlog's end; then something is logged, so that what begins later lies behind."""
        for _attempt in range(100):
            try:
                mark = self._end()
                self.server.execute("UPDATE truth.ticks SET n = n + 1")
                return mark
            except pymysql.MySQLError:  # the server restarts
                time.sleep(0.1)
        raise AssertionError("the server does not come back")

    def _end(self) -> int:
        name, offset = self.server.binlog_end()
        return pack_position(parse_file_name(name)[1], offset)

    def last_write(self, rng: random.Random) -> int:
        mark = self._end()
        with self.writers.open(rng, -1) as writer, writer.transaction():
            for table in self.tables.values():
                writer.put(table, table.random_key(rng))
        return mark

    def reached(self, mark: int, xids: Set[int]) -> bool:
        return max(xids, default=0) >= mark

    def truth(self, xids: Set[int] = frozenset()) -> list[Transaction]:
        return self._read(self.server, self._begin)

    def _read(self, server: MySqlFamilyServer, begin: tuple[str, int]) -> list[Transaction]:
        connect = {"host": "127.0.0.1", "port": server.port, "user": "root", "ssl_disabled": True}
        reader = BinlogTruth(
            connect,
            {table.name: table.key for table in self.tables.values()},
            AUDIT,
            padded=workload.PADDED,
            binary=workload.BINARY,
            json=[workload.JSON_COLUMN] if server.flavor == "mysql" else [],
            parts=workload.PARTS,
            columns=None if self.metadata == "FULL" else self._columns(),
        )
        return reader.read(*begin)

    def _columns(self) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for table, name, kind in self.server.execute(
            "SELECT CONCAT(table_schema, '.', table_name), column_name, column_type FROM "
            "information_schema.columns WHERE table_schema IN ('app', 'truth') "
            "ORDER BY table_schema, table_name, ordinal_position"
        ):
            found.setdefault(table, []).append((name, _word(kind)))
        return found

    def rows(self, table: Table) -> dict[Key, Row]:
        return workload.source_rows(self.server, table)

    def text(self, column: str, value: Any) -> str:
        return workload.text_of_output(column, value, json=self.server.flavor == "mysql")

    def sight(self, snapshot: str) -> BinlogSight:
        return BinlogSight.of(snapshot)

    def begun(self, chunk: ChunkMeta) -> int:
        return BinlogSight.of(chunk.snapshot).position

    def same(self, change: Change, record: Change) -> bool:
        return (
            change.op == record.op
            and change.table == record.table
            and (change.new, change.old) == (record.new, record.old)
            and (change.position, change.xid) == (record.position, record.xid)
            and change.commit_us == record.commit_us
        )

    def place(self, table: str, key: Sequence[str | None]) -> object:
        return self.tables[table].place(key)


def _word(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
