"""Builds table schemas from ``information_schema``, and checks whether a table map fits them.

Chunks and the log build schemas in the same way, so that both write records of one schema version.
A table map alone gives a schema only with ``binlog_row_metadata=FULL``; see
`tidelog.sources.mysql.stream.log_schemas` for what is known at which time.

Labels of ENUM and SET: ``information_schema`` is in utf8mb3, which has no characters beyond U+FFFF;
it shows question marks, and SHOW CREATE TABLE shows no more. So a query stores numbers in a value
of the same type and converts them to text. In MySQL this value is a column of a recursive query,
whose type comes from the non-recursive parts of the union. MariaDB cuts a SET to eight labels
there, so it uses a variable. The query reads no row and needs only the SELECT right. MySQL 8.0,
MariaDB 10.3 and later support it.

Row hashes: MariaDB implements a unique key over a TEXT or BLOB, or one ``USING HASH``, as an index
of a number that it computes for each row: a column ``DB_ROW_HASH_1``, ``DB_ROW_HASH_2`` … at the
row's end, BIGINT UNSIGNED NULL. The catalogue hides these columns; the binlog's table maps and rows
hold them (``add_hash_field`` in MariaDB's ``sql_table.cc``). They are left out of the event log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapMetadata, TableMapSeen
from tidelog.codecs.mysql.cell_text.charset_texts import CHARSETS_WITH_SURROGATES, decode_text
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import OLD_FRACTIONS, WIRE_FORMAT, binlog_column, column_of_map
from tidelog.errors import SourceBusyError, SourceError, UnsupportedTableError
from tidelog.model.patterns import exclusion
from tidelog.model.schema import Column, TableName, TableSchema, backticked
from tidelog.sources.mysql.connect import Connection, text_of
from tidelog.sources.mysql.errors import PARSE_ERROR, number_of
from tidelog.sources.mysql.preflight.account import Grants
from tidelog.sources.table_settings import (
    ColumnExclusion,
    settings_version,
    surrogate_key,
    unfit_key,
)

# Labels of ENUM and SET.

_BEYOND = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
"""Character sets with characters that the catalogue can't show."""
_AT_ONCE = 100
"""Labels per query: MySQL's stack holds a union of about a thousand."""
# MySQL 8.0.12 takes the column's type only if the NULL comes first.
_LABELS_QUERY = """
WITH RECURSIVE labels (n, label) AS (
  SELECT -1, NULL UNION ALL SELECT -1, {column} FROM {table} WHERE FALSE
  UNION ALL SELECT asked.n, asked.v FROM labels JOIN ({numbers}) asked WHERE labels.n < 0
) SELECT n, CAST(CONVERT(label USING utf8mb4) AS BINARY) FROM labels WHERE n >= 0 ORDER BY n
"""

_VARIABLE = """
BEGIN NOT ATOMIC
  DECLARE tidelog_label TYPE OF {column};
  DECLARE tidelog_told LONGTEXT CHARACTER SET ascii DEFAULT '';
  {steps}
  SELECT tidelog_told;
END
"""
_STEP = """SET tidelog_label = {number};
  SET tidelog_told = CONCAT(tidelog_told, HEX(CONVERT(tidelog_label USING utf8mb4)), ',');"""

_LABELS_UNKNOWN = (
    "the column {} has labels with a question mark, which may stand for characters that the "
    "server's catalogue can't show, and this version of the server can't return. Give it labels "
    "without such characters and question marks, upgrade the server (MySQL 8.0, MariaDB 10.3), or "
    "{}"
)


def labels_may_be_wrong(column: Column) -> bool:
    """Return True if a question mark in the catalogue may stand for another character."""
    if column.type_id not in (types.ENUM, types.SET):
        return False
    return charset_of(types.collation(column)) in _BEYOND and "?" in column.type_name


def read_labels(connection: Connection, table: TableName, column: Column) -> Column | None:
    """The column with its true labels; None if the column has changed.

    Args:
        connection: a session that may SELECT from the table.
        table: the column's table.
        column: the column as the catalogue shows it.

    Raises PyMySQL's errors; UnsupportedTableError if the server is too old to show the labels.
    """
    if not labels_may_be_wrong(column):
        return column
    shown = types.labels(column)
    doubtful = [place for place, label in enumerate(shown) if "?" in label]
    labels = list(shown)
    for at in range(0, len(doubtful), _AT_ONCE):
        some = doubtful[at : at + _AT_ONCE]
        try:
            label_bytes = _label_texts(connection, table, column, some)
        except pymysql.MySQLError as error:
            if number_of(error) in (ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR):
                return None
            if number_of(error) == PARSE_ERROR:
                raise UnsupportedTableError(
                    table, _LABELS_UNKNOWN.format(_quoted_column(column), exclusion(table))
                ) from None
            raise
        for place, label in zip(some, map(text_of, label_bytes), strict=True):
            if shown[place] != _as_in_catalogue(label):
                return None
            labels[place] = label
    return replace(column, type_name=types.text_of_labels(column, labels))


def check_key(connection: Connection, table: TableName, schema: TableSchema) -> None:
    """Refuse a key with an ENUM or SET column whose labels have the same text, or hold surrogates,
    whose text differs between log and dump. Raises PyMySQL's errors, UnsupportedTableError.
    """
    for column in schema.columns:
        if column.name not in schema.match_key or column.type_id not in (types.ENUM, types.SET):
            continue
        labels = types.labels(column)
        alike = len(set(labels)) < len(labels)
        if alike or _has_surrogates(connection, table, column):
            raise UnsupportedTableError(
                table,
                f"its key has the column {_quoted_column(column)}, some labels of which are alike "
                "as Unicode, or have no text there. Rows of several keys would become one. Give it "
                f"other labels, or {exclusion(table)}",
            )


def _has_surrogates(connection: Connection, table: TableName, column: Column) -> bool:
    if charset_of(types.collation(column)) not in CHARSETS_WITH_SURROGATES:
        return False
    places = [place for place, label in enumerate(types.labels(column)) if "?" in label]
    for at in range(0, len(places), _AT_ONCE):
        try:
            for label in _label_texts(connection, table, column, places[at : at + _AT_ONCE]):
                label.decode()
        except UnicodeDecodeError:
            return True
    return False


def _label_texts(
    connection: Connection, table: TableName, column: Column, places: Sequence[int]
) -> list[bytes]:
    """The labels at these positions of the column's list, in order, as UTF-8."""
    is_set = column.type_id == types.SET
    numbers = [f"1 << {place:d}" if is_set else f"{place + 1:d}" for place in places]
    where = (table.namespace, table.name)
    if connection.flavor is Flavor.MARIADB:
        steps = "\n  ".join(_STEP.format(number=number) for number in numbers)
        names = backticked(*where, column.name)
        digits = connection.value(_VARIABLE.format(column=names, steps=steps))
        return [bytes.fromhex(label) for label in str(digits).split(",")[:-1]]
    asked = (f"SELECT {n:d} AS n, {number} AS v" for n, number in enumerate(numbers))
    rows = connection.rows(
        _LABELS_QUERY.format(
            column=backticked(column.name),
            table=backticked(*where),
            numbers=" UNION ALL ".join(asked),
        )
    )
    return [bytes(label) for _, label in rows]


def _as_in_catalogue(label: str) -> str:
    """The label as the catalogue shows it."""
    return "".join("?" if character > "\uffff" else character for character in label)


def _quoted_column(column: Column) -> str:
    return f"{backticked(column.name)} {column.type_name}"


# Schemas.

RELATION_ID = 0  # a table map's id changes whenever the server opens the table again

_COLUMNS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_OCTET_LENGTH, COLLATION_NAME,
  IS_NULLABLE = 'YES'
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
ORDER BY ORDINAL_POSITION
"""
_TABLE = """
SELECT TABLE_TYPE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
# As a subquery of the one above it takes five times as long on MySQL.
_COLUMN_GRANTS = """
SELECT 1 FROM information_schema.COLUMN_PRIVILEGES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s LIMIT 1
"""
_KEY = """
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
# COLUMN_NAME is NULL for a key part that is an expression (MySQL 8.0.13 and later).
_EXPRESSIONS = """
SELECT INDEX_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_NAME IS NULL ORDER BY 1
"""
_HIDDEN = "!hidden!"  # the prefix of hidden columns' names in later versions
# Only this table has the ids of MariaDB's contextual collations (uca1400).
_COLLATIONS = {
    Flavor.MYSQL: ("SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS",),
    Flavor.MARIADB: (
        "SELECT FULL_COLLATION_NAME, ID "
        "FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
        "SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS",
    ),
}
_ATTEMPTS = 3
_MARIADB_FULL_NAMES = (10, 10)


SHOW_COLUMNS = ("SELECT", "INSERT", "UPDATE", "REFERENCES")
"""On a table, each shows all of its columns; on single columns, these alone."""


def check_all_columns_shown(connection: Connection, table: TableName) -> None:
    """Refuse a table of which the account may not see all columns: the log's rows have them.
    Raises UnsupportedTableError.
    """
    place = (table.namespace, table.name)
    grants = Grants.of(connection)
    if grants.missing(SHOW_COLUMNS, *place) != list(SHOW_COLUMNS):
        return
    try:
        connection.rows(f"SELECT * FROM {backticked(*place)} LIMIT 0")  # noqa: S608 - quoted
    except pymysql.MySQLError as error:
        if number_of(error) not in (ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR):
            raise
        raise UnsupportedTableError(
            table,
            "the account has rights to single columns of it, so it may not see the others, and "
            "can't decode the log's rows",
            grants.statement(["REFERENCES"], *place) + "  -- shows all columns, not their values",
        ) from None


@dataclass(frozen=True, slots=True)
class MySqlFoundTable:
    """A table's schema. ``unfit``: why ``source.keys`` gives the table no key although a pattern
    matches it; None if all is well. ``has_primary_key``: table maps also name a unique key as the
    primary key of a table that has none.
    """

    schema: TableSchema
    unfit: str | None = None
    has_primary_key: bool = True


class MySqlSchemaFinder:
    """Builds schemas over the caller's connection; it has none of its own.

    Args:
        keys: by table pattern, the columns of a surrogate key for tables without a primary key.
        exclude_columns: patterns of columns that schemas lack (`ColumnExclusion`); upper and lower
            case do not differ in them.
    """

    def __init__(
        self,
        keys: Mapping[str, Sequence[str]] | None = None,
        exclude_columns: Sequence[str] = (),
    ) -> None:
        self.exclusion = ColumnExclusion.of(exclude_columns, ignore_case=True)
        self._keys = {pattern: tuple(columns) for pattern, columns in (keys or {}).items()}
        self.settings_version = settings_version(self.exclusion.patterns, self._keys)
        self._collations: dict[str, int] = {}

    def find(
        self, connection: Connection, table: TableName, *, called: TableName | None = None
    ) -> MySqlFoundTable | None:
        """The table's current schema; None if there is no such table that the account may read.

        Args:
            connection: its session decides what is visible.
            table: the table's current name.
            called: the name to write into the schema, if it is another one.

        Raises:
            UnsupportedTableError: a type is unknown, MariaDB keeps old versions of the rows, labels
                are unknown or can't be a key, a column of the key is excluded, or the account may
                not see all columns.
            SourceBusyError: the table changed while it was read.
            pymysql.MySQLError: the server's errors.
        """
        name = (table.namespace, table.name)
        kind = connection.row(_TABLE, name)
        if kind is None:
            return None
        if text_of(kind[0]) == "SYSTEM VERSIONED":
            raise UnsupportedTableError(
                table,
                "it is system-versioned: the log holds its old rows next to the current ones, with "
                "columns that information_schema does not show. Drop its old rows, or "
                f"{exclusion(table)}",
                f"ALTER TABLE {backticked(*name)} DROP SYSTEM VERSIONING;",
            )
        if connection.row(_COLUMN_GRANTS, name) is not None:
            check_all_columns_shown(connection, table)
        columns = self._columns(connection, table)
        if not columns:
            return None
        key = tuple(row[0] for row in connection.rows(_KEY, name))
        schema = self.schema(called or table, columns, key)
        check_key(connection, table, schema)
        names = schema.whole.column_names
        unfit = None if schema.key else unfit_key(self._keys, schema.table, names)
        return MySqlFoundTable(schema, unfit, bool(key))

    def schema(
        self, table: TableName, columns: Sequence[Column], primary_key: Sequence[str]
    ) -> TableSchema:
        """The schema of a table with these columns, also excluded ones; it has no key if
        ``source.keys`` does not fit. Raises UnsupportedTableError if a column of its key is
        excluded.
        """
        names = tuple(column.name for column in columns)
        whole = TableSchema(
            table=table,
            relation_id=RELATION_ID,
            columns=tuple(columns),
            key=tuple(primary_key) or self.surrogate(table, names),
            identity=names,
            identity_kind="f",
            wire_format=WIRE_FORMAT,
        )
        return self.exclusion.apply(whole)

    def schema_of_map(
        self,
        seen: TableMapSeen,
        flavor: Flavor,
        like: TableSchema | None,
        *,
        primary_key: bool = True,
    ) -> TableSchema | None:
        """The schema of a table map with FULL metadata; None if it has MINIMAL. ``like``: another
        version of the table; see `column_of_map`. ``primary_key``: it may have one.
        """
        metadata = seen.metadata
        if metadata.names is None:
            return None
        table = TableName(seen.database, seen.table)
        known = {} if like is None else {column.name: column for column in like.whole.columns}
        columns = []
        for i, name in enumerate(metadata.names):
            collation = _collation(metadata, i)
            if flavor is Flavor.MARIADB and seen.types[i] in OLD_FRACTIONS and name not in known:
                raise types.UnknownTypeError(
                    f"column {name} has MariaDB's old temporal format, and the log does not "
                    "contain the number of its fraction's digits"
                )
            columns.append(
                column_of_map(
                    name,
                    seen.types[i],
                    seen.metas[i],
                    unsigned=metadata.unsigned is not None and metadata.unsigned[i],
                    collation_id=collation or 0,
                    members=_members(metadata, i, known.get(name)),
                    nullable=_nullable(seen, i),
                    geometry_type=None
                    if metadata.geometry_types is None
                    else metadata.geometry_types[i],
                    dimensions=None if metadata.dimensions is None else metadata.dimensions[i],
                    like=known.get(name),
                )
            )
        return self.schema(table, columns, key_in_map(seen) if primary_key else ())

    def collation_id(self, connection: Connection, name: str) -> int:
        """The collation's id. Raises SourceError if the server does not know it."""
        if name not in self._collations:
            statements = _COLLATIONS[connection.flavor]
            if connection.flavor is Flavor.MARIADB and connection.version < _MARIADB_FULL_NAMES:
                statements = statements[1:]
            for statement in statements:
                for found, number in connection.rows(statement):
                    if number is not None:
                        self._collations.setdefault(found, int(number))
        if name not in self._collations:
            raise SourceError(f"the server does not report the id of its collation {name}")
        return self._collations[name]

    def _columns(self, connection: Connection, table: TableName) -> tuple[Column, ...]:
        """All current columns; () if there are none."""
        for _ in range(_ATTEMPTS):
            rows = connection.rows(_COLUMNS, (table.namespace, table.name))
            shown = [self._column(connection, table, row) for row in rows]
            columns = [read_labels(connection, table, column) for column in shown]
            found = tuple(column for column in columns if column is not None)
            if len(found) == len(columns):
                return found
        raise SourceBusyError(f"{table} changes while it is looked up; it is tried again")

    def _column(self, connection: Connection, table: TableName, row: tuple[object, ...]) -> Column:
        name, data_type, column_type, octets, collation, nullable = row
        try:
            return binlog_column(
                str(name),
                text_of(data_type),
                text_of(column_type),
                flavor=connection.flavor,
                octet_length=None if octets is None else int(str(octets)),
                collation_id=None
                if collation is None
                else self.collation_id(connection, str(collation)),
                nullable=bool(nullable),
            )
        except types.UnknownTypeError as error:
            raise UnsupportedTableError(
                table, f"{error}: change the type, or {exclusion(table)}"
            ) from None

    def surrogate(self, table: TableName, present: Sequence[str]) -> tuple[str, ...]:
        """The surrogate key of a table of this name; () if ``source.keys`` has none that fits."""
        return surrogate_key(self._keys, table, present)


def expression_indexes(connection: Connection, table: TableName) -> list[str]:
    """The names of functional indexes, each once for each of its expressions."""
    if connection.flavor is not Flavor.MYSQL:
        return []
    rows = connection.rows(_EXPRESSIONS, (table.namespace, table.name))
    return [text_of(row[0]) for row in rows]


def logs_hidden_columns(connection: Connection, table: TableName, seen: TableMapSeen) -> bool:
    """Return True if the log shows functional indexes' hidden columns, as of MySQL 8.0.15."""
    if any(name.startswith(_HIDDEN) for name in seen.metadata.names or ()):
        return True
    hidden = len(expression_indexes(connection, table))
    columns = len(connection.rows(_COLUMNS, (table.namespace, table.name)))
    return bool(hidden and columns and len(seen.types) == columns + hidden)


def hidden_columns(table: TableName, indexes: Sequence[str]) -> str:
    """The message that says what is wrong with functional indexes, and what to do."""
    name = backticked(table.namespace, table.name)
    drops = ", ".join(f"DROP INDEX {backticked(index)}" for index in dict.fromkeys(indexes))
    return (
        f"{table} has an index of an expression (a functional index), whose hidden column this "
        "version of MySQL logs and does not describe. Upgrade MySQL; or "
        f"ALTER TABLE {name} {drops or 'DROP INDEX ...'} and index a generated column instead; or "
        f"{exclusion(table)}"
    )


def key_in_map(seen: TableMapSeen) -> tuple[str, ...]:
    """The columns that a FULL table map names as the primary key. The servers put the first unique
    key without NULL in the place of one that is missing.
    """
    names = seen.metadata.names
    return () if names is None else tuple(names[i] for i, _ in seen.metadata.primary_key or ())


def mismatch(
    schema: TableSchema, seen: TableMapSeen, unique_key: tuple[str, ...] = ()
) -> str | None:
    """Why the table map does not fit the schema; None if it fits as far as the map shows.
    ``unique_key``: what the map names as the primary key although the table has none.
    """
    schema, metadata = schema.whole, seen.metadata
    columns = schema.columns
    if len(columns) != len(seen.types):
        return f"{len(seen.types)} columns, not {len(columns)}"
    if metadata.names is not None and metadata.names != schema.column_names:
        return "other column names"
    for i, column in enumerate(columns):
        what = f"column {i + 1} ({column.name})"
        if not types.fits(column, seen.types[i], seen.metas[i]):
            return f"{what} has another type"
        signs = metadata.unsigned if column.type_id in types.NUMERIC else None
        if signs is not None and signs[i] != types.is_unsigned(column):
            return f"{what} has another sign"
        collation = _collation(metadata, i)
        if collation is not None and types.collation(column) not in (0, collation):
            return f"{what} has another collation"
        members = _members(metadata, i, column)
        if members and members != types.labels(column):
            return f"{what} has other members"
        if _nullable(seen, i) != column.nullable:
            return f"{what} may be NULL or not"
    if key_in_map(seen) not in ((), unique_key, schema.key):
        return "another primary key"
    return None


def _nullable(seen: TableMapSeen, i: int) -> bool:
    return bool(seen.nullable[i // 8] >> i % 8 & 1)


def _collation(metadata: TableMapMetadata, i: int) -> int | None:
    return None if metadata.collations is None else metadata.collations[i]


def _members(metadata: TableMapMetadata, i: int, known: Column | None) -> tuple[str, ...]:
    """Labels as text.

    The server sends them in the column's character set, but up to 8.0.12 does not name it: then the
    character set of ``known``, the column of another version, is used.

    Raises UnknownTypeError if the character set of labels that are not ASCII is unknown.
    """
    found = None if metadata.labels is None else metadata.labels[i]
    if found is None:
        return ()
    collation = _collation(metadata, i)
    if collation is None and known is not None and known.type_id in (types.ENUM, types.SET):
        collation = types.collation(known)
    if not collation and any(b"\0" in label or not label.isascii() for label in found):
        raise types.UnknownTypeError(
            f"the log does not contain the character set of the labels of column {i + 1}"
        )
    charset = charset_of(collation or BINARY_COLLATION)
    return tuple(decode_text(label, charset) for label in found)


# Row hashes.

_NAME = re.compile(r"DB_ROW_HASH_\d+")
_UNIQUE_HASHES = """
SELECT count(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 AND INDEX_TYPE = 'HASH'
"""


def count_hash_columns(seen: TableMapSeen, shown: Collection[str]) -> int:
    """The number of row hashes at the end of the table map, by their names.

    Args:
        seen: the table map.
        shown: the names of columns that the catalogue shows.
    """
    names = seen.metadata.names or ()
    count = 0
    while count < len(names):
        name = names[-1 - count]
        if name in shown or not _NAME.fullmatch(name) or not _may_be_hashes(seen, count + 1):
            break
        count += 1
    return count


def remove_hash_columns(
    connection: Connection, table: TableName, seen: TableMapSeen, columns: int
) -> TableMapSeen:
    """The table map without the row hashes after the first ``columns`` columns; unchanged where the
    extra columns are others, or may be.

    Args:
        connection: reads the indexes where the map has no names.
        table: the table's current name.
        seen: the table map.
        columns: the number of columns in the catalogue.
    """
    count = len(seen.types) - columns
    if connection.flavor is not Flavor.MARIADB or count <= 0 or not _may_be_hashes(seen, count):
        return seen
    if seen.metadata.names is None:
        hashes = connection.value(_UNIQUE_HASHES, (table.namespace, table.name))
        return first_columns(seen, columns) if hashes == count else seen
    named = seen.metadata.names[columns:]
    return first_columns(seen, columns) if all(map(_NAME.fullmatch, named)) else seen


def first_columns(seen: TableMapSeen, count: int) -> TableMapSeen:
    """The table map with the first ``count`` columns only."""
    if count == len(seen.types):
        return seen
    metadata = seen.metadata
    lists = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    del lists["primary_key"]
    cut = {name: None if each is None else each[:count] for name, each in lists.items()}
    return replace(
        seen,
        types=seen.types[:count],
        metas=seen.metas[:count],
        metadata=replace(metadata, **cut),
    )


def _may_be_hashes(seen: TableMapSeen, count: int) -> bool:
    """Return True if the last ``count`` columns have the type of row hashes."""
    unsigned = seen.metadata.unsigned
    return all(
        seen.types[i] == types.LONGLONG
        and seen.nullable[i // 8] >> i % 8 & 1
        and (unsigned is None or unsigned[i])
        for i in range(len(seen.types) - count, len(seen.types))
    )
