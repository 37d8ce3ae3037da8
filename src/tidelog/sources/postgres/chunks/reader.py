"""`tidelog.ports.ChunkReader` for PostgreSQL: writes watermarks, reads chunks by short SELECTs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    UnsupportedTableError,
)
from tidelog.model.dump_options import STATEMENT_TIMEOUT_MS
from tidelog.model.schema import TableName, TableSchema, double_quoted
from tidelog.ports import ChunkRequest, ChunkRows, SchemaRegistry
from tidelog.sources.postgres.catalogue.identity import BYPASS_POLICIES, hides_rows
from tidelog.sources.postgres.catalogue.metadata_tables import watermark_table_refusal
from tidelog.sources.postgres.catalogue.schemas import (
    PostgresFoundTable,
    PostgresSchemaFinder,
    composite_types,
)
from tidelog.sources.postgres.catalogue.storage import attributes_version, composites_of
from tidelog.sources.postgres.chunks.rows import PostgresChunkSelect
from tidelog.sources.postgres.chunks.sql import require_plain
from tidelog.sources.postgres.chunks.watermarks import (
    TAKE_SNAPSHOT,
    WATERMARK_TABLE,
    PgSnapshot,
    Strategy,
    WalLayout,
    emission_point,
    read_snapshot,
    watermark_statement,
)
from tidelog.sources.postgres.connect import connect

LOCK_TIMEOUT_MS = 2_000
FIRST_NORMAL_OID = 16_384  # lower oids are PostgreSQL's own types
PLAN_TRANSACTION_S = 0.5  # then DDL and vacuum can run

# SQLSTATE → what happened and what to do. The server's own text may quote a key's value.
_REASONS = {
    "55P03": "another session holds a conflicting lock (DDL is running)",
    "57014": "the read took longer than its time limit: lower dump.chunk_rows, or add an index "
    "that serves the dump's condition",
    "42P01": "the table does not exist (any more)",
    "3F000": "the table's schema does not exist (any more)",
    "40P01": "the server ended it to break a deadlock",
    "40001": "the server ended it for a conflict with recovery",
    "25006": "the server is a standby, where no watermark can be written: set source.watermarks: "
    "snapshot",
}

_BUSY = {"55P03", "40P01", "40001"}  # caused by other sessions, and temporary

# Only the dump's condition or keys can cause these: all else was looked up just before.
_PERMANENT = {
    "42601",
    "42703",
    "42804",
    "42883",
    "22003",
    "22007",
    "22008",
    "22012",
    "22P02",
}


class PostgresChunkReader:
    """Reads chunks over connections of its own. Used by one thread at a time.

    Args:
        dsn: connection string.
        registry: numbers the schema that a chunk was read under.
        strategy: how chunks are placed in the log, see
            `tidelog.sources.postgres.chunks.watermarks`.
        watermark_schema: schema of the watermark table.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        lock_timeout_ms: longest wait of a watermark, or of a read's lock against DDL.
        statement_timeout_ms: time limit of a SELECT.
    """

    def __init__(
        self,
        dsn: str,
        registry: SchemaRegistry,
        *,
        strategy: Strategy = "table",
        watermark_schema: str = "tidelog",
        finder: PostgresSchemaFinder | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._dsn = dsn
        self._registry = registry
        self._finder = finder or PostgresSchemaFinder()
        self._watermark_sql = watermark_statement(strategy, watermark_schema)
        self._watermark: TableName | None = None  # the table of watermarks
        if strategy == "table":
            self._watermark = TableName(watermark_schema, WATERMARK_TABLE)
        self._layout: WalLayout | None = None
        self._placed: tuple[str, int] | None = None  # the last snapshot and its emission point
        self._watermark_settings = {
            "lock_timeout": str(lock_timeout_ms),
            "statement_timeout": str(max(lock_timeout_ms * 5, 10_000)),
        }
        self._read_settings = {
            "lock_timeout": str(lock_timeout_ms),
            "statement_timeout": str(statement_timeout_ms),
            "jit": "off",  # compiling takes longer than a chunk
        }
        self._select = PostgresChunkSelect()
        self._paths: dict[TableName, str] = {}  # search_path settings that tables' functions need
        self._closed = False
        self._marks: psycopg.Connection[tuple[Any, ...]] | None = None
        self._reads: psycopg.Connection[tuple[Any, ...]] | None = None
        self._plans: psycopg.Connection[tuple[Any, ...]] | None = None

    # ------------------------------------------------------------------ port

    def write_watermark(self, watermark: str) -> None:
        if self._watermark_sql is None:
            return
        with chunk_errors("writing a watermark", too_slow=ChunkError):
            self._watermark_connection().execute(self._watermark_sql, (watermark,))

    def read(self, request: ChunkRequest) -> ChunkRows:
        with chunk_errors(f"reading a chunk of {request.table}"):
            connection = self._read_connection()
            found, snapshot = self._begin(connection, request)
            emit_at = None if self._watermark_sql else self._emission_point(connection, snapshot)
            schema = self._registry.register(found.schema)
            select = self._select.range if request.keys is None else self._select.keys
            with self._retry_with_search_path(request, schema):
                chunk = select(connection, request, schema, found.partitioned, snapshot)
            self._require_same_attributes(connection, schema)
            chunk.emit_at = emit_at
            return chunk

    def release(self) -> None:
        connection = self._reads
        if connection is None:
            return
        try:
            # Not ROLLBACK: then the log that the read itself wrote (pruned pages, hint bits) is
            # flushed soon, and an emission point after it is reached.
            connection.execute(b"COMMIT")
        except psycopg.Error:
            connection.close()
            self._reads = None

    def boundaries(self, request: ChunkRequest, count: int) -> list[tuple[str | None, ...]]:
        """See `tidelog.ports.ChunkReader.boundaries`. Uses a connection of its own."""
        with chunk_errors(f"planning chunks of {request.table}"):
            connection = self._plan_connection()
            try:
                found, _ = self._begin(connection, request)
                begun = time.monotonic()
                ends: list[tuple[str | None, ...]] = []
                while len(ends) < count:
                    if time.monotonic() - begun > PLAN_TRANSACTION_S:
                        connection.execute(b"COMMIT")
                        found, _ = self._begin(connection, request)
                        begun = time.monotonic()
                    with self._retry_with_search_path(request, found.schema):
                        end = self._select.boundary(
                            connection, request, found.schema, found.partitioned
                        )
                    if end is None:
                        break
                    ends.append(end)
                    request = replace(request, after=end)
                return ends
            finally:
                with suppress(psycopg.Error):
                    connection.execute(b"COMMIT")

    def current_snapshot(self) -> PgSnapshot:
        with chunk_errors("taking a snapshot"):
            return read_snapshot(self._watermark_connection().execute(TAKE_SNAPSHOT.encode()))

    def close(self) -> None:
        self._closed = True
        for connection in (self._marks, self._reads, self._plans):
            if connection is None or connection.closed:
                continue
            if connection.info.transaction_status == TransactionStatus.ACTIVE:
                # Another thread is running a statement, and will close the connection.
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=2)
            else:
                connection.close()

    # ------------------------------------------------------------------ reading

    def _begin(
        self, connection: psycopg.Connection[tuple[Any, ...]], request: ChunkRequest
    ) -> tuple[PostgresFoundTable, PgSnapshot]:
        """Begin, lock against DDL, *then* take the snapshot: rewrites are not MVCC-safe."""
        table = request.table
        path = "" if request.where_names is not None else self._paths.get(table, "")
        # Without ONLY: it also locks partitions, and inheriting tables, which is harmless.
        cursor = connection.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
            f"{path}"
            f"LOCK TABLE {double_quoted(table.namespace, table.name)} IN ACCESS SHARE MODE;"
            f"{TAKE_SNAPSHOT}".encode()
        )
        snapshot = read_snapshot(cursor)
        found = self._finder.find(connection, table)
        if found is None:
            raise ChunkError(f"reading a chunk of {table}: {_REASONS['42P01']}")
        require_plain(connection, found.schema, request)
        return found, snapshot

    def _require_same_attributes(
        self, connection: psycopg.Connection[tuple[Any, ...]], schema: TableSchema
    ) -> None:
        """Raise ChunkBusyError if a composite was altered since the snapshot, which the lock on the
        table does not prevent: the SELECT then wrote texts of its new attributes.
        """
        types = composite_types(schema)
        if not types:
            return
        relations, before = composites_of(connection, types)
        if attributes_version(self._watermark_connection(), relations) != before:
            raise ChunkBusyError(
                f"reading a chunk of {schema.table}: a composite type was altered in the meantime"
            )

    @contextmanager
    def _retry_with_search_path(self, request: ChunkRequest, schema: TableSchema) -> Iterator[None]:
        """Let the next read set search_path if a function needs it.

        The planner inlines functions of the table's indexes and generated columns, which may rely
        on their author's search_path. The next read then has the table's schema in its search_path,
        unless that would change a value's text, as for the name of a regclass, or unless a user's
        condition would find operators there.
        """
        try:
            yield
        except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable) as error:
            table = schema.table
            plain = all(
                c.type_id < FIRST_NORMAL_OID and not c.type_name.startswith("reg")
                for c in schema.columns
            )
            if table in self._paths or not plain or request.where_names is not None:
                raise
            path = f"{double_quoted(table.namespace)}, public"
            self._paths[table] = f"SET LOCAL search_path = {path};"
            raise ChunkBusyError(
                f"reading a chunk of {table}: {error.diag.message_primary}; it is read again with "
                f"search_path {path}"
            ) from None

    def _emission_point(
        self, connection: psycopg.Connection[tuple[Any, ...]], snapshot: PgSnapshot
    ) -> int:
        """The emission point, as early as possible: equal snapshots share the position of the
        first.

        On an idle source, a position in log that a transaction wrote and nobody flushed may be
        reached only after up to 20 s (the background writer's next flush).
        """
        text = snapshot.to_text()
        # A standby's text does not contain everything that its snapshot saw.
        if self._placed is None or self._placed[0] != text or type(snapshot) is not PgSnapshot:
            if self._layout is None:
                self._layout = WalLayout.of(connection)
            self._placed = text, emission_point(connection, self._layout)
        return self._placed[1]

    # ------------------------------------------------------------------ connections

    def _watermark_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._check_open()
        if self._marks is None or self._marks.closed or self._marks.broken:
            marks = connect(self._dsn, purpose="watermarks", settings=self._watermark_settings)
            if self._watermark is not None:
                refusal = watermark_table_refusal(marks, self._watermark)
                if refusal is not None:
                    marks.close()
                    raise ChunkDeniedError(f"{self._watermark}: {refusal.reason}")
            self._marks = marks
        return self._marks

    def _plan_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._check_open()
        if self._plans is None or self._plans.closed or self._plans.broken:
            self._plans = connect(self._dsn, purpose="planning", settings=self._read_settings)
        return self._plans

    def _check_open(self) -> None:
        if self._closed:
            raise ChunkLostError("the reader of chunks is closed")

    def _read_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._check_open()
        if self._reads is None or self._reads.closed or self._reads.broken:
            self._reads = connect(self._dsn, purpose="chunks", settings=self._read_settings)
            self._placed = None
        return self._reads


@contextmanager
def chunk_errors(doing: str, *, too_slow: type[ChunkError] = ChunkTooSlowError) -> Iterator[None]:
    """Convert psycopg's errors to the ChunkError that says what may help. A table that became one
    that can't be captured is such an error, too: the catalogue then says so.
    """
    try:
        yield
    except UnsupportedTableError as error:
        raise ChunkError(f"{doing}: {error.reason}") from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        reason = _REASONS.get(state)
        lost = not state or (state[:2] in ("08", "57") and state != "57014")
        if reason is None and state == "42501" and hides_rows(error):
            reason = (
                f"{error.diag.message_primary}: row-level security would hide rows from this role. "
                f"As a superuser: {BYPASS_POLICIES} (`tidelog check` prints the SQL)"
            )
        elif reason is None and state == "42501":
            # insufficient_privilege names the object, never a value
            reason = f"{error.diag.message_primary}; grant it (`tidelog check` prints the SQL)"
        elif reason is None and lost:
            reason = "the connection was lost"
        elif reason is None and state[:2] == "22":
            reason = "a value of a key or of the dump's condition does not fit its column's type"
        elif reason is None and state[:2] == "42":
            reason = (
                f"{error.diag.message_primary} (check the dump's condition; a function in an index "
                "or a generated column that finds others by search_path: ALTER FUNCTION … SET "
                "search_path = …)"
            )
        kind: type[ChunkError] = ChunkRefusedError if state in _PERMANENT else ChunkError
        if state == "42501":
            kind = ChunkDeniedError
        elif state in _BUSY:
            kind = ChunkBusyError
        elif state == "57014":
            kind = too_slow
        elif lost:
            kind = ChunkLostError
        raise kind(f"{doing}: {reason or 'the server refused'} (SQLSTATE {state})") from None
    except UnicodeEncodeError:
        raise ChunkRefusedError(f"{doing}: a key or the condition is not valid text") from None
