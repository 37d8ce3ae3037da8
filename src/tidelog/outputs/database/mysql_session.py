"""Sessions of MySQL and MariaDB by PyMySQL: LOAD DATA LOCAL INFILE, or INSERT where it is off."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pymysql
from pymysql.connections import MySQLResult

from tidelog.codecs.mysql.flavor import Flavor, version_numbers
from tidelog.codecs.mysql.session_settings import TIMEOUTS, WRITES, set_statement
from tidelog.errors import OutputError, OutputRefusedError, TidelogError
from tidelog.model.mysql_urls import ServerUrl, ssl_context, unverified
from tidelog.outputs.database import texts
from tidelog.outputs.database.dialect import STILL_S, RowsRefusedError, with_plain_names
from tidelog.outputs.database.layout import SHAPE, VERSION, TableLayout
from tidelog.system.extras import missing_for_password

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    _Base = pymysql.connections.Connection[Cursor]  # generic in its type stubs alone
else:
    _Base = pymysql.connections.Connection

_IDLE_S = TIMEOUTS["wait_timeout"]
# Whatever the server's defaults: neither other rows nor none at all.
_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
_LONG_KEYS_SINCE = (8, 1)  # 8.0's temporary tables of an UPDATE take 1024 bytes of the key
_RENAMES_SINCE = {Flavor.MYSQL: (8, 0, 3), Flavor.MARIADB: (10, 5, 2)}
_SHORTER = ": the key's columns are too long for this server; see docs/outputs/mysql.md, Types"
_LOCK_S = 600
_CHUNK = 1 << 18
_STATEMENT_BYTES = 1 << 20


class MySqlSession:
    """`tidelog.outputs.database.dialect.DatabaseSession`.

    Attributes:
        key_collation: compares texts of keys by their bytes; where the server has one, without
            taking trailing spaces away.
        long_keys: can rows be updated whose key's columns take more than 1024 bytes?
        folds_tables: are tables ``t`` and ``T`` one?
        renames_columns: does it know RENAME COLUMN?
    """

    def __init__(self, url: ServerUrl, purpose: str) -> None:
        context = ssl_context(url)
        options: dict[str, Any] = {} if context is None else {"ssl": context}
        if url.ssl_mode == "disabled":
            options["ssl_disabled"] = True
        self.product = "MySQL or MariaDB"  # until it has answered
        self._in_transaction = False
        self._locked: str | None = None
        self._local_infile = True
        try:
            self._connection = _LoadingConnection(
                host=url.host,
                port=url.port,
                unix_socket=url.unix_socket,
                user=url.user,
                password=url.password.encode(),  # PyMySQL would encode a text as Latin-1
                database=url.database or None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=url.connect_timeout_s,
                write_timeout=600,
                max_allowed_packet=1 << 30,
                local_infile=True,
                program_name=f"tidelog-{purpose}",
                **options,
            )
        except (pymysql.MySQLError, OSError, RuntimeError) as error:
            raise _failed(self.product, "can't connect", error) from None
        [(version,)] = self.rows("SELECT VERSION()")
        flavor, numbers = Flavor.of_version(version), version_numbers(version)
        self.product = flavor.product
        self.rows(set_statement(flavor, numbers, WRITES))
        self.rows(_TRANSACTIONS)
        found = self.rows(
            "SELECT @@local_infile, @@max_allowed_packet, (SELECT collation_name "
            "FROM information_schema.collations WHERE collation_name IN "
            "('utf8mb4_0900_bin', 'utf8mb4_nopad_bin') LIMIT 1), @@lower_case_table_names"
        )
        self._local_infile, packet, collation, folds = found[0]
        self.folds_tables = bool(folds)
        self.renames_columns = numbers >= _RENAMES_SINCE[flavor]
        self.long_keys = flavor is Flavor.MARIADB or numbers >= _LONG_KEYS_SINCE
        self._statement_bytes = min(_STATEMENT_BYTES, packet // 2)
        self.key_collation = collation or "utf8mb4_bin"

    @property
    def usable(self) -> bool:
        return bool(self._connection.open) and not self._in_transaction

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(with_plain_names(sql) if arguments else sql, arguments or None)
                return list(cursor.fetchall())
        except (pymysql.MySQLError, OSError) as error:
            raise _failed(self.product, sql.split(" ", 1)[0], error) from None

    def holds_text(self, text: str) -> bool:
        return True

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        written = [texts.text(column) for column in rows.columns]
        binary = [pa.types.is_binary(column.type) for column in rows.columns]
        names = ["`" + name.replace("`", "``") + "`" for name in columns]
        try:
            if self._local_infile:
                self._load_lines(table, names, binary, written)
            else:
                head = f"INSERT INTO {table} ({', '.join(names)}) VALUES ".encode()
                for values in texts.tuples(written, binary, self._statement_bytes):
                    self._connection.query(head + values)
        except (pymysql.MySQLError, OSError) as error:
            raise _failed(self.product, "LOAD DATA", error) from None

    def _load_lines(
        self, table: str, names: Sequence[str], binary: Sequence[bool], written: list[pa.Array]
    ) -> None:
        listed = [f"@b{n}" if binary[n] else name for n, name in enumerate(names)]
        decoded = [f"{name} = UNHEX(@b{n})" for n, name in enumerate(names) if binary[n]]
        end = f" SET {', '.join(decoded)}" if decoded else ""
        loaded = self._connection.load(
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 "
            f"({', '.join(listed)}){end}",
            texts.lines(written),
        )
        # LOCAL makes warnings of what are errors, and passes over rows whose key is there.
        if loaded.warning_count or loaded.affected_rows != len(written[0]):
            warnings = self.rows("SHOW WARNINGS LIMIT 1")
            raise RowsRefusedError(_named(warnings[0][1]) if warnings else "duplicate key")

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        listed = ", ".join(
            "`" + name.replace("`", "``") + f"` {layout.types[name]} NULL" for name in columns
        )
        own = layout.own.replace("`", "``")
        name = f"`{own}`.`stage_{hashlib.sha256(listed.encode()).hexdigest()[:16]}`"
        self.rows(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} "
            f"({listed}, {VERSION} bigint NULL, {SHAPE} smallint NULL, "
            # Servers may require a key of every table (sql_require_primary_key).
            "_tidelog_row bigint NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB"
        )
        self.rows(f"DELETE FROM {name}")
        # DELETE with an alias is only understood in the table's own database.
        self.rows("USE `" + layout.namespace.replace("`", "``") + "`")
        return name

    def alone(self, name: str) -> None:
        lock = f"tidelog {hashlib.sha256(name.encode()).hexdigest()[:40]}"
        if self.rows("SELECT GET_LOCK(%s, %s)", (lock, _LOCK_S))[0][0] != 1:
            raise OutputError(f"{self.product}: a duplicate of this task holds its lock")
        self._locked = lock

    def begin(self) -> None:
        self.rows(f"SET wait_timeout = {STILL_S}")
        self.rows("START TRANSACTION")
        self._in_transaction = True

    def commit(self) -> None:
        self.rows("COMMIT")
        self._in_transaction = False
        if self._locked is not None:
            self.rows("SELECT RELEASE_LOCK(%s)", (self._locked,))
            self._locked = None
        self.rows(f"SET wait_timeout = {_IDLE_S}")  # not before it lets go of all

    def close(self) -> None:
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._connection.close()


class _LoadingConnection(_Base):
    """Sends what `load` was given, and never the file that a server asks for."""

    _rows: memoryview | None = None

    def load(self, sql: str, rows: memoryview) -> MySQLResult:
        self._rows = rows
        try:
            self.query(sql)
        finally:
            self._rows = None
        assert self._result is not None
        return self._result

    def _read_query_result(self, unbuffered: bool = False) -> int:
        if self._rows is None:
            return int(super()._read_query_result(unbuffered) or 0)  # type: ignore[misc]
        result = _LoadResult(self, self._rows)
        self._result = result
        result.read()
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        """PyMySQL asks for one; without options it would load the system's authorities each time,
        and then look at no certificate.
        """
        return sslp if isinstance(sslp, ssl.SSLContext) else unverified()


class _LoadResult(MySQLResult):
    def __init__(self, connection: _LoadingConnection, rows: memoryview) -> None:
        super().__init__(connection)
        self._lines = rows

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        for start in range(0, len(self._lines), _CHUNK):
            connection.write_packet(self._lines[start : start + _CHUNK].tobytes())
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # type: ignore[attr-defined]


# Error numbers (manuals, "Server Error Message Reference"), by name.
_OF_VALUES = {
    1048: "null where none may be",
    1062: "duplicate key",
    1264: "out of range",
    1265: "does not fit its type",
    1292: "not of its type",
    1366: "not of its type or character set",
    1406: "too long",
    1411: "not of its type",
    1451: "foreign key",
    1452: "foreign key",
    1526: "no partition for it",
    1690: "out of range",
    3140: "not valid JSON",
    3819: "check constraint",
    4025: "check constraint",
}
_OF_RIGHTS_AND_NAMES = (
    1044, 1045, 1046, 1049, 1050, 1054, 1059, 1060, 1064, 1071, 1074, 1102, 1103, 1118, 1142, 1143,
    1146, 1148, 1149, 1166, 1227, 1665, 1698, 1819, 3948,
)  # fmt: skip


_KEY_TOO_LONG = 1071


def _named(code: int) -> str:
    return f"{_OF_VALUES.get(code, 'not accepted')} ({code})"


def _failed(product: str, what: str, error: Exception) -> TidelogError:
    """Ours, without cell values: of errors of values the kind alone."""
    if missing := missing_for_password(str(error)):
        return missing
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code in _OF_VALUES:
        return RowsRefusedError(_named(code))
    said = error.args[1] if len(error.args) > 1 else type(error).__name__
    text = f"{product}: {what}: {said}" + (f" ({code})" if code else "")
    if code == _KEY_TOO_LONG:
        text += _SHORTER
    return OutputRefusedError(text) if code in _OF_RIGHTS_AND_NAMES else OutputError(text)
