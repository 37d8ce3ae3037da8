"""`tidelog.ports.BlockingReader` for MySQL and MariaDB: reads whole tables under one snapshot at an
exact binlog position.

MariaDB reports the position of a consistent snapshot. MySQL does not: the binlog's end is read
before and after the snapshot, and the snapshot counts if nothing was logged in between and all that
was logged is visible. If the server never pauses long enough, ``FLUSH TABLES WITH READ LOCK`` stops
the writers while the snapshot is taken, if a blocking dump was asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress

import pymysql

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkVoidError,
    TidelogError,
)
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.patterns import dump_command
from tidelog.model.schema import TableName, TableSchema, backticked
from tidelog.ports import ChunkRequest, ChunkRows, SchemaRegistry
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.catalogue.storage import TRANSACTIONAL, storage_of
from tidelog.sources.mysql.chunks.reader import (
    LOCK_TIMEOUT_MS,
    SQL_MODE,
    end_statement,
    open_reading,
)
from tidelog.sources.mysql.chunks.rows import MySqlChunkSelect, RowStream
from tidelog.sources.mysql.chunks.watermarks import (
    BEGIN,
    BinlogSnapshot,
    binlog_end,
    check_commit_order,
    snapshot_position,
)
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import chunk_errors, time_limit
from tidelog.system.backoff import Backoff

QUIET_TRIES = 50
"""Number of attempts before writers are blocked."""
PAUSE_S = Backoff(first=0.005, longest=0.2, factor=1.2)
"""Longest time between two tries on a server that writes without a pause: each asks for its log's
end, which its writers wait for."""
WAIT_FOR_READS_S = 86_400
"""How long the server waits for a SELECT's rows to be read on, in seconds."""
REST_S = 1.0
"""Longest time that writers may be blocked, in seconds."""
LOCK_ADVICE = (
    "the server writes without a pause, and FLUSH TABLES WITH READ LOCK, which would make one for "
    "an instant, was not given: grant RELOAD, end statements that run for long, or dump "
    "incrementally"
)


class MySqlBlockingReader:
    """Reads tables under one snapshot, over a connection whose transaction stays open until
    `close`. Used by one thread.

    A table is locked against DDL (a metadata lock, which no write waits for) from `begin` or its
    first `read` until `close`. A table without a key is read by one SELECT, whose rows are taken
    read by read.

    Args:
        url: the server.
        registry: numbers the schema that rows were read under.
        tables: the tables to lock in `begin`, which takes another snapshot if one of them changed.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        lock_timeout_ms: longest wait for a lock; rounded up to whole seconds.
        statement_timeout_ms: time limit of a SELECT, except that of a table without a key.
        may_stop_writers: whether MySQL's writers may be stopped for an instant.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        registry: SchemaRegistry,
        *,
        tables: Sequence[TableName] = (),
        may_stop_writers: bool = True,
        finder: MySqlSchemaFinder | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._url = url
        self._registry = registry
        self._tables = tuple(tables)
        self._finder = finder or MySqlSchemaFinder()
        wait = str(max(1, math.ceil(lock_timeout_ms / 1000)))
        self._settings = {
            **SQL_MODE,
            "lock_wait_timeout": wait,
            "net_write_timeout": str(WAIT_FOR_READS_S),
        }
        self._may_stop_writers = may_stop_writers
        self._stream: tuple[TableName, RowStream] | None = None
        self._taken = 0
        self._statement_timeout_ms = statement_timeout_ms
        self._select = MySqlChunkSelect(lambda connection: end_statement(url, connection))
        self._position = 0
        self._locked: dict[TableName, TableSchema] = {}
        self._reads: Connection | None = None
        self._now: Connection | None = None

    # ------------------------------------------------------------------ port

    def begin(self, timeout_s: float) -> int:
        """Take the snapshot; returns its position: only what committed before it is visible."""
        try:
            with chunk_errors("taking the snapshot of a blocking dump"):
                return self._begin(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.close()
            raise

    def read(self, request: ChunkRequest) -> ChunkRows:
        """Read a range. An error does not end the snapshot or release other tables' locks."""
        if request.keys is not None:
            raise ValueError("a blocking dump reads ranges")
        connection = self._reads
        if connection is None or not connection.open:
            raise ChunkLostError("the snapshot of the blocking dump is gone: begin another one")
        with chunk_errors(f"reading {request.table} for a blocking dump"):
            snapshot = BinlogSnapshot(self._position)
            if self._stream is not None and (self._stream[0], request.after) != (
                request.table,
                (str(self._taken),),
            ):
                self._end_stream(connection)
            if self._stream is not None:
                rows = self._next(request, self._locked[request.table], self._stream[1], snapshot)
            else:
                schema = self._lock(connection, request.table)
                if schema.keyless:
                    stream = self._begin_stream(connection, request, schema)
                    rows = self._next(request, schema, stream, snapshot)
                else:
                    rows = self._select.range(connection, request, schema, snapshot)
        rows.emit_at = self._position
        return rows

    def close(self) -> None:
        """End the snapshot and release the locks, in any state."""
        for connection in (self._reads, self._now):
            if connection is not None:
                with suppress(pymysql.MySQLError, OSError):
                    connection.close()
        self._reads = self._now = self._stream = None
        self._locked.clear()

    # ------------------------------------------------------------------ tables without a key

    def _begin_stream(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema
    ) -> RowStream:
        if request.after is not None:
            raise ChunkVoidError(
                f"reading {request.table}: its SELECT was ended; start the dump of this table again"
            )
        assert self._now is not None
        storage = storage_of(self._now, request.table)
        if storage is not None and storage.engine not in TRANSACTIONAL:
            raise ChunkRefusedError(
                f"{request.table} has no key, and its engine {storage.engine} has no snapshots: a "
                "dump would have rows that the log has too. Run ALTER TABLE "
                f"{backticked(request.table.namespace, request.table.name)} ENGINE = InnoDB, then "
                f"`{dump_command(request.table)}`"
            )
        self._limit_time(connection, 0)
        try:
            stream = self._select.whole(connection, request, schema)
        except pymysql.MySQLError:
            if connection.open:
                self._limit_time(connection, self._statement_timeout_ms)
            raise
        self._stream, self._taken = (request.table, stream), 0
        return stream

    def _next(
        self,
        request: ChunkRequest,
        schema: TableSchema,
        stream: RowStream,
        snapshot: BinlogSnapshot,
    ) -> ChunkRows:
        rows = stream.take(request.limit_rows, request.limit_bytes)
        self._taken += len(rows)
        if stream.ended:
            assert self._reads is not None
            self._stream = None
            self._limit_time(self._reads, self._statement_timeout_ms)
        last = (str(self._taken),) if len(rows) else None
        return ChunkRows(schema, rows, snapshot, last, exhausted=stream.ended)

    def _end_stream(self, connection: Connection) -> None:
        """End the SELECT that nobody reads any more; the snapshot is kept."""
        assert self._stream is not None
        (_, stream), self._stream = self._stream, None
        if stream.error is None:
            end_statement(self._url, connection)
            stream.drain()
        self._limit_time(connection, self._statement_timeout_ms)

    def _limit_time(self, connection: Connection, milliseconds: int) -> None:
        name, value = time_limit(connection.flavor, milliseconds)
        connection.rows(f"SET SESSION {name} = {value}")

    # ------------------------------------------------------------------ snapshot

    def _begin(self, deadline: float, timeout_s: float) -> int:
        while True:
            self.close()
            self._now = connect(self._url, purpose="blocking", database="", read_timeout_s=60)
            connection = self._reads = open_reading(
                self._url,
                purpose="blocking",
                settings=self._settings,
                statement_timeout_ms=self._statement_timeout_ms,
            )
            if connection.flavor is Flavor.MARIADB:
                connection.rows(BEGIN)
                self._position = snapshot_position(connection)
            else:
                check_commit_order(connection)
                self._position = self._snapshot_in_pause(connection, deadline, timeout_s)
            if self._lock_given_tables():
                return self._position
            if time.monotonic() > deadline:
                raise ChunkError(
                    f"no snapshot within {timeout_s:.0f} s: each time a table was altered before "
                    "it could be locked; try again when no DDL runs"
                )

    def _snapshot_in_pause(self, connection: Connection, deadline: float, timeout_s: float) -> int:
        """MySQL: begin at a moment without writes; returns the binlog's end."""
        tries = 0
        while tries < QUIET_TRIES or not self._may_stop_writers:
            tries += 1
            position = self._try_snapshot(connection)
            if position is not None:
                return position
            if time.monotonic() > deadline:
                break
            time.sleep(PAUSE_S.after(tries - QUIET_TRIES))
        if not self._may_stop_writers:
            raise ChunkBusyError(
                "no snapshot: the server writes without a pause, so the snapshot's position in the "
                "binlog is not known; it is tried again. A blocking dump of the table makes a "
                "pause of an instant"
            )
        locker = connect(self._url, purpose="blocking", settings=self._settings, database="")
        try:
            locker.rows("FLUSH TABLES WITH READ LOCK")
            # Commits wait for the lock now; earlier ones may still become visible.
            deadline = time.monotonic() + REST_S
            while time.monotonic() <= deadline:
                position = self._try_snapshot(connection)
                if position is not None:
                    return position
                time.sleep(0.005)
        except pymysql.MySQLError as error:
            raise _snapshot_error(error) from None
        finally:
            with suppress(pymysql.MySQLError, OSError):
                locker.rows("UNLOCK TABLES")
            locker.abandon()
        raise ChunkBusyError(f"no snapshot within {timeout_s:.0f} s: {LOCK_ADVICE}")

    def _try_snapshot(self, connection: Connection) -> int | None:
        """Begin between two reads of the binlog's end; returns the end if it did not move and all
        is visible.
        """
        before = self._end()
        if before is None:
            return None
        connection.rows(BEGIN)
        if self._end() == before:
            return before[0]
        connection.rows("ROLLBACK")
        return None

    def _end(self) -> tuple[int, str] | None:
        """The binlog's end and the visible transactions; None while a transaction is logged and not
        yet visible. Only GTIDs show that; without them only the lock ensures it.
        """
        assert self._now is not None
        row = self._now.row(
            "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed, @@GLOBAL.gtid_owned"
        )
        assert row is not None
        mode, executed, owned = row
        if mode != "ON":
            raise ChunkRefusedError(
                "MySQL needs GTIDs (gtid_mode = ON) to place the snapshot of a blocking dump, or "
                "of a table without a key, in the binlog: set it, dump a table that has a key "
                "incrementally, or name a unique key in source.keys"
            )
        return None if owned else (binlog_end(self._now), str(executed))

    # ------------------------------------------------------------------ locks

    def _lock_given_tables(self) -> bool:
        """Lock the tables given in advance; False if one changed since the snapshot. A table that
        can't be locked fails when it is read, and does not stop the others.
        """
        assert self._reads is not None
        for table in self._tables:
            try:
                with chunk_errors(f"locking {table}"):
                    self._lock(self._reads, table)
            except ChunkVoidError:
                return False
            except TidelogError:
                if not self._reads.open:
                    raise
        return True

    def _lock(self, connection: Connection, table: TableName) -> TableSchema:
        """Lock the table against DDL unless it is locked, and check that the snapshot
        can read it.
        """
        if table in self._locked:
            return self._locked[table]
        assert self._now is not None
        name = backticked(table.namespace, table.name)
        storage = storage_of(self._now, table)
        try:
            # The server refuses to read a table that was recreated after the snapshot (1412).
            connection.rows(f"SELECT 1 FROM {name} LIMIT 1")  # noqa: S608 - quoted
        except pymysql.MySQLError as error:
            if error.args and error.args[0] == 1412:
                raise _altered_error(table) from None
            raise
        found = self._finder.find(connection, table)
        now = storage_of(self._now, table)
        if found is None or storage is None or now is None or storage.text != now.text:
            raise _altered_error(table)
        self._locked[table] = self._registry.register(found.schema)
        return self._locked[table]


def _altered_error(table: TableName) -> ChunkVoidError:
    return ChunkVoidError(
        f"{table} was created, altered or emptied after the snapshot of its dump was taken: dump "
        "it again"
    )


def _snapshot_error(error: pymysql.MySQLError) -> ChunkError:
    number = error.args[0] if error.args else 0
    kind = ChunkRefusedError if number in (1044, 1045, 1142, 1227) else ChunkBusyError
    return kind(f"taking the snapshot of a blocking dump: {LOCK_ADVICE} (error {number})")
