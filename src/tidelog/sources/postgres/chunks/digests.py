"""Digests of ranges, and estimates of how many rows a table has, for PostgreSQL.

`PostgresDigests` is a `tidelog.ports.DigestReader`: one SELECT computes the digest of a range.
Estimates, of all rows or of those that match a condition, come from statistics and a few pages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from tidelog.errors import ChunkError
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.schema import Column, TableName, TableSchema, double_quoted
from tidelog.ports import ChunkRequest, Digest, NullRegistry, RowsEstimate
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.catalogue.schemas import PostgresFoundTable, PostgresSchemaFinder
from tidelog.sources.postgres.chunks.reader import (
    LOCK_TIMEOUT_MS,
    PostgresChunkReader,
    chunk_errors,
)
from tidelog.sources.postgres.chunks.sql import PostgresChunkSql, operator_schemas, table_reference
from tidelog.sources.postgres.chunks.watermarks import (
    TAKE_SNAPSHOT,
    PgSnapshot,
    WalLayout,
    emission_point,
    read_snapshot,
)
from tidelog.sources.postgres.connect import Connection, connect
from tidelog.sources.postgres.encodings import encoded

_TEXT, _VARCHAR = 25, 1043
# The send functions return the same bytes for the same value, in every version of the server.
_TO_1970: Final = 946_684_800_000_000  # microseconds from 1970 to 2000
# The days of infinity and -infinity in `tidelog.codecs.columns.times`.
_LAST_DAY, _FIRST_DAY = 2_932_896, -719_160
_DAY_US: Final = 86_400_000_000


def _float(name: str, bits: int, integer: str, nan: int) -> str:
    sent = f"('x' || encode(float{bits // 8}send({name}), 'hex'))::bit({bits})::{integer}::text"
    return f"CASE WHEN {name} = 'NaN' THEN '{nan}' ELSE {sent} END"


def _timestamp(name: str, kind: str) -> str:
    sent = f"('x' || encode({kind}_send({name}), 'hex'))::bit(64)::bigint"
    last, first = _LAST_DAY * _DAY_US, _FIRST_DAY * _DAY_US
    return (
        f"CASE WHEN {name} >= '294247-01-10 00:00:00' THEN '{last}' "
        f"WHEN {name} = '-infinity' THEN '{first}' ELSE ({sent} + {_TO_1970})::text END"
    )


def _date(name: str) -> str:
    return (
        f"CASE {name} WHEN 'infinity' THEN '{_LAST_DAY}' WHEN '-infinity' THEN '{_FIRST_DAY}' "
        f"ELSE ({name} - date '1970-01-01')::text END"
    )


def _as_text(name: str) -> str:
    return f"{name}::text"


_BY_LOGICAL: Mapping[str, Callable[[str], str]] = {
    "bool": _as_text,
    "int16": _as_text,
    "int32": _as_text,
    "int64": _as_text,
    "float32": lambda name: _float(name, 32, "int", 0x7FC00000),
    "float64": lambda name: _float(name, 64, "bigint", 0x7FF8 << 48),
    "date": _date,
    "timestamp": lambda name: _timestamp(name, "timestamp"),
    "timestamptz": lambda name: _timestamp(name, "timestamptz"),
    "binary": lambda name: f"encode({name}, 'hex')",
}


# A standby's replay position, and whether it has received more; no row on a primary.
_REPLAYED: Final = """
SELECT pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_wal_receive_lsn()
  IS DISTINCT FROM pg_catalog.pg_last_wal_replay_lsn() WHERE pg_catalog.pg_is_in_recovery()
"""
_RECORD_S, _POLL_S = 1.0, 0.01


def _await_replayed(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Wait until a standby has finished the record that it is replaying: a commit may be visible a
    moment before the position includes it. The wait is short, as a standby may be paused.
    """
    deadline = time.monotonic() + _RECORD_S
    first = found = connection.execute(_REPLAYED).fetchone()
    while found is not None and first is not None and found[1] and found[0] == first[0]:
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)
        found = connection.execute(_REPLAYED).fetchone()


def column_text(column: Column) -> str:
    """The column's text as SQL, never NULL; see `tidelog.ports.DigestReader`."""
    name = double_quoted(column.name)
    if column.logical.startswith("array("):
        element = _value_text("e", column.logical[len("array(") : -1])
        # What is no array of one dimension from 1 on is in no copy: its bounds make it unequal.
        return (
            f"CASE WHEN {name} IS NULL THEN '~' ELSE '[' || (SELECT "  # noqa: S608 - quoted
            f"coalesce(string_agg({element}, ',' ORDER BY n), '') FROM unnest({name}) "
            f"WITH ORDINALITY AS u(e, n)) || ']' || coalesce(nullif(array_dims({name}), "
            f"'[1:' || cardinality({name}) || ']'), '') END"
        )
    if column.type_id in (_TEXT, _VARCHAR):
        return f"coalesce(octet_length({name}) || ':' || {name}, '~')"
    return _value_text(name, column.logical)


def _value_text(name: str, logical: str) -> str:
    """The text of a value of a logical type, as SQL, never NULL. ``name``: an expression."""
    if logical.startswith("decimal("):
        return f"coalesce(nullif({name}::text, 'NaN'), '~')"
    if logical.startswith("numeric("):
        return f"coalesce(trim_scale({name})::text, '~')"
    form = _BY_LOGICAL.get(logical)
    if form is not None:
        return f"coalesce({form(name)}, '~')"
    # concat writes any type by its output function, as COPY and the log do; a cast may not. A row
    # of NULLs IS NULL, but its text is not NULL.
    text = f"concat({name})"
    return (
        f"CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN '~' "
        f"ELSE octet_length({text}) || ':' || {text} END"
    )


class PostgresDigests:
    """`tidelog.ports.DigestReader`. Writes nothing, and holds no lock after a statement.

    Args:
        dsn: connection string.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        statement_timeout_ms: time limit of a SELECT.
    """

    def __init__(
        self,
        dsn: str,
        *,
        finder: PostgresSchemaFinder | None = None,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._dsn = dsn
        self._finder = finder or PostgresSchemaFinder()
        self._settings = {
            "lock_timeout": str(LOCK_TIMEOUT_MS),
            "statement_timeout": str(statement_timeout_ms),
            "jit": "off",
        }
        self._plans = PostgresChunkReader(
            dsn,
            NullRegistry(),
            strategy="snapshot",
            finder=finder,
            statement_timeout_ms=statement_timeout_ms,
        )
        self._sql: dict[str, PostgresChunkSql] = {}
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        del schema, columns  # every type has a text
        with chunk_errors("reading the encoding"):
            encoding = self._get_connection().info.parameter_status("server_encoding")
        return None if encoding == "UTF8" else f"the database's encoding is {encoding}"

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        return self._plans.boundaries(request, count)

    def digest(self, request: ChunkRequest, schema: TableSchema, columns: Sequence[str]) -> Digest:
        chosen = [schema.columns[schema.column_index(name)] for name in columns]
        text = " || ',' || ".join(map(column_text, chosen)) + " || ','"
        with chunk_errors(f"computing a digest of {request.table}"):
            connection = self._get_connection()
            sql = self._sql_of(connection, request.table, schema)
            row_hash = f"substr(encode(sha256(convert_to({text}, 'UTF8')), 'hex'), 1, 15)"
            query = (
                "SELECT count(*), coalesce(sum(('x' || h)::bit(60)::bigint), 0)::text FROM ("  # noqa: S608 - quoted
                f"{sql.digests(row_hash, request.after, request.upto)}) AS s"
            )
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return Digest(row[0], int(row[1]))

    def snapshot(self) -> PgSnapshot:
        with chunk_errors("taking a snapshot"):
            return read_snapshot(self._get_connection().execute(TAKE_SNAPSHOT.encode()))

    def position(self) -> int:
        with chunk_errors("reading the log's end"):
            connection = self._get_connection()
            _await_replayed(connection)
            return emission_point(connection, WalLayout.of(connection))

    def close(self) -> None:
        self._plans.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sql_of(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        table: TableName,
        schema: TableSchema,
    ) -> PostgresChunkSql:
        if schema.fingerprint not in self._sql:
            found = self._finder.find(connection, table)
            if found is None:
                raise ChunkError(
                    f"computing a digest of {table}: there is no such table (any more)"
                )
            key = schema.match_key
            operators = operator_schemas(connection, schema, key)
            self._sql[schema.fingerprint] = PostgresChunkSql(
                schema, key, operators, found.partitioned
            )
        return self._sql[schema.fingerprint]

    def _get_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._dsn, purpose="digests", settings=self._settings)
        return self._connection


# Estimates.


SAMPLED_PAGES = 200  # read from a table that was never analysed: about 1.6 MB
SAMPLED_LEAVES = 10  # partitions read of such a table; the others count as equally dense
ESTIMATE_SETTINGS = {
    "default_transaction_read_only": "on",
    "lock_timeout": "2000",
    "statement_timeout": "5000",
}

# The leaves of a table, or the table itself if it has no partitions, with the results of the last
# ANALYZE or VACUUM, the current number of pages, and whether the role may read it by its own name.
_LEAVES = """
WITH RECURSIVE tree AS (
  SELECT %s::oid AS oid
  UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class p ON p.oid = tree.oid AND p.relkind = 'p'
)
SELECT n.nspname, c.relname, c.reltuples::float8, c.relpages::int8,
  pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int8,
  has_table_privilege(c.oid, 'SELECT')
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'
ORDER BY 5 DESC
"""


class PostgresEstimates:
    """Gets estimates from the catalogue and the planner, or from a few pages without statistics.
    Used by one thread. Its session is read-only. Raises ChunkError with what to do.
    """

    def __init__(self, dsn: str, finder: PostgresSchemaFinder) -> None:
        self._dsn = dsn
        self._finder = finder
        self._connection: Connection | None = None

    def rows(self, table: TableName, where: str | None) -> RowsEstimate | None:
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
            return RowsEstimate(round(estimate.rows * share), basis)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get_connection(self) -> Connection:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._dsn, purpose="plan", settings=ESTIMATE_SETTINGS)
        return self._connection


def _size(connection: Connection, found: PostgresFoundTable) -> RowsEstimate:
    """Estimate like the server's planner: the last known density times the current
    number of pages.
    """
    leaves = connection.execute(_LEAVES.encode(), (found.schema.relation_id,)).fetchall()
    known = [leaf for leaf in leaves if leaf[2] >= 0 and leaf[3] > 0]
    rows = sum(tuples / pages * now for _, _, tuples, pages, now, _ in known)
    unknown = [leaf for leaf in leaves if leaf not in known and leaf[4] > 0]
    if not unknown:
        return RowsEstimate(round(rows), "statistics")
    readable = [leaf for leaf in unknown if leaf[5]][:SAMPLED_LEAVES]
    if not readable:  # rights to a partitioned table are none to its partitions
        table = found.schema.table
        pages = sum(leaf[4] for leaf in leaves)
        readable = [(table.namespace, table.name, None, None, pages, True)]
    read_rows, read_pages = _sampled(connection, readable, only=readable[0] in leaves)
    density = read_rows / read_pages
    rows += density * sum(leaf[4] for leaf in unknown)
    return RowsEstimate(round(rows), f"never analysed: from {round(read_pages):,} pages")


def _sampled(
    connection: Connection, leaves: Sequence[tuple[Any, ...]], *, only: bool
) -> tuple[int, float]:
    """The rows found in a sample of the leaves, or of a whole partitioned table if not ``only``,
    and the average number of pages of the sample.
    """
    rows, read = 0, 0.0
    each = SAMPLED_PAGES / len(leaves)
    for namespace, name, _, _, pages, _ in leaves:
        share = min(1.0, each / pages)
        row = connection.execute(
            f"SELECT count(*) FROM {'ONLY ' * only}{double_quoted(namespace, name)} "  # noqa: S608
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
