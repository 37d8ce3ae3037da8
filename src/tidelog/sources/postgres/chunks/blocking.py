"""`tidelog.ports.BlockingReader` for PostgreSQL: reads whole tables under one exported snapshot.

A temporary logical slot starts at its consistent point, where all transactions are known. The
server exports a snapshot that sees what committed before that point in the log, and nothing else
(manual, "Logical Decoding Concepts", Exported Snapshots). The slot is dropped once the snapshot is
imported.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import pq

from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkVoidError,
    ConnectionLostError,
    TidelogError,
)
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.schema import TableName, TableSchema, double_quoted
from tidelog.ports import ChunkRequest, ChunkRows, SchemaRegistry
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.catalogue.schemas import PostgresFoundTable, PostgresSchemaFinder
from tidelog.sources.postgres.catalogue.tables import table_shape
from tidelog.sources.postgres.chunks.reader import (
    LOCK_TIMEOUT_MS,
    chunk_errors,
)
from tidelog.sources.postgres.chunks.rows import PostgresChunkSelect
from tidelog.sources.postgres.chunks.sql import require_plain
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot
from tidelog.sources.postgres.connect import Connection, connect, connect_replication, lsn_value
from tidelog.sources.postgres.stream.standby import in_recovery, who_is_open

POLL_S = 0.02
CANCEL_TIMEOUT_S = 5.0


class PostgresBlockingReader:
    """Reads tables under one snapshot, over a connection whose transaction stays open until
    `close`. Used by one thread.

    A table is locked against DDL (ACCESS SHARE, which no write waits for) from `begin` or its first
    `read` until `close`. A table that was rewritten or altered between the snapshot and that lock
    is never read: an older snapshot sees a rewritten table as empty. A table without a key is read
    in the order of its rows' addresses.

    Args:
        dsn: connection string; the user needs REPLICATION.
        registry: numbers the schema that rows were read under.
        tables: the tables to lock in `begin`, which takes another snapshot if one of them changed.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        lock_timeout_ms: longest wait for a lock against DDL.
        statement_timeout_ms: time limit of a SELECT.
        keep_locks: False: a table is locked for each `read` only, so that DDL need not wait for
            long; a table that was altered since the snapshot is not read on.
    """

    def __init__(
        self,
        dsn: str,
        registry: SchemaRegistry,
        *,
        tables: Sequence[TableName] = (),
        keep_locks: bool = True,
        finder: PostgresSchemaFinder | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._dsn = dsn
        self._registry = registry
        self._tables = tuple(tables)
        self._finder = finder or PostgresSchemaFinder()
        self._settings = {
            "lock_timeout": str(lock_timeout_ms),
            "statement_timeout": str(statement_timeout_ms),
        }
        self._keep_locks = keep_locks
        self._select = PostgresChunkSelect()
        self._position = 0
        self._snapshot: PgSnapshot | None = None
        self._locked: dict[TableName, tuple[PostgresFoundTable, TableSchema]] = {}
        self._reads: Connection | None = None
        self._now: Connection | None = None
        self._exporter: pq.abc.PGconn | None = None

    # ------------------------------------------------------------------ port

    def begin(self, timeout_s: float) -> int:
        """Take the snapshot; the returned position: what committed before it is visible, nothing
        else. Nothing is locked while the server waits for the transactions that are open now.
        """
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
        if self._reads is None or self._snapshot is None:
            raise ChunkLostError("the snapshot of the blocking dump is gone: begin another one")
        connection, snapshot = self._reads, self._snapshot
        doing = f"reading {request.table} for a blocking dump"
        with chunk_errors(doing), _savepoint(connection, keep=self._keep_locks):
            with _savepoint(connection):
                found, schema = self._lock(connection, request.table)
                require_plain(connection, schema, request)
            with _savepoint(connection):
                rows = self._select.range(connection, request, schema, found.partitioned, snapshot)
        if not self._keep_locks:
            self._locked.clear()
        rows.emit_at = self._position
        return rows

    def close(self) -> None:
        """End the snapshot, release the locks and drop the slot, in any state."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.finish()
        for connection in (self._reads, self._now):
            if connection is not None:
                connection.close()
        self._reads = self._now = self._snapshot = None
        self._locked.clear()

    # ------------------------------------------------------------------ snapshot

    def _begin(self, deadline: float, timeout_s: float) -> int:
        while True:
            self.close()
            self._now = connect(self._dsn, purpose="blocking")
            self._position, name = self._export(deadline, timeout_s)
            self._import(name)
            self._wait_until_ended(deadline, timeout_s)
            if self._lock_given_tables():
                return self._position
            if time.monotonic() > deadline:
                raise ChunkError(
                    f"no snapshot within {timeout_s:.0f} s: each time a table was altered or "
                    "rewritten before it could be locked; try again when no DDL runs"
                )

    def _export(self, deadline: float, timeout_s: float) -> tuple[int, str]:
        """Create the slot; returns its consistent point and the snapshot's name."""
        pgconn = self._exporter = connect_replication(self._dsn, purpose="blocking")
        slot = f"tidelog_blocking_{secrets.token_hex(6)}"
        pgconn.send_query(create_slot_command(slot, pgconn.server_version).encode())
        result = _result(pgconn, deadline)
        if result is None:
            self._cancel(pgconn)
            raise ChunkBusyError(f"no snapshot within {timeout_s:.0f} s: {self._who_is_open()}")
        if result.status != pq.ExecStatus.TUPLES_OK:
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost"
            advice = (
                "; raise max_replication_slots, or drop slots that nothing reads"
                if state == "53400"
                else ""
            )
            raise ChunkError(
                f"no slot could be created for a blocking dump: {message.decode(errors='replace')}"
                f"{advice} (SQLSTATE {state})"
            )
        # slot_name, consistent_point, snapshot_name, output_plugin
        return (
            lsn_value((result.get_value(0, 1) or b"").decode()),
            (result.get_value(0, 2) or b"").decode(),
        )

    def _import(self, name: str) -> None:
        """Import the exported snapshot into a transaction; the slot is no longer needed."""
        connection = self._reads = connect(self._dsn, purpose="blocking", settings=self._settings)
        cursor = connection.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
            f"SET TRANSACTION SNAPSHOT '{name}';"
            "SELECT pg_catalog.pg_current_snapshot()::text".encode()
        )
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        self._snapshot = PgSnapshot.from_text(row[0])
        if self._exporter is not None:
            self._exporter.finish()
            self._exporter = None

    def _wait_until_ended(self, deadline: float, timeout_s: float) -> None:
        """Wait until all transactions that the snapshot counts as committed have ended.

        The snapshot was built from the log, where a commit appears before the commit log (pg_xact)
        has it: until then a row of such a transaction would count as rolled back.
        """
        assert self._now is not None
        assert self._snapshot is not None
        while True:
            row = self._now.execute(b"SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None
            now = PgSnapshot.from_text(row[0])
            # Every running transaction below xmax is listed; above it any transaction may run.
            if now.xmax >= self._snapshot.xmax and not self._snapshot.visible(now.xip).any():
                return
            if time.monotonic() > deadline:
                raise ChunkBusyError(f"no snapshot within {timeout_s:.0f} s: {self._who_is_open()}")
            time.sleep(POLL_S)

    def _cancel(self, pgconn: pq.abc.PGconn) -> None:
        """End the walsender's wait: it does not notice that its client has left."""
        try:
            async_results.cancel(pgconn, CANCEL_TIMEOUT_S)
            _result(pgconn, time.monotonic() + CANCEL_TIMEOUT_S)
        except (psycopg.Error, TidelogError):
            pass  # it ends with the transaction that it waits for
        self._exporter = None
        pgconn.finish()

    def _who_is_open(self) -> str:
        assert self._now is not None
        if in_recovery(self._now):
            return (
                "a standby takes one only when the primary logs what is running, and then waits "
                "for transactions that stay open there: on the primary run SELECT "
                "pg_log_standby_snapshot(), and end what pg_stat_activity shows as old"
            )
        return f"every transaction that was open before must end first. {who_is_open(self._now)}"

    # ------------------------------------------------------------------ locks

    def _lock_given_tables(self) -> bool:
        """Lock the tables given in advance; False if one changed since the snapshot. A table that
        can't be locked fails when it is read, and does not stop the others.
        """
        assert self._reads is not None
        connection = self._reads
        for table in self._tables:
            try:
                with chunk_errors(f"locking {table}"), _savepoint(connection):
                    self._lock(connection, table)
            except ChunkVoidError:
                return False
            except TidelogError:
                if connection.closed or connection.broken:
                    raise
        return True

    def _lock(
        self, connection: Connection, table: TableName
    ) -> tuple[PostgresFoundTable, TableSchema]:
        """Lock the table against DDL unless it is locked, and check that it is unchanged since the
        snapshot.
        """
        if table in self._locked:
            return self._locked[table]
        # Without ONLY: partitions are locked too.
        name = double_quoted(table.namespace, table.name)
        connection.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
        then = table_shape(connection, self._finder, table)
        assert self._now is not None
        now = table_shape(self._now, self._finder, table)
        if then is None or now is None or (then.schema, then.storage) != (now.schema, now.storage):
            raise ChunkVoidError(
                f"{table} was created, altered, truncated or rewritten after the snapshot of its "
                "dump was taken: dump it again"
            )
        found = self._finder.find(connection, table)
        assert found is not None
        self._locked[table] = found, self._registry.register(then.schema)
        return self._locked[table]


@contextmanager
def _savepoint(connection: Connection, *, keep: bool = True) -> Iterator[None]:
    """Protect the transaction from an error inside: its snapshot can't be taken again. Without
    ``keep`` the locks taken inside are released at the end.
    """
    connection.execute(b"SAVEPOINT tidelog")
    try:
        yield
    except BaseException:
        if not connection.closed and not connection.broken:
            connection.execute(b"ROLLBACK TO SAVEPOINT tidelog")
        raise
    if not keep:
        connection.execute(b"ROLLBACK TO SAVEPOINT tidelog")
    connection.execute(b"RELEASE SAVEPOINT tidelog")


def create_slot_command(slot: str, server_version: int) -> str:
    """The CREATE_REPLICATION_SLOT command of a temporary slot with an exported snapshot."""
    option = "(SNAPSHOT 'export')" if server_version >= 150_000 else "EXPORT_SNAPSHOT"
    return f"CREATE_REPLICATION_SLOT {double_quoted(slot)} TEMPORARY LOGICAL pgoutput {option}"


def _result(pgconn: pq.abc.PGconn, deadline: float) -> pq.abc.PGresult | None:
    """The result of the sent command; None if there is none by the deadline."""
    try:
        return pgconn.get_result() if async_results.wait_result(pgconn, deadline) else None
    except psycopg.OperationalError:
        raise ConnectionLostError("the replication connection was lost") from None
