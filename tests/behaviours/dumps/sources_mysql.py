"""MySQL and MariaDB under the suite; see `tests.behaviours.dumps.sources.Source`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pymysql
from tests.behaviours.dumps import ledger
from tests.behaviours.dumps.ledger import Change
from tests.behaviours.dumps.sources import SERIES_ROWS
from tests.support.mysql import MySqlFamilyServer

from tidelog.model.schema import backticked

_BINARY = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_NAMESPACES = ("public", "aside", "tidelog")


class Session:
    """PyMySQL's connection, used as psycopg's are."""

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, statement: str | bytes, values: Sequence[Any] | None = None) -> Any:
        """Execute; the cursor, which can be iterated."""
        text = statement.decode() if isinstance(statement, bytes) else statement
        cursor = self.connection.cursor()
        cursor.execute(text, values or None)
        return cursor

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        if self.connection.open:
            self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A statement that fails undoes itself; a deadlock undoes the whole transaction."""
        yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()


class MySqlSource:
    """The databases ``public`` and ``aside`` of a server that one test at a time uses."""

    marks = "gtid"
    refused = (pymysql.err.IntegrityError, pymysql.err.OperationalError)
    upsert = "ON DUPLICATE KEY UPDATE"
    large_text = "mediumtext"
    mends = "SELECT 1"
    mended = ""
    reads: str | None = "w - 1 >= 0"
    sleeps = "sleep"
    begins = "XA START 'of two phases'"
    prepares = ("XA END 'of two phases'", "XA PREPARE 'of two phases'")
    commits = "XA COMMIT 'of two phases'"

    def __init__(self, server: MySqlFamilyServer) -> None:
        self.server = server
        self.kind = server.flavor
        self.drop()
        server.create_database("public")

    def connect(self, *, autocommit: bool = True) -> Session:
        wait = "SET SESSION innodb_lock_wait_timeout = 10"
        return Session(self.server.connect("public", autocommit=autocommit, init_command=wait))

    def lay_out(self, sql: Session) -> None:
        sql.execute("CREATE DATABASE aside")
        for statement in ledger.MYSQL:
            sql.execute(statement)
        sql.execute("CREATE TABLE aside.series (i int PRIMARY KEY)")
        numbers = ", ".join(f"({i})" for i in range(SERIES_ROWS + 1))
        sql.execute(f"INSERT INTO aside.series VALUES {numbers}")

    def drop(self) -> None:
        for name in _NAMESPACES:
            self.server.drop_database(name)

    def section(self) -> str:
        return f'kind: {self.kind}\n  url: "{self.server.dsn("public")}"'

    def publish(self, sql: Session, tables: Sequence[str], marks: str, signals: str | None) -> None:
        """Nothing: a binlog holds all tables."""

    def is_captured(self, sql: Session, table: str) -> bool:
        return True

    def quoted(self, name: str) -> str:
        return backticked(name)

    def broken(self, ids: Sequence[int]) -> tuple[list[str], str, str, list[str]]:
        return (
            [],
            "id int PRIMARY KEY, n bigint NOT NULL, w int unsigned NOT NULL",
            f"if(i IN ({', '.join(map(str, ids))}), 0, 1)",
            [],  # the condition is out of the unsigned numbers' range
        )

    def unique_key(self, table: str, columns: str) -> list[str]:
        return [f"CREATE UNIQUE INDEX surrogate ON {table} ({columns})"]

    def partitioned(self, table: str, lows: range) -> list[str]:
        parts = ", ".join(f"PARTITION p{low} VALUES LESS THAN ({low + lows.step})" for low in lows)
        return [
            f"CREATE TABLE {table} (id int PRIMARY KEY, n bigint NOT NULL) "
            f"PARTITION BY RANGE (id) ({parts})"
        ]

    def moves_away(self, table: str) -> str:
        return f"RENAME TABLE {table} TO aside.{table}"

    def locks(self, table: str) -> str:
        return f"LOCK TABLES {table} WRITE"

    def texts(
        self, sql: Session, table: str, order: Sequence[str] = ()
    ) -> tuple[list[str], Iterator[Sequence[str | None]]]:
        kinds = self._kinds(sql, table)
        listed = ", ".join(
            ledger.hex_cell(f"`{name}`", kind in _BINARY) for name, kind in kinds.items()
        )
        by = "ORDER BY " + ", ".join(f"s.`{name}`" for name in order) if order else ""
        rows = sql.execute(f"SELECT {listed} FROM {table} AS s {by}")
        return list(kinds), ([ledger.from_hex(cell) for cell in row] for row in rows)

    def note(self, sql: Session, table: str, key: tuple[str, ...]) -> None:
        binary = {name for name, kind in self._kinds(sql, table).items() if kind in _BINARY}
        for statement in ledger.install_mysql(table, key, binary):
            sql.execute(statement)

    def unnote(self, sql: Session, table: str) -> None:
        for statement in ledger.uninstall_mysql(table):
            sql.execute(statement)

    def noted(self, sql: Session, table: str) -> list[Change]:
        found = []
        for op, new, gone in sql.execute(
            "SELECT op, new_key, gone_key FROM aside.ledger WHERE tab = %s ORDER BY seq", (table,)
        ):
            key = ledger.key_from_hex(gone if new is None else new)
            old = None if new is None or gone in (None, new) else ledger.key_from_hex(gone)
            found.append(Change(0, op, key, old))
        return found

    def reader_waits(self, sql: Session) -> bool:
        return bool(self._readers(sql, "AND state LIKE 'Waiting for table metadata lock'"))

    def end_readers(self, sql: Session) -> None:
        for number in self._readers(sql, ""):
            try:
                sql.execute(f"KILL {number}")
            except pymysql.MySQLError:
                continue  # it has gone by itself

    def lose_log(self, sql: Session, meanwhile: Sequence[str]) -> None:
        for statement in meanwhile:
            sql.execute(statement)
        sql.execute("FLUSH BINARY LOGS")
        for _ in range(100):  # a connection that ended a moment ago may hold a file yet
            files = [row[0] for row in sql.execute("SHOW BINARY LOGS")]
            if len(files) == 1:
                return
            sql.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
            time.sleep(0.1)
        raise AssertionError("the log can't be purged")

    def _kinds(self, sql: Session, table: str) -> dict[str, str]:
        namespace, _, name = table.rpartition(".")
        return {
            row[0]: str(row[1]).lower()
            for row in sql.execute(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (namespace or "public", name.strip("`")),
            )
        }

    def _readers(self, sql: Session, condition: str) -> list[int]:
        """Connections that read a captured table."""
        return [
            row[0]
            for row in sql.execute(
                "SELECT id FROM information_schema.processlist WHERE db IS NULL "
                f"AND command <> 'Binlog Dump' {condition}"
            )
        ]
