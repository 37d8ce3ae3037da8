"""What the suite has to know of a kind of source; the behaviours are the same for all.

Each test has two namespaces of its own: ``public``, whose tables are captured, and ``aside``, whose
tables are not. There ``ns()`` gives every write a greater number, and ``aside.series`` holds the
numbers ``i`` from 0 to 2000. So most of the suite's SQL is every server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from tests.behaviours.dumps import ledger
from tests.behaviours.dumps.ledger import Change, Key
from tests.integration.windows.live import LOCALLY
from tests.support.postgres import PostgresServer, drop_slot
from tests.support.postgres_parts import publication_sql

from tidelog.sources.postgres.catalogue.publication import Publications

N = "ns()"
"""SQL: greater with every call."""
SERIES_ROWS = 2000


def series(last: int, columns: str = "i, 1", *, first: int = 1, step: int = 1) -> str:
    """A SELECT of ``columns`` for the numbers ``i`` from ``first`` to ``last``."""
    stepped = "" if step == 1 else f" AND (i - {first}) % {step} = 0"
    return f"SELECT {columns} FROM aside.series WHERE i BETWEEN {first} AND {last}{stepped}"


def values(*texts: str, columns: str = "v, 1") -> str:
    """A SELECT of ``columns`` for the values ``v``, which are SQL."""
    return (
        f"SELECT {columns} FROM (" + " UNION ALL ".join(f"SELECT {v} AS v" for v in texts) + ") q"
    )


class Source(Protocol):
    """One server and a fresh place in it.

    Attributes:
        kind: as in the configuration.
        marks: the watermark strategy that changes least in the source.
        refused: errors of a statement that meets another session's lock or row.
        upsert: follows ``INSERT … VALUES …``; assignments follow it.
        large_text: a type for texts of 100 kB.
        mends: rows that are `broken`, together with an UPDATE that sets ``mended`` as well.
        reads: a condition that fails for them, where a plain read does not.
        sleeps: a function that takes so many seconds.
        begins: a transaction that may be prepared.
        prepares: it.
        commits: it, by any session.
    """

    kind: str
    marks: str
    refused: tuple[type[Exception], ...]
    upsert: str
    large_text: str
    mends: str
    mended: str
    reads: str | None
    sleeps: str
    begins: str
    prepares: tuple[str, ...]
    commits: str

    def connect(self, *, autocommit: bool = True) -> Any:
        """A session in ``public`` that is used as psycopg's connections are."""
        ...

    def lay_out(self, sql: Any) -> None:
        """Make ``aside``, ``ns()`` and what notes changes."""
        ...

    def drop(self) -> None: ...

    def section(self) -> str:
        """Lines of the configuration's section ``source`` that say where."""
        ...

    def publish(self, sql: Any, tables: Sequence[str], marks: str, signals: str | None) -> None:
        """What the owner does for the strategy that changes nothing in the source."""
        ...

    def is_captured(self, sql: Any, table: str) -> bool:
        """Is what is done to the table from now on in the log?"""
        ...

    def quoted(self, name: str) -> str: ...

    def broken(self, ids: Sequence[int]) -> tuple[list[str], str, str, list[str]]:
        """How table ``t`` gets rows that can't be read: what to do before, its columns, the third
        one's SQL, and what to do then.
        """
        ...

    def unique_key(self, table: str, columns: str) -> list[str]:
        """SQL that gives the table a unique key whose columns may be NULL."""
        ...

    def partitioned(self, table: str, lows: range) -> list[str]:
        """SQL that makes a table of ``id`` and ``n`` with a partition from each of ``lows`` on."""
        ...

    def moves_away(self, table: str) -> str:
        """SQL that moves a table to ``aside``."""
        ...

    def locks(self, table: str) -> str:
        """SQL that locks a table against everybody else, until the session ends."""
        ...

    def texts(
        self, sql: Any, table: str, order: Sequence[str] = ()
    ) -> tuple[list[str], Iterator[Sequence[str | None]]]:
        """The table's columns, and its rows as the event log's texts, in order of columns."""
        ...

    def note(self, sql: Any, table: str, key: tuple[str, ...]) -> None:
        """Note from now on what is done to the table."""
        ...

    def unnote(self, sql: Any, table: str) -> None: ...

    def noted(self, sql: Any, table: str) -> list[Change]:
        """What was done and is committed; ``xid`` is 0 where a session can't tell it."""
        ...

    def reader_waits(self, sql: Any) -> bool:
        """Does a reader of chunks wait for a lock?"""
        ...

    def end_readers(self, sql: Any) -> None:
        """End the connections of the readers of chunks, as in a network fault."""
        ...

    def lose_log(self, sql: Any, meanwhile: Sequence[str]) -> None:
        """What is done ``meanwhile``, while capture is down, is lost from the log."""
        ...


@dataclass
class PostgresSource:
    """A database of PostgreSQL."""

    server: PostgresServer
    database: str
    kind: str = "postgres"
    marks: str = "snapshot"
    refused: tuple[type[Exception], ...] = (
        psycopg.errors.IntegrityError,
        psycopg.errors.DeadlockDetected,
    )
    upsert: str = "ON CONFLICT (id) DO UPDATE SET"
    large_text: str = "text"
    mends: str = "INSERT INTO pg_enum SELECT 999999, 'aside.mood'::regtype, 2, 'bad'"
    mended: str = ", mood = 'good'"
    reads: str | None = None
    sleeps: str = "pg_sleep"
    begins: str = "BEGIN"

    def __post_init__(self) -> None:
        self.dsn = self.server.create_database(self.database)
        self.prepares = (f"PREPARE TRANSACTION '{self.database}'",)
        self.commits = f"COMMIT PREPARED '{self.database}'"

    def connect(self, *, autocommit: bool = True) -> Any:
        return psycopg.connect(self.dsn, autocommit=autocommit, options=LOCALLY)

    def lay_out(self, sql: Any) -> None:
        sql.execute(ledger.POSTGRES)
        sql.execute(
            f"CREATE VIEW aside.series AS SELECT i::int FROM generate_series(0, {SERIES_ROWS}) i"
        )

    def drop(self) -> None:
        self.server.drop_database(self.database)

    def section(self) -> str:
        return (
            f'kind: postgres\n  url: "{self.dsn}"\n  slot: {self.database}\n  publication: tidelog'
        )

    def publish(self, sql: Any, tables: Sequence[str], marks: str, signals: str | None) -> None:
        if marks != "snapshot":
            return
        publications = Publications(
            "tidelog", tables, strategy="snapshot", signal_table=signals, slot=self.database
        )
        for statement in publication_sql(publications, sql):
            sql.execute(statement)

    def is_captured(self, sql: Any, table: str) -> bool:
        found = sql.execute(
            "SELECT 1 FROM pg_publication_tables WHERE schemaname || '.' || tablename = %s",
            (table,),
        )
        return found.fetchone() is not None

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def broken(self, ids: Sequence[int]) -> tuple[list[str], str, str, list[str]]:
        # A label of an enum is torn out of the catalogue.
        return (
            ["CREATE TYPE aside.mood AS ENUM ('good', 'bad')"],
            "id int PRIMARY KEY, n bigint NOT NULL, mood aside.mood",
            "'good'",
            [
                f"UPDATE t SET mood = 'bad' WHERE id IN ({', '.join(map(str, ids))})",
                "DELETE FROM pg_enum WHERE enumlabel = 'bad' AND enumtypid = 'aside.mood'::regtype",
            ],
        )

    def unique_key(self, table: str, columns: str) -> list[str]:
        return [
            f"CREATE UNIQUE INDEX ON {table} ({columns}) NULLS NOT DISTINCT",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        ]

    def partitioned(self, table: str, lows: range) -> list[str]:
        return [
            f"CREATE TABLE {table} (id int PRIMARY KEY, n bigint NOT NULL) PARTITION BY RANGE (id)",
            *(
                f"CREATE TABLE {table}_{low} PARTITION OF {table} "
                f"FOR VALUES FROM ({low}) TO ({low + lows.step})"
                for low in lows
            ),
        ]

    def moves_away(self, table: str) -> str:
        return f"ALTER TABLE {table} SET SCHEMA aside"

    def locks(self, table: str) -> str:
        return f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"

    def texts(
        self, sql: Any, table: str, order: Sequence[str] = ()
    ) -> tuple[list[str], Iterator[Sequence[str | None]]]:
        columns = [
            row[0]
            for row in sql.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "AND NOT attisdropped",
                (table,),
            )
        ]
        listed = ", ".join(f'"{name}"::text' for name in columns)
        by = "ORDER BY " + ", ".join(f's."{name}"' for name in order) if order else ""
        return columns, iter(sql.execute(f"SELECT {listed} FROM {table} AS s {by}"))

    def note(self, sql: Any, table: str, key: tuple[str, ...]) -> None:
        sql.execute(ledger.install_postgres(table, key))

    def unnote(self, sql: Any, table: str) -> None:
        sql.execute(f"DROP TRIGGER noted ON {table}")

    def noted(self, sql: Any, table: str) -> list[Change]:
        rows = sql.execute(
            "SELECT xid, op, key, old_key FROM aside.ledger WHERE tab = %s ORDER BY seq", (table,)
        )
        return [
            Change(xid, op, tuple(key), None if old is None else tuple(old))
            for xid, op, key, old in rows
        ]

    def reader_waits(self, sql: Any) -> bool:
        row = sql.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidelog-chunks' "
            "AND datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        return bool(row[0])

    def end_readers(self, sql: Any) -> None:
        sql.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'tidelog-chunks' AND datname = current_database()"
        )

    def lose_log(self, sql: Any, meanwhile: Sequence[str]) -> None:
        drop_slot(sql, self.database)
        for statement in meanwhile:
            sql.execute(statement)


__all__ = ["Change", "Key", "N", "PostgresSource", "Source", "series", "values"]
