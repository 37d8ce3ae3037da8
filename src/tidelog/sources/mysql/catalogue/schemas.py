"""Builds table schemas from ``information_schema``, and checks whether a table map fits them.

Chunks and the log build schemas in the same way, so that both write records of one schema version.
A table map alone gives a schema only with ``binlog_row_metadata=FULL``; see
`tidelog.sources.mysql.stream.schemas.log_schemas` for what is known at which time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapMetadata, TableMapSeen
from tidelog.codecs.mysql.binlog.layout import OLD_FRACTIONS
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.texts.charset_texts import decode_text
from tidelog.codecs.mysql.types import WIRE_FORMAT, binlog_column, column_of_map
from tidelog.errors import SourceBusyError, SourceError, TableRefusedError
from tidelog.model.patterns import exclusion
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.sources.excluded_columns import ColumnExclusion
from tidelog.sources.mysql.catalogue.labels import check_key, read_labels
from tidelog.sources.mysql.connect import Connection, quote_name
from tidelog.sources.surrogate_keys import surrogate_key, unfit_key

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


@dataclass(frozen=True, slots=True)
class MySqlFoundTable:
    """A table's schema.

    ``unfit``: why ``source.keys`` gives the table no key although a pattern matches it; None if all
    is well.
    """

    schema: TableSchema
    unfit: str | None = None


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
            TableRefusedError: a type is unknown, MariaDB keeps old versions of the rows, labels
                are unknown or can't be a key, or a column of the key is excluded.
            SourceBusyError: the table changed while it was read.
            pymysql.MySQLError: the server's errors.
        """
        name = (table.namespace, table.name)
        kind = connection.row(_TABLE, name)
        if kind is None:
            return None
        if _text(kind[0]) == "SYSTEM VERSIONED":
            raise TableRefusedError(
                table,
                "it is system-versioned: the log holds its old rows next to the current ones, with "
                "columns that information_schema does not show. Drop its old rows, or "
                f"{exclusion(table)}",
                f"ALTER TABLE {quote_name(*name)} DROP SYSTEM VERSIONING;",
            )
        columns = self._columns(connection, table)
        if not columns:
            return None
        key = tuple(row[0] for row in connection.rows(_KEY, name))
        schema = self.schema(called or table, columns, key)
        check_key(connection, table, schema)
        names = schema.whole.column_names
        unfit = None if schema.key else unfit_key(self._keys, schema.table, names)
        return MySqlFoundTable(schema, unfit)

    def schema(
        self, table: TableName, columns: Sequence[Column], primary_key: Sequence[str]
    ) -> TableSchema:
        """The schema of a table with these columns, also excluded ones; it has no key if
        ``source.keys`` does not fit. Raises TableRefusedError if a column of its key is excluded.
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
        self, seen: TableMapSeen, flavor: Flavor, like: TableSchema | None
    ) -> TableSchema | None:
        """The schema of a table map with FULL metadata; None if it has MINIMAL.

        ``like``: another version of the table; see `column_of_map`.
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
        key = tuple(metadata.names[i] for i, _ in metadata.primary_key or ())
        return self.schema(table, columns, key)

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
                _text(data_type),
                _text(column_type),
                flavor=connection.flavor,
                octet_length=None if octets is None else int(str(octets)),
                collation_id=None
                if collation is None
                else self.collation_id(connection, str(collation)),
                nullable=bool(nullable),
            )
        except types.UnknownTypeError as error:
            raise TableRefusedError(
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
    return [_text(row[0]) for row in rows]


def logs_hidden_columns(connection: Connection, table: TableName, seen: TableMapSeen) -> bool:
    """Return True if the log shows the hidden columns of functional indexes, as MySQL
    8.0.15 does.
    """
    if any(name.startswith(_HIDDEN) for name in seen.metadata.names or ()):
        return True
    hidden = len(expression_indexes(connection, table))
    columns = len(connection.rows(_COLUMNS, (table.namespace, table.name)))
    return bool(hidden and columns and len(seen.types) == columns + hidden)


def hidden_columns(table: TableName, indexes: Sequence[str]) -> str:
    """The message that says what is wrong with functional indexes, and what to do."""
    name = quote_name(table.namespace, table.name)
    drops = ", ".join(f"DROP INDEX {quote_name(index)}" for index in dict.fromkeys(indexes))
    return (
        f"{table} has an index of an expression (a functional index), whose hidden column this "
        "version of MySQL logs and does not describe. Upgrade MySQL; or "
        f"ALTER TABLE {name} {drops or 'DROP INDEX ...'} and index a generated column instead; or "
        f"{exclusion(table)}"
    )


def mismatch(schema: TableSchema, seen: TableMapSeen) -> str | None:
    """Why the table map does not fit the schema; None if it fits as far as the map shows."""
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
    if metadata.names is not None:
        key = tuple(metadata.names[i] for i, _ in metadata.primary_key or ())
        if key and key != schema.key:
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


def _text(value: object) -> str:
    """MySQL 8 returns some columns of information_schema as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
