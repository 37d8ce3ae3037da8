"""`tidelog.ports.ChunkReader` for MySQL and MariaDB: writes watermarks and reads chunks by short
SELECTs.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ChunkBusyError, ChunkError, ChunkLostError, TidelogError
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.ports import ChunkRequest, ChunkRows, SchemaRegistry
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.chunks.rows import MySqlChunkSelect
from tidelog.sources.mysql.chunks.watermarks import (
    BEGIN,
    BinlogSnapshot,
    Strategy,
    binlog_end,
    check_commit_order,
    commit_watermark,
    current_position,
    snapshot_position,
)
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import chunk_errors, time_limit
from tidelog.sources.mysql.stream.gtids import GtidSet, SeenGtids

LOCK_TIMEOUT_MS = 2_000
PLAN_TRANSACTION_S = 0.5  # then DDL and purge can run
KILL_TIMEOUT_S = 2.0

# A key may hold an invalid date that was written under ALLOW_INVALID_DATES.
SQL_MODE = {"sql_mode": "'ALLOW_INVALID_DATES'"}


class MySqlChunkReader:
    """Reads chunks over connections of its own. Used by one thread at a time.

    Args:
        url: the server.
        registry: numbers the schema that a chunk was read under.
        strategy: how chunks are placed in the log, see `tidelog.sources.mysql.chunks.watermarks`.
        watermark_schema: database of the watermark table.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        seen: the transactions that the log reader has read; required by `gtid` on MySQL.
        lock_timeout_ms: longest wait of a watermark, or of a read's lock against DDL; rounded up to
            whole seconds.
        statement_timeout_ms: time limit of a SELECT.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        registry: SchemaRegistry,
        *,
        strategy: Strategy = "table",
        watermark_schema: str = "tidelog",
        finder: MySqlSchemaFinder | None = None,
        seen: SeenGtids | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._url = url
        self._registry = registry
        self._strategy = strategy
        self._watermark_schema = watermark_schema
        self._finder = finder or MySqlSchemaFinder()
        self._seen = seen
        wait = str(max(1, math.ceil(lock_timeout_ms / 1000)))
        self._settings = {**SQL_MODE, "lock_wait_timeout": wait, "innodb_lock_wait_timeout": wait}
        self._watermark_timeout_s = max(lock_timeout_ms * 5 / 1000, 10.0)
        self._statement_timeout_ms = statement_timeout_ms
        self._select = MySqlChunkSelect(lambda connection: end_statement(url, connection))
        self._bound = 0  # all transactions before it are visible
        self._closed = False
        self._busy: Connection | None = None
        self._marks: Connection | None = None
        self._reads: Connection | None = None
        self._plans: Connection | None = None

    # ------------------------------------------------------------------ port

    def write_watermark(self, watermark: str) -> None:
        if self._strategy == "gtid":
            return
        with chunk_errors("writing a watermark", too_slow=ChunkError):
            connection = self._watermark_connection()
            # The end is read before the watermark is written, so it is visible once that commits.
            check_commit_order(connection)
            end = binlog_end(connection)
            commit_watermark(connection, self._watermark_schema, watermark)
            self._bound = end

    def read(self, request: ChunkRequest) -> ChunkRows:
        with chunk_errors(f"reading a chunk of {request.table}"):
            connection = self._busy = self._read_connection()
            schema: TableSchema | None = None
            try:
                snapshot, emit_at = self._begin(connection)
                schema = self._registry.register(self._find_schema(connection, request.table))
                select = self._select.range if request.keys is None else self._select.keys
                chunk = select(connection, request, schema, snapshot)
            except pymysql.MySQLError as error:
                self._select.forget()
                if schema is not None and error.args[:1] == (ER.BAD_FIELD_ERROR,):
                    self._check_columns(request.table, schema)
                raise
            finally:
                self._busy = None
            chunk.emit_at = emit_at
            return chunk

    def release(self) -> None:
        connection = self._reads
        if connection is None:
            return
        try:
            connection.rows("COMMIT")
        except (pymysql.MySQLError, OSError, AttributeError):
            connection.abandon()
            self._reads = None

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """See `tidelog.ports.ChunkReader.boundaries`. Uses a connection of its own."""
        with chunk_errors(f"planning chunks of {request.table}"):
            connection = self._busy = self._plan_connection()
            try:
                connection.rows(BEGIN)
                schema = self._find_schema(connection, request.table)
                begun = time.monotonic()
                ends: list[tuple[str | None, ...]] = []
                while len(ends) < count:
                    if time.monotonic() - begun > PLAN_TRANSACTION_S:
                        connection.rows("COMMIT")
                        connection.rows(BEGIN)
                        schema = self._find_schema(connection, request.table)
                        begun = time.monotonic()
                    end = self._select.boundary(connection, request, schema)
                    if end is None:
                        break
                    ends.append(end)
                    request = replace(request, after=end)
                return ends
            except pymysql.MySQLError:
                self._select.forget()
                raise
            finally:
                self._busy = None
                with suppress(pymysql.MySQLError, OSError, AttributeError):
                    connection.rows("COMMIT")

    def current_snapshot(self) -> BinlogSnapshot:
        """What is visible now. The strategy `table` on MySQL writes a watermark for this, so call
        it no more often than transactions must be forgotten.
        """
        with chunk_errors("taking a snapshot"):
            connection = self._watermark_connection()
            if connection.flavor is Flavor.MARIADB:
                return BinlogSnapshot(current_position(connection))
            if self._strategy == "gtid" or self._seen is not None:
                with suppress(ChunkBusyError):
                    return BinlogSnapshot(self._visible_before(connection))
                if self._strategy == "gtid":
                    raise ChunkBusyError(_VISIBILITY_UNKNOWN)
            check_commit_order(connection)
            end = binlog_end(connection)
            commit_watermark(connection, self._watermark_schema, f"{uuid.uuid4().hex}:now")
            return BinlogSnapshot(end)

    def close(self) -> None:
        self._closed = True
        busy = self._busy
        if busy is not None:
            # Another thread is running a statement, and will close the connection.
            self._kill(busy)
        for connection in (self._marks, self._reads, self._plans):
            if connection is not None and connection.open:
                connection.abandon()

    # ------------------------------------------------------------------ reading

    def _begin(self, connection: Connection) -> tuple[BinlogSnapshot, int | None]:
        """Begin the transaction; returns the snapshot and where its rows are emitted (None: at the
        high watermark).
        """
        if connection.flavor is Flavor.MARIADB:
            connection.rows(BEGIN)
            position = snapshot_position(connection)
            return BinlogSnapshot(position), position if self._strategy == "gtid" else None
        check_commit_order(connection)
        if self._strategy == "table":
            connection.rows(BEGIN)
            # Up to the last watermark; before the first one nothing is known to be visible.
            return BinlogSnapshot(self._bound), None
        visible = self._visible_before(connection)
        connection.rows(BEGIN)
        # What is visible was logged before it became visible.
        return BinlogSnapshot(visible), binlog_end(connection)

    def _visible_before(self, connection: Connection) -> int:
        """MySQL: the position before which all is visible to a snapshot that is taken now."""
        seen = self._seen
        if seen is None:
            return 0  # nobody reads the log at the same time: all counts as newer
        end = seen.end
        row = connection.row("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_owned")
        assert row is not None
        executed, owned = row
        visible = seen.visible_before(GtidSet.parse(str(executed)), end, none_owned=not owned)
        if visible is None:
            raise ChunkBusyError(_VISIBILITY_UNKNOWN)
        return visible

    def _find_schema(self, connection: Connection, table: TableName) -> TableSchema:
        """The table's current schema; locks the table against DDL until the transaction ends (a
        metadata lock, which no write waits for).
        """
        name = backticked(table.namespace, table.name)
        connection.rows(f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608 - quoted
        found = self._finder.find(connection, table)
        if found is None:
            raise ChunkError(f"reading a chunk of {table}: the table does not exist (any more)")
        return found.schema

    def _check_columns(self, table: TableName, schema: TableSchema) -> None:
        """Raise ChunkBusyError if the table has other columns by now; the next snapshot will fit
        them.

        information_schema is as old as the transaction's snapshot, while the table itself is opened
        in its current state; a read that waited for DDL always sees both.
        """
        connection = self._plan_connection()
        connection.rows("COMMIT")
        found = self._finder.find(connection, table)
        if found is None or found.schema.columns != schema.columns:
            raise ChunkBusyError(f"reading a chunk of {table}: it was altered in the meantime")

    # ------------------------------------------------------------------ connections

    def _watermark_connection(self) -> Connection:
        self._check_open()
        if self._marks is None or not self._marks.open:
            self._bound = 0  # it may be another server
            self._marks = connect(
                self._url,
                purpose="watermarks",
                settings=self._settings,
                isolation="REPEATABLE READ",
                read_timeout_s=self._watermark_timeout_s,
                database="",
            )
        return self._marks

    def _plan_connection(self) -> Connection:
        self._check_open()
        if self._plans is None or not self._plans.open:
            self._plans = self._open("planning")
        return self._plans

    def _read_connection(self) -> Connection:
        self._check_open()
        if self._reads is None or not self._reads.open:
            self._reads = self._open("chunks")
        return self._reads

    def _open(self, purpose: str) -> Connection:
        return open_reading(
            self._url,
            purpose=purpose,
            settings=self._settings,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ChunkLostError("the reader of chunks is closed")

    def _kill(self, connection: Connection) -> None:
        """Make the server end the connection's statement: it does not notice that we left."""
        _kill(self._url, connection, "KILL")


_VISIBILITY_UNKNOWN = (
    "it is not known yet which transactions a SELECT would see: the log's reader has to catch up "
    "with the server's end, or its last transaction waits for a replica"
)


def end_statement(url: str | ServerUrl, connection: Connection) -> None:
    """Make the server end the connection's current statement; the transaction continues. If that
    fails, the statement runs to its end.
    """
    _kill(url, connection, "KILL QUERY")


def _kill(url: str | ServerUrl, connection: Connection, command: str) -> None:
    with suppress(TidelogError, pymysql.MySQLError, OSError):
        killer = connect(url, purpose="end", read_timeout_s=KILL_TIMEOUT_S, database="")
        try:
            if killer.server == connection.server:  # on another server the id is another session's
                killer.rows(f"{command} {connection.connection_id:d}")
        finally:
            killer.abandon()


def open_reading(
    url: str | ServerUrl, *, purpose: str, settings: Mapping[str, str], statement_timeout_ms: int
) -> Connection:
    """A connection with one snapshot per transaction and a time limit per statement."""
    connection = connect(
        url, purpose=purpose, settings=settings, isolation="REPEATABLE READ", database=""
    )
    name, value = time_limit(connection.flavor, statement_timeout_ms)
    with chunk_errors("setting a time limit"):
        connection.rows(f"SET SESSION {name} = {value}")
    return connection
