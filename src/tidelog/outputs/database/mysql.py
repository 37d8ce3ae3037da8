"""The dialect of MySQL and MariaDB: column types, and UPDATE plus INSERT of missing rows.

Not INSERT … ON DUPLICATE KEY UPDATE, which takes a row for the same if any unique index does.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pymysql
from pymysql.connections import MySQLResult

from tidelog.codecs.columns import times
from tidelog.codecs.mysql.cell_text import charset_texts
from tidelog.codecs.mysql.flavor import (
    TIMEOUT_SETTINGS,
    WRITE_SETTINGS,
    Flavor,
    set_statement,
    version_numbers,
)
from tidelog.codecs.mysql.server_urls import ServerUrl, parse_url, ssl_context, unverified_context
from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import ConfigError, OutputError, OutputRefusedError, TidelogError
from tidelog.model.schema import Column, TableSchema, backticked
from tidelog.outputs.database import dialect, texts
from tidelog.outputs.database.dialect import (
    DELETED,
    SHAPE,
    STILL_S,
    VERSION,
    FoundColumn,
    FoundTargetTable,
    RowsRefusedError,
    TableLayout,
    with_digits,
    with_plain_names,
)
from tidelog.system.extras import missing_for_password

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    _Base = pymysql.connections.Connection[Cursor]  # generic in its type stubs alone
else:
    _Base = pymysql.connections.Connection

_IDLE_S = TIMEOUT_SETTINGS["wait_timeout"]
# Independent of the server's defaults, which may show other rows or allow no writes.
_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
_LONG_KEYS_SINCE = (8, 1)  # 8.0's temporary tables of an UPDATE allow 1024 bytes of the key
_RENAMES_SINCE = {Flavor.MYSQL: (8, 0, 3), Flavor.MARIADB: (10, 5, 2)}
_SHORTER = ": the key's columns are too long for this server; see docs/outputs/mysql.md, Types"
_LOCK_S = 600
_CHUNK = 1 << 18
_STATEMENT_BYTES = 1 << 20


class MySqlSession:
    """`tidelog.outputs.database.dialect.DatabaseSession` of MySQL or MariaDB.

    Attributes:
        key_collation: compares texts of keys by their bytes; if the server has one, without
            removing trailing spaces.
        long_keys: whether rows can be updated whose key's columns take more than 1024 bytes.
        folds_tables: whether tables ``t`` and ``T`` are the same.
        renames_columns: whether it supports RENAME COLUMN.
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
        self.rows(set_statement(flavor, numbers, WRITE_SETTINGS))
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
        names = [backticked(name) for name in columns]
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
        # LOCAL turns errors into warnings, and skips rows whose key exists.
        if loaded.warning_count or loaded.affected_rows != len(written[0]):
            warnings = self.rows("SHOW WARNINGS LIMIT 1")
            raise RowsRefusedError(_named(warnings[0][1]) if warnings else "duplicate key")

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        listed = ", ".join(f"{backticked(name)} {layout.types[name]} NULL" for name in columns)
        number = hashlib.sha256(listed.encode()).hexdigest()[:16]
        name = backticked(layout.own, f"stage_{number}")
        self.rows(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} "
            f"({listed}, {VERSION} bigint NULL, {SHAPE} smallint NULL, "
            # Servers may require a key of every table (sql_require_primary_key).
            "_tidelog_row bigint NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB"
        )
        self.rows(f"DELETE FROM {name}")
        # DELETE with an alias only works in the table's own database.
        self.rows(f"USE {backticked(layout.namespace)}")
        return name

    def lock(self, name: str) -> None:
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
        self.rows(f"SET wait_timeout = {_IDLE_S}")  # not before all locks are released

    def close(self) -> None:
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._connection.close()


class _LoadingConnection(_Base):
    """Sends the rows given to `load`, and never the file that a server requests."""

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
        """PyMySQL calls this; without options it would load the system's authorities each time, and
        then check no certificate.
        """
        return sslp if isinstance(sslp, ssl.SSLContext) else unverified_context()


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
    1644: "a trigger's SIGNAL",
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
    """Return our error, without cell values: for errors of values only the kind."""
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


_TYPES = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    "timestamp[us]": "datetime(6)",
    "timestamp[us, tz=UTC]": "datetime(6)",
    "binary": "longblob",
    "string": "longtext CHARACTER SET utf8mb4",
}
# Source's types, by kind of source → ours, which parse that very text.
_EXACT: Mapping[str, Mapping[str, str]] = {
    "postgres": {
        "uuid": "varchar(36) CHARACTER SET utf8mb4",
        "time without time zone": "time(6)",
    },
    "mysql": {
        "json": "json",
        "time": "time(6)",
        "timestamp": "timestamp(6)",
        "bigint unsigned": "bigint unsigned",
    },
}
# A column's type → Arrow types all of whose values it stores; for any other type, only text.
_INTEGERS = ("bool", "int8", "int16", "int32", "int64")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "tinyint": _INTEGERS[:2],
    "smallint": _INTEGERS[:3],
    "mediumint": _INTEGERS[:3],
    "int": _INTEGERS[:4],
    "bigint": _INTEGERS,
    "float": (*_INTEGERS[:3], "float"),
    "double": (*_INTEGERS[:4], "float", "double"),
    "decimal": ("string",),
    "date": ("date32[day]",),
    "datetime": ("date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]"),
    "timestamp": ("timestamp[us]", "timestamp[us, tz=UTC]"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ("binary",)
    ),
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_KEY_LENGTH, _LONGEST_KEY = 255, 768  # characters: of a key's texts; 3072 bytes an index
_LONG_KEYS, _SHORT_KEYS = 740, 240  # of all texts of a key beside other columns; of 1024 bytes
_MAX_SCALE = 30
_NAME_LENGTH = 64

_TABLE = """
SELECT table_type, engine, (SELECT MIN(constraint_name) FROM information_schema.key_column_usage k
  WHERE k.referenced_table_name IS NOT NULL
  AND ((k.table_schema = t.table_schema AND k.table_name = t.table_name)
    OR (k.referenced_table_schema = t.table_schema AND k.referenced_table_name = t.table_name)))
FROM information_schema.tables t WHERE table_schema = %s AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, column_type, data_type, is_nullable, column_default, extra, character_set_name,
  collation_name
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""


@dataclass(frozen=True)
class MySql:
    """`tidelog.outputs.database.dialect.Dialect` of MySQL and MariaDB; ``url`` as
    `tidelog.codecs.mysql.server_urls` reads it.
    """

    url: str = field(repr=False)
    share_lock = "LOCK IN SHARE MODE"
    version_type = "bigint"
    ignores_case = True
    exact_text = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    own_values = ""
    texts = _TEXTS
    digits = 0

    def key_as_text(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        if not wire_format(source).has_invalid_dates:
            return rows
        for name in key:
            values = rows.column(name)
            if pa.types.is_temporal(values.type) and times.any_invalid_date(values):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, times.texts_with_invalid_dates(values))
        return rows

    def connect(self, purpose: str) -> MySqlSession:
        try:
            return MySqlSession(parse_url(self.url), purpose)
        except ConfigError as error:
            raise ConfigError(str(error).replace("source.url", "the output's url")) from None

    def quoted(self, *names: str) -> str:
        return backticked(*names)

    def type_of(
        self,
        session: MySqlSession,
        field: pa.Field,
        source: Column | None,
        kind: str,
        *,
        key: Sequence[pa.Field],
    ) -> str | None:
        named = "" if source is None else source.type_name.lower()
        bare = re.sub(r"\([^)]*\)", "", named).strip()
        exact = _EXACT.get("mysql" if kind == "mariadb" else kind, {}).get(bare)
        if exact is not None:
            return exact
        field = with_digits(field, source)
        if pa.types.is_decimal(field.type):
            if field.type.scale <= _MAX_SCALE:
                return f"decimal({field.type.precision},{field.type.scale})"
            return "varchar(100) CHARACTER SET utf8mb4"
        if key and (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            length = re.search(r"\((\d+)\)", named)
            wanted = int(length[1]) if length else 0
            if len(key) == 1 and source is not None and kind in ("mysql", "mariadb"):
                wanted = max(wanted, charset_texts.longest_exact_text(source))
            size = _key_length(wanted, key, long=session.long_keys)
            if pa.types.is_binary(field.type):
                return f"varbinary({size})"
            return f"varchar({size}) CHARACTER SET utf8mb4 COLLATE {session.key_collation}"
        return _TYPES.get(str(field.type))

    def holds(self, base: str, sql_type: str, field: pa.Field) -> bool:
        if base in _TEXTS:
            return not pa.types.is_binary(field.type)
        numbers = [int(each) for each in re.findall(r"\d+", sql_type)]
        if base == "decimal":
            precision, scale = numbers[0], numbers[1]
            kind = field.type
            if pa.types.is_decimal(kind):
                fits = scale >= kind.scale and precision - scale >= kind.precision - kind.scale
                return bool(fits)
            if pa.types.is_integer(kind):
                return precision - scale >= len(str(2 ** (kind.bit_width - 1)))
        if base == "bigint" and "unsigned" in sql_type and str(field.type) == "decimal128(20, 0)":
            return True
        return str(field.type) in _TAKES.get(base, ("string",))

    def folds_tables(self, session: MySqlSession) -> bool:
        return session.folds_tables

    def name_fault(self, session: MySqlSession, name: str) -> str | None:
        """See the manual, "Schema Object Names"."""
        if len(name) > _NAME_LENGTH:
            return f"has more than {_NAME_LENGTH} characters, which {session.product} refuses"
        if name.endswith(" "):
            return f"ends in a space, which {session.product} refuses"
        if any(character > "\uffff" for character in name):
            return f"has characters beyond U+FFFF, which {session.product} refuses in names"
        return None

    def default_namespace(self, session: MySqlSession) -> str:
        found = parse_url(self.url).database
        if not found:
            raise ConfigError(
                "a step routes a table to a name without a database, and neither the output's url "
                "nor its `database` names one"
            )
        return found

    def create_namespace(self, session: MySqlSession, name: str) -> None:
        known = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        if not session.rows(known, (name,)):
            quoted = self.quoted(name)
            session.rows(f"CREATE DATABASE IF NOT EXISTS {quoted} CHARACTER SET utf8mb4")

    def find_table(
        self, session: MySqlSession, namespace: str, name: str
    ) -> FoundTargetTable | None:
        table = session.rows(_TABLE, (namespace, name))
        if not table:
            return None
        kind, engine, foreign_key = table[0]
        obstacle = None
        if kind != "BASE TABLE":
            obstacle = "is no table but another kind of relation"
        elif engine.lower() != "innodb":
            obstacle = f"is of the engine {engine}; only InnoDB has the transactions that we need"
        elif foreign_key is not None:
            obstacle = (
                f"is part of the foreign key {foreign_key}, which rows that come in another order "
                "than in the source would break. Drop it, and create it again when the output has "
                "ended"
            )
        unique: dict[str, tuple[str, ...]] = {}
        special = set()
        for index, column, part in session.rows(_UNIQUE, (namespace, name)):
            unique[index] = (*unique.get(index, ()), column)
            if column is None or part is not None:
                special.add(index)
        return FoundTargetTable(
            tuple(
                _column(session.key_collation, *row)
                for row in session.rows(_COLUMNS, (namespace, name))
            ),
            tuple(() if index in special else columns for index, columns in unique.items()),
            obstacle,
        )

    def rename(self, session: MySqlSession, column: FoundColumn, name: str) -> str:
        former, wanted = self.quoted(column.name), self.quoted(name)
        if session.renames_columns:
            return f"RENAME COLUMN {former} TO {wanted}"
        null = "NOT NULL" if column.needed else "NULL"
        return f"CHANGE COLUMN {former} {wanted} {column.sql_type} {null}"

    def widen(self, column: str, sql_type: str) -> str:
        return f"MODIFY COLUMN {column} {sql_type}"

    def convert(self, column: str, base: str, sql_type: str) -> str:
        return self.widen(column, sql_type)

    def upsert(self, layout: TableLayout, present: Sequence[str], stage: str) -> list[str]:
        table = self.quoted(layout.namespace, layout.name)
        tombstones = self.quoted(layout.own, layout.deleted_keys)
        whole = f"s.{SHAPE} = {dialect.WHOLE}"
        changes = dialect.assignments(self, [name for name in present if name not in layout.key])
        columns = [*(self.quoted(name) for name in present), VERSION]
        values = [f"s.{name}" for name in columns]
        if layout.soft:
            changes.append((DELETED, "false"))
            columns.append(DELETED)
            values.append("false")
        return [
            self.update(layout, changes, stage, f"{whole} AND {dialect.NEWER}"),
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM {stage} s LEFT JOIN {table} t ON {dialect.same_key(self, layout, 't', 's')} "
            f"LEFT JOIN {tombstones} g ON {dialect.same_key(self, layout, 'g', 's')} "
            f"WHERE {whole} AND t.{self.quoted(layout.key[0])} IS NULL "
            f"AND (g.{VERSION} IS NULL OR g.{VERSION} <= s.{VERSION})",
        ]

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        listed = ", ".join(f"t.{name} = {value}" for name, value in changes)
        return f"UPDATE {self._joined(layout, stage)} SET {listed} WHERE {where}"

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        return f"DELETE t FROM {self._joined(layout, stage)} WHERE {where}"

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        key = ", ".join(self.quoted(name) for name in layout.key)
        return (
            f"INSERT INTO {self.quoted(layout.own, layout.deleted_keys)} ({key}, {VERSION}) "
            f"SELECT {key}, {VERSION} FROM {stage} s WHERE {SHAPE} = {dialect.DELETE} "
            f"ON DUPLICATE KEY UPDATE {VERSION} = "
            f"GREATEST({self.quoted(layout.deleted_keys)}.{VERSION}, s.{VERSION})"
        )

    def _joined(self, layout: TableLayout, stage: str) -> str:
        """Return the stage joined to the table, in this order: the stage is small and has no
        index, the table is searched by key.
        """
        table = self.quoted(layout.namespace, layout.name)
        return f"{stage} s STRAIGHT_JOIN {table} t ON {dialect.same_key(self, layout, 't', 's')}"


def _key_length(wanted: int, key: Sequence[pa.Field], *, long: bool) -> int:
    """Return the characters for a text or bytes column of the key; all of its columns must fit an
    index.
    """
    several: int = sum(pa.types.is_string(f.type) or pa.types.is_binary(f.type) for f in key)
    if not long:
        return _KEY_LENGTH if len(key) == 1 else _SHORT_KEYS // several
    if several > 2:
        return min(_KEY_LENGTH, _LONG_KEYS // several)
    most = _LONGEST_KEY if len(key) == 1 else _LONG_KEYS - (several - 1) * _KEY_LENGTH
    return max(_KEY_LENGTH, min(most, wanted))


def _column(
    best: str, name: str, sql_type: str, base: str, nullable: str, default: str | None, extra: str,
    charset: str | None, collation: str | None,
) -> FoundColumn:  # fmt: skip
    if charset is not None:
        sql_type += f" CHARACTER SET {charset} COLLATE {collation}"
    extra = extra.lower()
    # MySQL 8 says "DEFAULT_GENERATED" for an expression that is a default.
    computed = "generated" in extra.replace("default_generated", "")
    given = default is not None or "auto_increment" in extra or "default_generated" in extra
    needed = nullable == "NO" and not given and not computed
    alike = collation is not None and not collation.endswith("_bin")
    # A server whose best collation pads has none that distinguishes such texts.
    padded = collation is not None and (base.lower() == "char" or _pads(collation))
    padded = padded and not _pads(best)
    return FoundColumn(name, sql_type, base.lower(), needed, computed, alike, padded)


def _pads(collation: str) -> bool:
    """Does the collation ignore trailing spaces?"""
    return re.search(r"_(0900|nopad)_", collation) is None and collation != "binary"
