"""Reads labels of ENUM and SET columns that ``information_schema`` shows with question marks.

``information_schema`` is in utf8mb3, which has no characters beyond U+FFFF; SHOW CREATE TABLE shows
no more. So a query stores numbers in a value of the same type and converts them to text. In MySQL
this value is a column of a recursive query, whose type comes from the non-recursive parts of the
union. MariaDB cuts a SET to eight labels there, so it uses a variable. The query reads no row and
needs only the SELECT right. MySQL 8.0, MariaDB 10.3 and later support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.texts.multibyte_texts import SURROGATES
from tidelog.errors import TableRefusedError
from tidelog.model.patterns import exclusion
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.sources.mysql.connect import Connection, quote_name, text_of
from tidelog.sources.mysql.errors import PARSE_ERROR, number_of

_BEYOND = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
"""Character sets with characters that the catalogue can't show."""
_AT_ONCE = 100
"""Labels per query: MySQL's stack holds a union of about a thousand."""
# MySQL 8.0.12 takes the column's type only if the NULL comes first.
_LABELS_QUERY = """
WITH RECURSIVE told (n, label) AS (
  SELECT -1, NULL UNION ALL SELECT -1, {column} FROM {table} WHERE FALSE
  UNION ALL SELECT asked.n, asked.v FROM told JOIN ({numbers}) asked WHERE told.n < 0
) SELECT n, CAST(CONVERT(label USING utf8mb4) AS BINARY) FROM told WHERE n >= 0 ORDER BY n
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

    Raises PyMySQL's errors; TableRefusedError if the server is too old to show the labels.
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
                raise TableRefusedError(
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
    whose text differs between log and dump.

    Raises PyMySQL's errors, TableRefusedError.
    """
    for column in schema.columns:
        if column.name not in schema.match_key or column.type_id not in (types.ENUM, types.SET):
            continue
        labels = types.labels(column)
        alike = len(set(labels)) < len(labels)
        if alike or _has_surrogates(connection, table, column):
            raise TableRefusedError(
                table,
                f"its key has the column {_quoted_column(column)}, some labels of which are alike "
                "as Unicode, or have no text there. Rows of several keys would become one. Give it "
                f"other labels, or {exclusion(table)}",
            )


def _has_surrogates(connection: Connection, table: TableName, column: Column) -> bool:
    if charset_of(types.collation(column)) not in SURROGATES:
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
        names = quote_name(*where, column.name)
        digits = connection.value(_VARIABLE.format(column=names, steps=steps))
        return [bytes.fromhex(label) for label in str(digits).split(",")[:-1]]
    asked = (f"SELECT {n:d} AS n, {number} AS v" for n, number in enumerate(numbers))
    rows = connection.rows(
        _LABELS_QUERY.format(
            column=quote_name(column.name),
            table=quote_name(*where),
            numbers=" UNION ALL ".join(asked),
        )
    )
    return [bytes(label) for _, label in rows]


def _as_in_catalogue(label: str) -> str:
    """The label as the catalogue shows it."""
    return "".join("?" if character > "\uffff" else character for character in label)


def _quoted_column(column: Column) -> str:
    return f"{quote_name(column.name)} {column.type_name}"
