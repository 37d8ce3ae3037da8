"""Tidelog's own tables in a PostgreSQL database: the watermark table and the signal table."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelog.model.schema import TableName
from tidelog.ports import Refusal
from tidelog.sources.postgres.catalogue.table_rights import watermarks_refused
from tidelog.sources.postgres.chunks.watermarks import WATERMARK_COLUMN
from tidelog.sources.postgres.connect import quote_ident
from tidelog.sources.postgres.watermark_table_checks import watermark_table_refusal

# The columns of Debezium's signal table.
SIGNAL_COLUMNS = ("id", "type", "data")

Connection = psycopg.Connection[tuple[Any, ...]]


def prepare_watermark_table(
    connection: Connection, table: TableName, strict: bool
) -> Refusal | None:
    """Create the watermark table if it is missing.

    Returns why watermarks can't be written to it (then no table is dumped, and log capture
    continues); None if they can. With ``strict``, raises psycopg's error if the table can't be
    created.
    """
    try:
        refusal = watermark_table_refusal(connection, table)
        if refusal is None:
            if not _exists(connection, table):
                _create_missing_table(connection, table)
            refusal = watermark_table_refusal(connection, table)
    except psycopg.errors.InsufficientPrivilege as error:
        if strict:
            raise
        reason = f"{error.diag.message_primary}: no watermark can be written"
        return Refusal(reason, all_dumps=True)
    return refusal or watermarks_refused(connection, table)


def _exists(connection: Connection, table: TableName) -> bool:
    """Return True if the table exists; needs no right to its schema."""
    row = connection.execute(
        b"SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        b"ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (table.namespace, table.name),
    ).fetchone()
    return row is not None


def _create_missing_table(connection: Connection, table: TableName) -> None:
    """Create the table, and its schema if it is missing."""
    has_schema = connection.execute(
        b"SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (table.namespace,)
    ).fetchone()
    if has_schema is None:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_ident(table.namespace)}".encode())
    connection.execute(create_watermark_table(table).encode())


def create_watermark_table(table: TableName) -> str:
    """The SQL that creates the table in an existing schema."""
    # Free space on the page keeps each new watermark a HOT update.
    return (
        f"CREATE TABLE IF NOT EXISTS {quote_ident(table.namespace, table.name)} "
        f"(id int PRIMARY KEY CHECK (id = 1), {WATERMARK_COLUMN} text NOT NULL) "
        "WITH (fillfactor = 10);"
    )


def signal_columns(connection: Connection, table: TableName) -> set[str]:
    """The table's columns; none if it does not exist."""
    rows = connection.execute(
        b"SELECT a.attname FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        b"JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "
        b"WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
        b"AND c.relpersistence = 'p' AND a.attnum > 0 AND NOT a.attisdropped",
        (table.namespace, table.name),
    ).fetchall()
    return {row[0] for row in rows}


def create_signal_table(table: TableName) -> str:
    """The SQL that creates the table, as in Debezium's manual."""
    return (
        f"CREATE TABLE {quote_ident(table.namespace, table.name)} "
        "(id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));"
    )
