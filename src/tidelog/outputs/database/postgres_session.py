"""Sessions of PostgreSQL by psycopg: COPY."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.errors import ConfigError, OutputError, OutputRefusedError, TidelogError
from tidelog.model.postgres_settings import PINNED, set_statements
from tidelog.outputs.database.dialect import STILL_S, RowsRefusedError, with_plain_names
from tidelog.outputs.database.layout import SHAPE, VERSION, TableLayout

_SETTINGS: Mapping[str, str] = {
    "lock_timeout": "20s",
    "temp_buffers": "32MB",
    "client_min_messages": "error",
}
_COPY_S = 600
_DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class PostgresSession:
    """`tidelog.outputs.database.dialect.DatabaseSession`."""

    product = "PostgreSQL"

    def __init__(self, url: str, purpose: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise ConfigError(
                "the output's url is not a valid PostgreSQL connection string: expected "
                "postgresql://user:password@host:port/database, with special characters in the "
                "password percent-encoded (@ is %40, / is %2F)"
            ) from None
        named: dict[str, Any] = {
            "application_name": f"tidelog-{purpose}",
            "client_encoding": PINNED["client_encoding"],
        }
        info = make_conninfo(**{**_DEFAULTS, **given, **named})
        try:
            self._connection = psycopg.connect(info, autocommit=True, prepare_threshold=None)
            version = self._connection.info.server_version
            idle = {"idle_in_transaction_session_timeout": f"{STILL_S}s"}
            self._connection.execute(set_statements({**_SETTINGS, **idle}, version))
        except psycopg.Error as error:
            raise _failed("can't connect", error) from None

    @property
    def usable(self) -> bool:
        return self._connection.info.transaction_status == pq.TransactionStatus.IDLE

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            statement = with_plain_names(sql) if arguments else sql
            cursor = self._connection.execute(statement.encode(), arguments or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise _failed(sql.split(" ", 1)[0], error) from None

    def holds_text(self, text: str) -> bool:
        """Can the database's encoding hold it?"""
        try:
            self.rows("SELECT %s", (text,))
        except RowsRefusedError:
            return False
        return True

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        from tidelog.outputs.database import texts  # compiled kernels, for who writes alone

        written = []
        for column in rows.columns:
            text = texts.text(column)
            if pa.types.is_binary(column.type):
                text = texts.prefixed("\\\\x", text)
            written.append(text)
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        try:
            # Who waits for rows is not idle to the server.
            self._connection.execute(f"SET LOCAL statement_timeout = '{_COPY_S}s'".encode())
            with (
                self._connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy,
            ):
                copy.write(texts.lines(written))
            self._connection.execute(b"SET LOCAL statement_timeout = 0")
        except psycopg.Error as error:
            raise _failed("COPY", error) from None

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        listed = ", ".join(
            '"' + name.replace('"', '""') + f'" {layout.types[name]}' for name in columns
        )
        number = hashlib.sha256(listed.encode()).hexdigest()[:16]
        name = f"pg_temp.tidelog_{number}"
        self.rows(
            f"CREATE TEMP TABLE IF NOT EXISTS tidelog_{number} "
            f"({listed}, {VERSION} bigint, {SHAPE} smallint) ON COMMIT DELETE ROWS"
        )
        return name

    def alone(self, name: str) -> None:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        self.rows("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (number,))

    def begin(self) -> None:
        self.rows("BEGIN")

    def commit(self) -> None:
        self.rows("COMMIT")

    def close(self) -> None:
        self._connection.close()


# SQLSTATE classes (manual, "PostgreSQL Error Codes").
_TOO_LONG = "54000"  # of an index's key or a page
_READ_ONLY = "25006"
_OF_VALUES = ("22", "23", _TOO_LONG)
_OF_RIGHTS_AND_NAMES = ("0A", "28", "3D", "3F", "42")


def _failed(what: str, error: psycopg.Error) -> TidelogError:
    """Ours, without cell values: of errors of values the name alone."""
    state = error.sqlstate or ""
    if state.startswith(_OF_VALUES):
        where = [
            f"{part} {name}"
            for part, name in (
                ("column", error.diag.column_name),
                ("constraint", error.diag.constraint_name),
            )
            if name
        ]
        kind = "too long" if state == _TOO_LONG else type(error).__name__
        return RowsRefusedError(" ".join([f"{kind} ({state})", *where]))
    said = error.diag.message_primary or (str(error).strip() if not state else "")
    text = f"PostgreSQL: {what}: {said or type(error).__name__}"
    if state.startswith(_OF_RIGHTS_AND_NAMES):
        return OutputRefusedError(text)
    # libpq says in words alone why a connection failed.
    if not state and re.search(r"authentication failed|does not exist|no pg_hba", said):
        return OutputRefusedError(text)
    if state == _READ_ONLY:
        text += (
            ". It is a standby, or default_transaction_read_only is on for the database, the role "
            "or the server: rows are brought over once it is not"
        )
    return OutputError(text)
