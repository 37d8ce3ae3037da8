"""Estimates before a dump, from the engine's statistics, how many rows a table has or match a
condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pymysql

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.model.schema import TableName
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.catalogue.storage import storage_of
from tidelog.sources.mysql.chunks.conditions import checked_condition
from tidelog.sources.mysql.chunks.errors import chunk_errors
from tidelog.sources.mysql.chunks.reader import SQL_MODE, open_reading
from tidelog.sources.mysql.connect import Connection, quote_name

STATEMENT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class MySqlRowsEstimate:
    """The estimated ``rows`` of a table; ``basis`` names the source of the estimate."""

    rows: int
    basis: str


class MySqlEstimates:
    """Gets estimates from the engine and the planner. Used by one thread. Raises ChunkError with
    what to do.

    Args:
        url: the server.
        keys: surrogate keys by table pattern, see `MySqlSchemaFinder`.
        exclude_columns: see `MySqlSchemaFinder`.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        keys: Mapping[str, Sequence[str]] | None = None,
        exclude_columns: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._finder = MySqlSchemaFinder(keys, exclude_columns)
        self._connection: Connection | None = None

    def rows(self, table: TableName, where: str | None) -> MySqlRowsEstimate | None:
        """The estimated number of rows that a dump reads; None if there is no such table."""
        with chunk_errors(f"planning a dump of {table}"):
            connection = self._get_connection()
            storage = storage_of(connection, table)
            if storage is None or self._finder.find(connection, table) is None:
                return None
            # InnoDB samples a few pages: the estimate may be off by half.
            estimate = MySqlRowsEstimate(storage.estimated_rows, "the engine's statistics")
            if where is None:
                return estimate
            share = _selectivity(connection, quote_name(table.namespace, table.name), where)
            basis = f"{estimate.basis}; the condition's share by EXPLAIN"
            return MySqlRowsEstimate(round(estimate.rows * share), basis)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def _get_connection(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = open_reading(
                self._url,
                purpose="plan",
                settings={**SQL_MODE, "lock_wait_timeout": "2"},
                statement_timeout_ms=STATEMENT_TIMEOUT_MS,
            )
            with suppress(pymysql.MySQLError):  # MySQL 8.0 and later: no estimates of a day ago
                self._connection.rows("SET SESSION information_schema_stats_expiry = 0")
        return self._connection


def _selectivity(connection: Connection, source: str, where: str) -> float:
    """The share of the table's rows that match the condition, by the planner's estimate."""
    every = _planned_rows(connection, f"SELECT 1 FROM {source}")  # noqa: S608 - quoted
    some = _planned_rows(connection, f"SELECT 1 FROM {source} WHERE ({checked_condition(where)})")  # noqa: S608
    return min(1.0, some / every) if every else 1.0


def _planned_rows(connection: Connection, query: str) -> float:
    """The number of rows that the plan's first table returns after its condition."""
    # MariaDB shows the filtered share only with EXTENDED; MySQL 9 has another default format.
    how = "EXTENDED" if connection.flavor is Flavor.MARIADB else "FORMAT=TRADITIONAL"
    row = connection.named(f"EXPLAIN {how} {query}")[0]
    filtered = row.get("filtered")
    return float(row["rows"] or 0) * (100.0 if filtered is None else float(filtered)) / 100
