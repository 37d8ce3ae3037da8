"""Lists and describes a MySQL or MariaDB server's tables, without locks that writers wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql.binlog.items import unpack_position
from tidelog.codecs.mysql.cell_text.charset_texts import needs_exact_text
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import UnsupportedTableError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.ports import Retention, SourceLoad, StateStore, TableShape, UnsupportedReason
from tidelog.sources.mysql.catalogue.cascades import Cascade, cascades
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.catalogue.storage import (
    columns_of,
    estimated_rows,
    excluding,
    names_of,
    rows_may_differ,
    storage_of,
    versions_of,
)
from tidelog.sources.mysql.chunks.sql import checked_condition
from tidelog.sources.mysql.chunks.watermarks import binlog_end
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import chunk_errors, number_of, translate_errors
from tidelog.sources.mysql.preflight.account import Grants
from tidelog.sources.mysql.stream.positions import log_end, log_files
from tidelog.sources.mysql.stream.schema_history import SchemaHistory
from tidelog.sources.ranges import only_condition_errors

SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")

_REPLICA_STATUS_SINCE = (8, 0, 22)  # SHOW SLAVE STATUS went with 8.4; MariaDB keeps it
EXPIRY_EVERY_S = 60.0
_RENAMED_S, _LISTINGS = 0.05, 20
"""Seconds to wait before tables are listed again, and how often, for a table that is renamed."""
EXACT_KEYS = "exact"
_BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")


class MySqlCatalogue:
    """`tidelog.ports.Catalogue`. Thread-safe: one connection, one call at a time.

    Args:
        url: the server.
        own_schemas: databases that are never listed, e.g. that of the watermark table.
        metadata_tables: other tables that are never listed, as ``database.name``: the signal table.
        finder: finds schemas, of all columns by default; the same one for all of a source.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        *,
        own_schemas: Sequence[str] = ("tidelog",),
        metadata_tables: Sequence[str] = (),
        finder: MySqlSchemaFinder | None = None,
    ) -> None:
        self._url = url
        self._metadata_tables = {TableName.parse(name) for name in metadata_tables}
        self._hidden = {*SYSTEM_SCHEMAS, *own_schemas}
        self._finder = finder or MySqlSchemaFinder()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._folds_case = False
        self._last_listed: set[TableName] | None = None  # the tables of the last listing
        self._expiry: float | None = None
        self._expiry_due = 0.0

    def tables(self, patterns: Sequence[str]) -> list[TableName]:
        """The base tables that match, sorted. Patterns ignore case where the server's table names
        do (``lower_case_table_names`` 1 or 2).
        """
        with self._lock, translate_errors("listing tables"):
            return self._matching(patterns, list(self._read_all(names_of)))

    def shape(self, table: TableName) -> TableShape | None:
        """The table's current shape; ``storage`` is for `rows_may_differ`."""
        with self._lock, translate_errors(f"looking up {table}"):
            connection = self._get_connection()
            storage = storage_of(connection, table)
            for _ in range(3):
                # Schema and storage must be of one moment, and no lock ensures that.
                before, found = storage, self._finder.find(connection, table)
                storage = storage_of(connection, table)
                if before == storage:
                    break
            if found is None or storage is None:
                return None
            if found.unfit is not None:
                raise UnsupportedTableError(table, found.unfit, only_dumps=True)
            excluded = [each.column.name for each in found.schema.excluded]
            return TableShape(
                schema=found.schema,
                storage=excluding(storage.text, excluded),
                estimated_rows=storage.estimated_rows,
                estimated_bytes=storage.estimated_bytes,
                key_spelling=_key_spelling(found.schema),
            )

    def shapes(
        self, tables: Sequence[TableName]
    ) -> dict[TableName, TableShape | UnsupportedReason]:
        """See `tidelog.ports.Catalogue`."""
        found: dict[TableName, TableShape | UnsupportedReason] = {}
        for table in tables:
            try:
                shape = self.shape(table)
            except UnsupportedTableError as error:
                why = UnsupportedReason(error.reason, error.remedy, only_dumps=error.only_dumps)
                found[table] = why
            else:
                if shape is not None:
                    found[table] = shape
        return found

    def columns(self, tables: Sequence[TableName]) -> dict[TableName, tuple[str, ...]]:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("listing columns"):
            return columns_of(self._get_connection(), tables)

    def names(self, relation_ids: Sequence[int]) -> dict[int, TableName]:
        """Nothing: tables have no numbers here, and the log shows what is renamed."""
        return {}

    def partitioned(self, table: TableName) -> TableName | None:
        """None: partitions are no tables here."""

    def unseen(
        self, tables: Sequence[TableName], patterns: Sequence[str], state: StateStore
    ) -> dict[TableName, str]:
        """See `tidelog.ports.Catalogue`. A query for each table that SHOW GRANTS does not name."""
        if not tables:
            return {}
        history = SchemaHistory(state)  # the server denies before it says that a table is gone
        left = [table for table in tables if not history.is_gone(table)]
        with self._lock, translate_errors("reading the account's rights"):
            connection = self._get_connection()
            grants = Grants.of(connection)
            return {
                table: grants.statement(["SELECT"], *_grant_place(table, patterns))
                for table in self._matching(patterns, left)
                if grants.missing(["SELECT"], table.namespace, table.name)
                and _is_denied(connection, table)
            }

    def estimated_rows(self, tables: Sequence[TableName]) -> dict[TableName, int]:
        """See `tidelog.ports.Catalogue`. A query for each database."""
        with self._lock, translate_errors("looking up estimates"):
            return estimated_rows(self._get_connection(), tables)

    def check_condition(self, table: TableName, condition: str) -> None:
        """See `tidelog.ports.Catalogue`."""
        name = backticked(table.namespace, table.name)
        with self._lock, only_condition_errors(), chunk_errors(str(table)):
            # The server looks up names and types before LIMIT 0 ends the query; it reads no row.
            where = checked_condition(condition)
            self._get_connection().rows(f"SELECT 1 FROM {name} WHERE ({where}) LIMIT 0")  # noqa: S608

    def stamp(self) -> str | None:
        """None: there is no cheaper query than `versions`."""
        return None

    def versions(self, patterns: Sequence[str]) -> dict[TableName, str]:
        """See `tidelog.ports.Catalogue`."""
        with self._lock, translate_errors("reading information_schema"):
            found = self._read_all(versions_of)
            settings = self._finder.settings_version
            listed = self._matching(patterns, list(found))
            return {table: f"{found[table]}{settings}" for table in listed}

    def rows_may_differ(self, before: str, after: str) -> bool:
        """Return True if rows may differ between two of a table's storages without row events."""
        return rows_may_differ(before, after)

    def cascades(self, tables: Sequence[TableName]) -> list[Cascade]:
        """The foreign keys that change rows of these tables without a trace in the log."""
        with self._lock, translate_errors("listing foreign keys"):
            return cascades(self._get_connection(), set(tables))

    def position(self) -> int:
        """The end of the source's log: all transactions that are committed by now are before it."""
        with self._lock, translate_errors("reading the binlog's end"):
            return binlog_end(self._get_connection())

    def load(self, reached: int) -> SourceLoad:
        """See `tidelog.ports.Catalogue`. A replica reports its own lag; a primary does not know the
        lag of its replicas.
        """
        with self._lock, translate_errors("reading the server's load"):
            connection = self._get_connection()
            log = log_end(connection)
            end = log.position
            lag = end - reached
            if unpack_position(end)[0] != unpack_position(reached)[0]:
                lag = log_files(connection).bytes_between(reached, end)
            return SourceLoad(
                max(0, lag),
                end,
                log.describe(reached),
                Retention(kept_s=self._kept_s(connection)),
                _seconds_behind(connection),
                _commits(connection),
            )

    def _kept_s(self, connection: Connection) -> float | None:
        """`_expiry`, cached for `EXPIRY_EVERY_S`: its query reads all of the server's variables."""
        now = time.monotonic()
        if now >= self._expiry_due:
            self._expiry = _expiry(connection)
            self._expiry_due = now + EXPIRY_EVERY_S
        return self._expiry

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.abandon()
                self._connection = None

    def _read_all(self, read: Callable[[Connection], dict[TableName, str]]) -> dict[TableName, str]:
        """The result of ``read`` for all tables.

        While ALTER TABLE renames its tables, MariaDB does not list the table, as if it were
        dropped. So a table of the last listing is queried by its name, for which MariaDB waits for
        the renames.
        """
        connection = self._get_connection()
        found = read(connection)
        if connection.flavor is not Flavor.MARIADB:
            return found
        if self._last_listed is None:
            self._last_listed = set(found)
            time.sleep(_RENAMED_S)
            found = read(connection)
        for _ in range(_LISTINGS):
            missing = self._last_listed - found.keys()
            if not any(storage_of(connection, table) for table in missing):
                break
            time.sleep(_RENAMED_S)
            found = read(connection)
        self._last_listed = set(found)
        return found

    def _matching(self, patterns: Sequence[str], tables: Sequence[TableName]) -> list[TableName]:
        """The tables that match and are not hidden, sorted."""
        fold = str.lower if self._folds_case else str
        hidden = {fold(name) for name in self._hidden}
        own = {TableName(fold(t.namespace), fold(t.name)) for t in self._metadata_tables}
        wanted = [fold(pattern) for pattern in patterns]
        found = []
        for table in tables:
            folded = TableName(fold(table.namespace), fold(table.name))
            if folded.namespace in hidden or folded in own:
                continue
            if matches(wanted, folded):
                found.append(table)
        return sorted(found)

    def _get_connection(self) -> Connection:
        if self._connection is None or not self._connection.open:
            connection = connect(self._url, purpose="catalogue", database="")
            if connection.flavor is Flavor.MYSQL:
                # Else estimates are up to a day old; servers before 8.0 have no such cache.
                with suppress(pymysql.MySQLError):
                    connection.rows("SET SESSION information_schema_stats_expiry = 0")
            self._folds_case = bool(connection.value("SELECT @@GLOBAL.lower_case_table_names"))
            self._connection = connection
        return self._connection


def _grant_place(table: TableName, patterns: Sequence[str]) -> tuple[str, str | None]:
    """The database, and the table unless a pattern names more, that a GRANT must name."""
    named = any("*" in each and matches([each], table) for each in patterns)
    return table.namespace, None if named else table.name


def _is_denied(connection: Connection, table: TableName) -> bool:
    """Return True if the account may not read the table, whether it exists or not."""
    name = backticked(table.namespace, table.name)
    try:
        connection.rows(f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608 - quoted
    except pymysql.MySQLError as error:
        return number_of(error) in (ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR)
    return False


def _key_spelling(schema: TableSchema) -> str:
    """See `tidelog.ports.TableShape`: marks keys with exact texts, which older versions did not
    write.
    """
    columns = (schema.columns[schema.column_index(name)] for name in schema.match_key)
    return EXACT_KEYS if any(map(needs_exact_text, columns)) else ""


def _seconds_behind(connection: Connection) -> float | None:
    renamed = connection.flavor is Flavor.MYSQL and connection.version >= _REPLICA_STATUS_SINCE
    try:
        channels = connection.named("SHOW REPLICA STATUS" if renamed else "SHOW SLAVE STATUS")
    except pymysql.MySQLError as error:
        if number_of(error) != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        return None  # MariaDB requires SLAVE MONITOR; capture works without it
    behind = [channel[name] for channel in channels for name in _BEHIND if name in channel]
    known = [float(seconds) for seconds in behind if seconds is not None]
    return max(known) if known else None


def _expiry(connection: Connection) -> float | None:
    """Seconds after which the server deletes a binlog file; None if it never does."""
    found = connection.rows(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
        "('binlog_expire_logs_seconds', 'binlog_expire_logs_auto_purge', 'expire_logs_days')"
    )
    values = {str(name): value for name, value in found}
    if str(values.get("binlog_expire_logs_auto_purge", "ON")).upper() in ("OFF", "0"):
        return None
    seconds = float(values.get("binlog_expire_logs_seconds") or 0)
    return seconds or float(values.get("expire_logs_days") or 0) * 86_400 or None


def _commits(connection: Connection) -> int | None:
    """The number of transactions that used the binlog's cache, as nearly all do; both servers count
    them.
    """
    row = connection.row("SHOW GLOBAL STATUS LIKE 'Binlog_cache_use'")
    return None if row is None else int(row[1])
