"""Estimates before a dump, from statistics and a few pages, how many rows a table has or match a
condition.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from tidelog.model.schema import TableName
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.catalogue.schemas import PostgresFoundTable, PostgresSchemaFinder
from tidelog.sources.postgres.chunks.reader import chunk_errors
from tidelog.sources.postgres.chunks.sql import table_reference
from tidelog.sources.postgres.connect import connect, quote_ident
from tidelog.sources.postgres.encodings import encoded

Connection = psycopg.Connection[tuple[Any, ...]]

SAMPLED_PAGES = 200  # read from a table that was never analysed: about 1.6 MB
SAMPLED_LEAVES = 10  # partitions read of such a table; the others count as equally dense
SETTINGS = {
    "default_transaction_read_only": "on",
    "lock_timeout": "2000",
    "statement_timeout": "5000",
}

# The leaves of a table, or the table itself if it has no partitions, with the results of the last
# ANALYZE or VACUUM and the current number of pages.
_LEAVES = """
WITH RECURSIVE tree AS (
  SELECT %s::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT n.nspname, c.relname, c.reltuples::float8, c.relpages::int8,
  pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int8
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'
ORDER BY 5 DESC
"""


@dataclass(frozen=True, slots=True)
class PostgresRowsEstimate:
    """The estimated ``rows`` of a table; ``basis`` names the source: statistics, or a number of
    pages.
    """

    rows: int
    basis: str


class PostgresEstimates:
    """Gets estimates from the catalogue and the planner, or from a few pages without statistics.

    Used by one thread. Its session is read-only. Raises ChunkError with what to do.
    """

    def __init__(self, dsn: str, finder: PostgresSchemaFinder) -> None:
        self._dsn = dsn
        self._finder = finder
        self._connection: Connection | None = None

    def rows(self, table: TableName, where: str | None) -> PostgresRowsEstimate | None:
        """The estimated number of rows that a dump reads; None if there is no such table."""
        with chunk_errors(f"planning a dump of {table}"):
            connection = self._get_connection()
            found = self._finder.find(connection, table)
            if found is None:
                return None
            estimate = _size(connection, found)
            if where is None:
                return estimate
            share = _selectivity(
                connection, table_reference(found.schema, found.partitioned), where
            )
            basis = f"{estimate.basis}; the condition's share by EXPLAIN"
            return PostgresRowsEstimate(round(estimate.rows * share), basis)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get_connection(self) -> Connection:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._dsn, purpose="plan", settings=SETTINGS)
        return self._connection


def _size(connection: Connection, found: PostgresFoundTable) -> PostgresRowsEstimate:
    """Estimate like the server's planner: the last known density times the current
    number of pages.
    """
    leaves = connection.execute(_LEAVES.encode(), (found.schema.relation_id,)).fetchall()
    known = [leaf for leaf in leaves if leaf[2] >= 0 and leaf[3] > 0]
    rows = sum(tuples / pages * now for _, _, tuples, pages, now in known)
    unknown = [leaf for leaf in leaves if leaf not in known and leaf[4] > 0]
    if not unknown:
        return PostgresRowsEstimate(round(rows), "statistics")
    read_rows, read_pages = _sampled(connection, unknown[:SAMPLED_LEAVES])
    density = read_rows / read_pages
    rows += density * sum(leaf[4] for leaf in unknown)
    return PostgresRowsEstimate(round(rows), f"never analysed: from {round(read_pages):,} pages")


def _sampled(connection: Connection, leaves: Sequence[tuple[Any, ...]]) -> tuple[int, float]:
    """The rows found in a sample of the leaves, and the average number of pages of the sample."""
    rows, read = 0, 0.0
    each = SAMPLED_PAGES / len(leaves)
    for namespace, name, _, _, pages in leaves:
        share = min(1.0, each / pages)
        row = connection.execute(
            f"SELECT count(*) FROM ONLY {quote_ident(namespace, name)} "  # noqa: S608 - quoted
            f"TABLESAMPLE SYSTEM ({100 * share:.6f})".encode()
        ).fetchone()
        assert row is not None
        rows += row[0]
        read += share * pages
    return rows, read


def _selectivity(connection: Connection, source: str, where: str) -> float:
    """The share of the table's rows that match the condition, by the planner's estimate."""
    every = _planned_rows(connection, f"SELECT FROM {source}")
    some = _planned_rows(connection, f"SELECT FROM {source} WHERE ({where}\n)")
    return min(1.0, some / every) if every else 1.0


def _planned_rows(connection: Connection, query: str) -> float:
    # The extended protocol refuses a second statement that a condition might smuggle in.
    pgconn = connection.pgconn
    query = f"EXPLAIN (FORMAT JSON) {query}"
    result = async_results.run_query(
        pgconn, encoded(pgconn, query), timeout_s=async_results.silence_s(connection)
    )
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    plan = json.loads(result.get_value(0, 0) or b"[]")
    return float(plan[0]["Plan"]["Plan Rows"])
