"""Digests of ranges, and estimates of how many rows a table has, for MySQL and MariaDB.

`MySqlDigests` is a `tidelog.ports.DigestReader`: one SELECT computes the digest of a range.
Estimates, of all rows or of those that match a condition, are the engine's statistics.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import pymysql

from tidelog.codecs.columns import times
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ChunkBusyError
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.schema import Column, TableName, TableSchema, backticked
from tidelog.ports import ChunkRequest, Digest, NullRegistry, RowsEstimate
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.catalogue.storage import storage_of
from tidelog.sources.mysql.chunks.reader import (
    LOCK_TIMEOUT_MS,
    SQL_MODE,
    MySqlChunkReader,
    open_reading,
)
from tidelog.sources.mysql.chunks.sql import (
    KeyIndex,
    MySqlChunkSql,
    checked_condition,
    key_index,
    selected,
)
from tidelog.sources.mysql.chunks.watermarks import (
    BinlogSnapshot,
    binlog_end,
    check_commit_order,
    commit_watermark,
    current_position,
)
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import chunk_errors
from tidelog.sources.mysql.stream.positions import has_gtids
from tidelog.system.backoff import Backoff

OWNED_TIMEOUT_S: Final = 10.0
POLL_S: Final = Backoff(first=0.005, longest=0.1, factor=1.5)
_DAY_OF_1970: Final = 719_528  # as TO_DAYS counts
# Neither server can return a float's bits, and its text differs from Spark's. SQL returns a
# geometry's WKB without its SRID.
_WITHOUT_EXACT_TEXT: Final = {
    types.FLOAT: "floating-point numbers",
    types.DOUBLE: "floating-point numbers",
    types.GEOMETRY: "geometries",
    types.VECTOR: "vectors",
}


_DAY_US: Final = 86_400_000_000


def _in_calendar(name: str) -> str:
    year, month, day = (f"{part}({name})" for part in ("YEAR", "MONTH", "DAYOFMONTH"))
    leap = f"({year} % 4 = 0 AND ({year} % 100 <> 0 OR {year} % 400 = 0))"
    longest = f"ELT({month}, 31, 28 + {leap}, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)"
    return f"{month} > 0 AND {day} > 0 AND {day} <= {longest}"


def _real(name: str, text: str) -> str:
    """NULL for a date that no calendar has, as the decoder does."""
    return f"IF(YEAR({name}) > 0 AND {_in_calendar(name)}, {text}, NULL)"


def _days(name: str) -> str:
    return f"TO_DAYS({name}) - {_DAY_OF_1970}"


def _time(name: str) -> str:
    since = "TIMESTAMP'1970-01-01 00:00:00'"
    return _real(name, f"TIMESTAMPDIFF(MICROSECOND, {since}, {name})")


def _key_days(name: str) -> str:
    """The number of days for a key column, distinct for invalid dates: `codecs.columns.times`."""
    # The parts of a date have no sign in MySQL 9, and then no sum of them may be negative.
    year, month, day = (
        f"CAST({part}({name}) AS SIGNED)" for part in ("YEAR", "MONTH", "DAYOFMONTH")
    )
    first, of_a_year = times.FIRST_INVALID_DATE, times.INVALID_DATES_A_YEAR
    of_month = f"ELT({month}, 0, {day} + 15, 0, 47, 0, 48, 0, 0, 49, 0, 50, 0)"  # a text
    number = f"IF({month} = 0, {day}, IF({day} = 0, 31 + {month}, CAST({of_month} AS SIGNED)))"
    # These servers' year 0 has no February 29th: earlier days of it are a day too late.
    early = f"({year} = 0 AND {month} < 3)"
    real = f"TO_DAYS({name}) - {_DAY_OF_1970} - {early}"
    return f"IF({_in_calendar(name)}, {real}, {first} + {year} * {of_a_year} + {number})"


def _key_time(name: str) -> str:
    seconds = f"(HOUR({name}) * 60 + MINUTE({name})) * 60 + SECOND({name})"
    of_day = f"CAST(({seconds}) * 1000000 + MICROSECOND({name}) AS SIGNED)"
    return f"({_key_days(name)}) * {_DAY_US} + {of_day}"


def _number(name: str) -> str:
    return f"{name} + 0"  # without the zeros of ZEROFILL and YEAR


_BY_LOGICAL: Mapping[str, Callable[[str], str]] = {
    "bool": lambda name: f"CASE {name} + 0 WHEN 0 THEN 'false' WHEN 1 THEN 'true' END",
    "int16": _number,
    "int32": _number,
    "int64": _number,
    "date": lambda name: _real(name, _days(name)),
    "timestamp": _time,
    "timestamptz": _time,
    "bytes": lambda name: f"LOWER(HEX({name}))",
    "binary": lambda name: f"LOWER(HEX({name}))",
}


_BY_LOGICAL_IN_KEYS: Mapping[str, Callable[[str], str]] = {
    "date": _key_days,
    "timestamp": _key_time,
    "timestamptz": _key_time,
}


def column_text(column: Column, key: bool = False) -> str:
    """The column's text as SQL, never NULL; see `tidelog.ports.DigestReader`. ``key``: True for a
    column of the key.
    """
    name = backticked(column.name)
    if column.logical.startswith("decimal("):
        return f"COALESCE({_number(name)}, '~')"
    form = (_BY_LOGICAL_IN_KEYS if key else _BY_LOGICAL).get(
        column.logical, _BY_LOGICAL.get(column.logical)
    )
    if form is not None:
        return f"COALESCE({form(name)}, '~')"
    text = f"CONVERT({selected(column, key)} USING utf8mb4)"
    return f"COALESCE(CONCAT(LENGTH({text}), ':', {text}), '~')"


class MySqlDigests:
    """`tidelog.ports.DigestReader`.

    Args:
        url: the server.
        watermark_schema: database of the watermark table. It is written only on MySQL without
            GTIDs, where nothing else shows what a SELECT can see.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        statement_timeout_ms: time limit of a SELECT.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        *,
        watermark_schema: str = "tidelog",
        finder: MySqlSchemaFinder | None = None,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._url = url
        self._watermark_schema = watermark_schema
        wait = str(LOCK_TIMEOUT_MS // 1000)
        self._settings = {**SQL_MODE, "lock_wait_timeout": wait, "innodb_lock_wait_timeout": wait}
        self._statement_timeout_ms = statement_timeout_ms
        self._plans = MySqlChunkReader(
            url,
            NullRegistry(),
            strategy="gtid",
            finder=finder,
            statement_timeout_ms=statement_timeout_ms,
        )
        self._indexes: dict[str, KeyIndex] = {}
        self._connection: Connection | None = None

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None:
        for name in columns:
            column = schema.columns[schema.column_index(name)]
            if column.type_id in _WITHOUT_EXACT_TEXT:
                what = _WITHOUT_EXACT_TEXT[column.type_id]
                return f"column {name}: the server has no exact text of {what}"
        return None

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        return self._plans.boundaries(request, count)

    def digest(self, request: ChunkRequest, schema: TableSchema, columns: Sequence[str]) -> Digest:
        chosen = [schema.columns[schema.column_index(name)] for name in columns]
        keys = {*schema.key, *schema.match_key}
        text = ", ',', ".join(column_text(column, column.name in keys) for column in chosen)
        row_hash = f"CONV(LEFT(SHA2(CONCAT({text}, ','), 256), 15), 16, 10)"
        with chunk_errors(f"computing a digest of {request.table}"):
            connection = self._get_connection()
            try:
                sql = self._sql(connection, schema)
                total = f"SUM(CAST({row_hash} AS UNSIGNED))"
                listed = f"COUNT(*), CAST(COALESCE({total}, 0) AS CHAR)"
                row = connection.row(sql.digest(listed, request.after, request.upto))
            except pymysql.MySQLError:
                self._indexes.clear()  # one may have been dropped
                raise
        assert row is not None
        return Digest(int(row[0]), int(row[1]))

    def snapshot(self) -> BinlogSnapshot:
        with chunk_errors("taking a snapshot"):
            connection = self._get_connection()
            if connection.flavor is Flavor.MARIADB:
                return BinlogSnapshot(current_position(connection))
            check_commit_order(connection)
            end = binlog_end(connection)
            if has_gtids(connection):
                self._await_visible(connection)
            else:
                commit_watermark(connection, self._watermark_schema, f"{uuid.uuid4().hex}:verify")
            return BinlogSnapshot(end)

    def position(self) -> int:
        with chunk_errors("reading the log's end"):
            return binlog_end(self._get_connection())

    def close(self) -> None:
        self._plans.close()
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def _await_visible(self, connection: Connection) -> None:
        """Wait until all transactions in the binlog are visible. A transaction owns its GTID from
        before it is logged until after it is visible.
        """
        deadline = time.monotonic() + OWNED_TIMEOUT_S
        owned, polls = _owned_gtids(connection), 0
        while owned:
            if time.monotonic() > deadline:
                raise ChunkBusyError(
                    "a transaction is in the binlog and not visible yet: it waits for a replica"
                )
            polls += 1
            time.sleep(POLL_S.after(polls))
            owned &= _owned_gtids(connection)

    def _sql(self, connection: Connection, schema: TableSchema) -> MySqlChunkSql:
        key = schema.match_key
        if schema.fingerprint not in self._indexes:
            self._indexes[schema.fingerprint] = key_index(connection, schema.table, key)
        return MySqlChunkSql(schema, key, self._indexes[schema.fingerprint])

    def _get_connection(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = open_reading(
                self._url,
                purpose="digests",
                settings=self._settings,
                statement_timeout_ms=self._statement_timeout_ms,
            )
        return self._connection


def _owned_gtids(connection: Connection) -> set[str]:
    """The GTIDs in ``gtid_owned``, e.g. of ``uuid:1#7:2#9, uuid:3#8``."""
    found = set()
    for part in str(connection.value("SELECT @@GLOBAL.gtid_owned") or "").split(","):
        source, *numbers = part.strip().split(":")
        # A tag (8.3 and later) is in the place of a number, without an owner.
        found |= {f"{source}:{number}" for number in numbers if "#" in number}
    return found


# Estimates.

ESTIMATE_TIMEOUT_MS = 5_000


class MySqlEstimates:
    """Gets estimates from the engine and the planner. Used by one thread. Raises ChunkError with
    what to do.

    Args:
        url: the server.
        finder: finds schemas, of all columns by default; the same one for all of a source.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        finder: MySqlSchemaFinder | None = None,
    ) -> None:
        self._url = url
        self._finder = finder or MySqlSchemaFinder()
        self._connection: Connection | None = None

    def rows(self, table: TableName, where: str | None) -> RowsEstimate | None:
        """The estimated number of rows that a dump reads; None if there is no such table."""
        with chunk_errors(f"planning a dump of {table}"):
            connection = self._get_connection()
            storage = storage_of(connection, table)
            if storage is None or self._finder.find(connection, table) is None:
                return None
            # InnoDB samples a few pages: the estimate may be off by half.
            estimate = RowsEstimate(storage.estimated_rows, "the engine's statistics")
            if where is None:
                return estimate
            share = _selectivity(connection, backticked(table.namespace, table.name), where)
            basis = f"{estimate.basis}; the condition's share by EXPLAIN"
            return RowsEstimate(round(estimate.rows * share), basis)

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
                statement_timeout_ms=ESTIMATE_TIMEOUT_MS,
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
