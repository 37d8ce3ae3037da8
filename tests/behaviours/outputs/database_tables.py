"""Databases of servers that all tests of a process share, and readers of their tables."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

from tests.behaviours.outputs.destinations import Context, Destination, Row
from tests.support.mysql import MariaDbServer, MySqlServer
from tests.support.postgres import PostgresServer

from tidelog.model.schema import TableName
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.database.dialect import DELETED, VERSION, Dialect
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.output import DatabaseOutput
from tidelog.outputs.database.postgres import Postgres
from tidelog.state.sqlite import SqliteState

_numbers = itertools.count(1)


@functools.cache
def server(kind: str) -> Any:
    """One for all tests of the process; it goes when the process does."""
    made: Any
    if kind == "postgres":
        made = PostgresServer(18)
    else:
        made = MySqlServer() if kind == "mysql" else MariaDbServer()
    made.start()
    return made


def dialect(kind: str) -> Dialect:
    """A database of its own: MySQL's own tables are in one, too."""
    name = f"test_{next(_numbers)}"
    url = server(kind).create_database(name)
    return Postgres(url) if kind == "postgres" else MySql(url)


def database_destination(
    context: Context, kind: str, deletes: str = "hard", place: Dialect | None = None
) -> Destination:
    place = place or dialect(kind)
    number = next(_numbers)
    # MySQL has no schemas in a database, so databases of a test are told apart by number.
    namespace, own = (None, "tidelog") if kind == "postgres" else (f"d{number}", f"own{number}")

    def open_(**delivery: Any) -> DatabaseOutput:
        return DatabaseOutput(
            context.spark,
            context.built.path,
            SqliteState(f"sqlite:///{context.path / 'state.db'}"),
            replace(Delivery(kind), **delivery),
            place,
            namespace=namespace,
            own=own,
            deletes=deletes,
            batch_rows=50_000,
        )

    def rows(table: str) -> list[Row]:
        found = TableName.parse(table)
        return live_rows(place, namespace or found.namespace, found.name)

    def drop(table: str) -> None:
        found = TableName.parse(table)
        session = place.connect("test")
        session.rows(f"DROP TABLE {place.quoted(namespace or found.namespace, found.name)}")
        session.close()

    return Destination(open_, rows, drop=drop)


def live_rows(place: Dialect, namespace: str, name: str, key: str = "id") -> list[Row]:
    """A table's rows without our columns, by key."""
    session = place.connect("test")
    try:
        found = place.find_table(session, namespace, name)
        if found is None:
            return []
        names = [column.name for column in found.columns]
        kept = [each for each in names if each not in (VERSION, DELETED)]
        listed = ", ".join(place.quoted(each) for each in kept)
        where = f"WHERE NOT {DELETED}" if DELETED in names else ""
        table = place.quoted(namespace, name)
        read = session.rows(f"SELECT {listed} FROM {table} {where} ORDER BY {place.quoted(key)}")
        return [dict(zip(kept, row, strict=True)) for row in read]
    finally:
        session.close()
