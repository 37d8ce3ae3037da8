"""State and elections in PostgreSQL: ``postgresql://user@host/database``.

One small table, by default ``tidelog.state``. It may be in any database, also in the source's:
capture leaves out Tidelog's own schema. No decision depends on the server's clock.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.codecs.postgres.session_settings import PINNED, WRITABLE, set_statements
from tidelog.errors import ConfigError, StateError, TidelogError
from tidelog.state.documents import Documents, LeaseElection, NoAnswerError

SCHEMA: Final = "tidelog"
TABLE: Final = "state"
_DOCUMENTS, _LEASES = "documents", "leases"
_EXPECTED: Final = "expected postgresql://user@host/database; a password belongs under options"
# A lease can't wait for a server that hangs, and a late request must not arrive much later.
_PATIENCE: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 5_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_SETTINGS: Final[Mapping[str, str]] = {
    **WRITABLE,
    "statement_timeout": "5s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "5s",
}
ANSWER_S: Final = 7.0
"""Longer than the server's own limits."""

_PERMANENT: Final = ("3F000", "42501")  # no such schema, no privilege
_PERMANENT_MESSAGES: Final = (  # libpq gives no SQLSTATE for a failed connection
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "certificate verify failed",
    "server does not support SSL",
)


class RowRegister:
    """A `tidelog.state.documents.Register`: a row for each text; its tag is the column ``tag``."""

    def __init__(self, url: str, space: str) -> None:
        self._conninfo, schema, part = _split(url)
        self._table = sql.Identifier(schema, TABLE)
        self._table_name = f"{schema}.{TABLE}"
        self._schema = sql.Identifier(schema)
        self._space = f"{space}/{part}" if part else space
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._closed = False

    def read(self, name: str) -> tuple[bytes, Any] | None:
        rows = self._run(
            "SELECT content, tag FROM {table} WHERE space = %s AND name = %s", self._space, name
        )
        return (bytes(rows[0][0]), rows[0][1]) if rows else None

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        if tag is None:
            rows = self._run(
                # Not a tag that an earlier text of this name had.
                "INSERT INTO {table} VALUES (%s, %s, %s, "
                "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint) "
                "ON CONFLICT DO NOTHING RETURNING tag",
                *(self._space, name, text),
                silent=NoAnswerError,
            )
        else:
            rows = self._run(
                "UPDATE {table} SET content = %s, tag = tag + 1 "
                "WHERE space = %s AND name = %s AND tag = %s RETURNING tag",
                *(text, self._space, name, tag),
                silent=NoAnswerError,
            )
        return rows[0][0] if rows else None

    def remove(self, name: str, tag: Any = None) -> bool:
        text = "DELETE FROM {table} WHERE space = %s AND name = %s"
        if tag is None:
            self._run(text, self._space, name)
            return True
        return bool(self._run(f"{text} AND tag = %s RETURNING tag", self._space, name, tag))

    def names(self) -> list[str]:
        return [
            row[0] for row in self._run("SELECT name FROM {table} WHERE space = %s", self._space)
        ]

    def exists(self) -> bool:
        """Return whether there is a document; creates no table."""
        with self._lock, self._errors(StateError):
            connection = self._get_connection()
            with _time_limit(connection):
                row = connection.execute(
                    "SELECT to_regclass(%s) IS NOT NULL", (self._table.as_string(connection),)
                ).fetchone()
        return bool(row and row[0]) and bool(self.names())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _run(
        self, text: str, *arguments: Any, silent: type[StateError] = StateError
    ) -> list[tuple[Any, ...]]:
        statement = sql.SQL(text).format(table=self._table)
        with self._lock:
            for attempt in (1, 2):
                connection = self._get_connection()
                with self._errors(silent), _time_limit(connection):
                    try:
                        cursor = connection.execute(statement, arguments)
                        return cursor.fetchall() if cursor.description else []
                    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                        if attempt == 2:
                            raise
                with self._errors(StateError), _time_limit(connection):
                    self._create_table(connection)
        raise AssertionError

    def _create_table(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        for text in (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            "CREATE TABLE IF NOT EXISTS {table} (space text, name text, content bytea NOT NULL, "
            "tag bigint NOT NULL, PRIMARY KEY (space, name))",
        ):
            try:
                connection.execute(sql.SQL(text).format(schema=self._schema, table=self._table))
            except (
                psycopg.errors.UniqueViolation,  # another process created it at the same moment
                psycopg.errors.DuplicateTable,
                psycopg.errors.DuplicateSchema,
                psycopg.errors.DuplicateObject,
            ):
                continue
            except psycopg.errors.InsufficientPrivilege:
                if text.startswith("CREATE SCHEMA"):
                    continue  # it may exist; else CREATE TABLE fails
                raise

    def _get_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._closed:
            raise StateError("the state store is closed")
        if self._connection is None or self._connection.closed:
            self._connection = None
            try:
                # No prepared statements: they would outlive a table that is recreated.
                connection = psycopg.connect(
                    self._conninfo, autocommit=True, prepare_threshold=None
                )
            except psycopg.OperationalError as error:
                raise self._connection_error(str(error)) from None
            self._connection = connection
            with self._errors(StateError), _time_limit(connection):
                connection.execute(set_statements(_SETTINGS, connection.info.server_version))
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connection_error(self, message: str) -> TidelogError:
        where = _where(self._conninfo)
        for reason in _PERMANENT_MESSAGES:
            if reason in message:
                return ConfigError(
                    f"state.url: {where} refuses the connection ({reason}): check user, password, "
                    "database, pg_hba.conf and TLS"
                )
        return StateError(f"no connection to {where}: is it up? Tidelog tries again")

    @contextmanager
    def _errors(self, silent: type[StateError]) -> Iterator[None]:
        """Convert psycopg's errors, without the server's detail. ``silent``: the error to raise if
        it is not known whether the server has executed the statement.
        """
        try:
            yield
        except psycopg.Error as error:
            where, state = _where(self._conninfo), error.sqlstate or ""
            message = error.diag.message_primary or "the connection was lost"
            if not state or (self._connection is not None and self._connection.closed):
                self._drop()
            if state in _PERMANENT:
                raise ConfigError(
                    f"state.url: {where}: {message}. The user needs {self._table_name}, or the "
                    "privilege to create it"
                ) from None
            unsure = not state or state[:2] in ("08", "57")
            raise (silent if unsure else StateError)(f"{where}: {message}") from None


@contextmanager
def _time_limit(connection: psycopg.Connection[tuple[Any, ...]]) -> Iterator[None]:
    """Break the connection if the server does not answer in time: a frozen one keeps it open."""
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        timer = threading.Timer(ANSWER_S, _break, (stream,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _break(stream: socket.socket) -> None:
    with suppress(OSError):  # closed: the answer came at the last moment
        stream.shutdown(socket.SHUT_RDWR)


class PostgresBackend:
    """The `tidelog.ports.StateBackend` of ``postgresql://…``."""

    def normalize_url(self, url: str, base: Path) -> str:
        _split(url)
        return url

    def path(self, url: str) -> None:
        return None

    def exists(self, url: str) -> bool:
        register = RowRegister(url, _DOCUMENTS)
        try:
            return register.exists()
        finally:
            register.close()

    def store(self, url: str) -> Documents:
        return Documents(RowRegister(url, _DOCUMENTS))

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> LeaseElection:
        leases = Documents(RowRegister(url, _LEASES))
        return LeaseElection(leases, name, holder, ttl_s, first_epoch=first_epoch)


def _split(url: str) -> tuple[str, str, str]:
    """Return the connection string, the schema, and the part of the table. A table has a part for
    each of several databases. Raises ValueError, which shows nothing of the URL.
    """
    rest, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    schema, part = options.pop("schema", SCHEMA), options.pop("part", "")
    authority = rest.partition("://")[2].partition("/")[0]
    named = authority.rpartition("@")[2] or "host" in options
    if not rest.startswith("postgresql://") or not named:
        raise ValueError(_EXPECTED)
    if authority.count("@") > 1:
        raise ValueError("percent-encode special characters in user and password (@ is %40)")
    if not 0 < len(schema.encode()) < 64:
        raise ValueError("options.schema: expected a name of at most 63 bytes")
    try:
        given = conninfo_to_dict(f"{rest}?{urlencode(options)}" if options else rest)
    except psycopg.ProgrammingError:
        # libpq's message may quote half of a password.
        raise ValueError(f"{_EXPECTED}; options are those of libpq, and schema") from None
    application = {"application_name": "tidelog-state"}
    pinned = {"client_encoding": PINNED["client_encoding"]}
    return make_conninfo(**{**_PATIENCE, **application, **given, **pinned}), schema, part


def _where(conninfo: str) -> str:
    given = conninfo_to_dict(conninfo)
    return f"PostgreSQL at {given.get('host')}:{given.get('port') or 5432}"


BACKEND = PostgresBackend()
