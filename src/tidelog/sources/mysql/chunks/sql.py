"""Builds the SQL of one chunk: its key's conditions and literals, and the dump's own condition.

Every identifier is quoted, every key value is a literal of its type, and the key's index is named,
so that the server uses it whatever its statistics say.

Row comparisons, ``(a, b) > (1, 2)``, would read the whole index (manual, "Row Constructor
Expression Optimization"), so they are written out. Comparisons use the columns' own collation: a
literal's is weaker (manual, "Collation Coercibility in Expressions"). NULL comes first in an
ascending index and last in a descending one; its text is None.

A dump's condition must be one expression that ends where its text ends: one that ended early would
void the chunk's bounds. The condition of a command was checked by the rules of other databases
(`tidelog.control.commands`). Here a backslash escapes, quotes of both kinds delimit strings, and
# begins a comment (manual, "Language Structure").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from tidelog.codecs.columns import times
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text import charset_texts
from tidelog.codecs.mysql.cell_text.charset_texts import exact_text_sql, needs_exact_text
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.rows.keys import bytes_of_text, shortest_bytes_text
from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import Column, TableName, TableSchema, backticked
from tidelog.sources import ranges as shared
from tidelog.sources.mysql.connect import Connection

# A dump's condition.

_TOKEN = re.compile(
    r"""(?P<quoted> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
      | (?P<comment> --(?=[\s\x00-\x1f]|$) | /\* | \# )
      | (?P<open> \( ) | (?P<close> \) )
      | (?P<wrong> [;'"`] )
      | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)


def checked_condition(condition: str) -> str:
    """Return the condition if it is one expression under the sql_mode of Tidelog's sessions.

    Raises:
        ChunkRefusedError: names what the condition may not contain, never the condition itself.
    """
    depth = 0
    for token in _TOKEN.finditer(condition):
        kind = token.lastgroup
        depth += (kind == "open") - (kind == "close")
        if kind == "comment":
            raise ChunkRefusedError("the dump's condition holds a comment: leave it out")
        if kind == "wrong" or depth < 0:
            break
    else:
        if depth == 0:
            return condition
    raise ChunkRefusedError(
        "the dump's condition is not one expression of SQL: its quotes or parentheses are not in "
        "pairs (\\ escapes in strings), or it holds a ';'"
    )


# Conditions on a table's key: the bounds of a range, and lists of requested keys.

Key = tuple[str | None, ...]

NEVER = "FALSE"
MOST_LISTED = 512
"""An ENUM or SET with more values is compared as a number, which no index serves."""

_INTEGERS = {types.TINY, types.SHORT, types.INT24, types.LONG, types.LONGLONG, types.YEAR}
_FLOATS = {types.FLOAT, types.DOUBLE}
_TEMPORAL = {
    types.DATE, types.NEWDATE, types.TIME, types.TIME2, types.DATETIME, types.DATETIME2,
    types.TIMESTAMP, types.TIMESTAMP2,
}  # fmt: skip
_WORDS = {"uuid", "inet4", "inet6"}  # MariaDB's types that are read and written as text
_DIGITS = re.compile(r"[+-]?\d+(\.\d*)?")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_TIME = re.compile(r"(-?[0-9][0-9:. -]*?)(?:Z|\+00(?::?00)?)?")
_WORD = re.compile(r"[0-9A-Fa-f:.{}-]+")


@dataclass(frozen=True, slots=True)
class MySqlKeySql:
    """Conditions on one table's key.

    Args:
        schema: the columns' types, and whether they are nullable.
        columns: the key's columns, in order.
        descending: for each column, whether the key's index is descending.
    """

    schema: TableSchema
    columns: tuple[str, ...]
    descending: tuple[bool, ...]

    @property
    def names(self) -> str:
        return ", ".join(backticked(name) for name in self.columns)

    @property
    def order(self) -> str:
        """The ORDER BY list in the order of the key's index."""
        return ", ".join(
            f"{backticked(name)} DESC" if down else backticked(name)
            for name, down in zip(self.columns, self.descending, strict=True)
        )

    def after(self, key: Key) -> str:
        """The condition ``key < columns``, in the index's order."""
        return self._compare(key, beyond=True, and_equal=False)

    def upto(self, key: Key) -> str:
        """The condition ``columns <= key``."""
        return self._compare(key, beyond=False, and_equal=True)

    def same(self, key: Key) -> str:
        """The condition that the row has exactly this key."""
        return " AND ".join(self._equal(place, text) for place, text in enumerate(key))

    def among(self, keys: Sequence[Key]) -> str:
        """The condition that the row has one of the keys."""
        column = self._column(0)
        whole = len(self.columns) == 1 and not any(None in key for key in keys)
        if whole and column.type_id not in (types.ENUM, types.SET):
            literals = ", ".join(literal(column, key[0] or "") for key in keys)
            return f"{backticked(self.columns[0])} IN ({literals})"
        return "(" + " OR ".join(f"({self.same(key)})" for key in keys) + ")"

    def null_in_key(self) -> str:
        """The condition that a column of the key is NULL."""
        found = [
            f"{backticked(n)} IS NULL" for p, n in enumerate(self.columns) if self._nullable(p)
        ]
        return f"({' OR '.join(found)})" if found else NEVER

    # ------------------------------------------------------------------ one column

    def _compare(self, key: Key, *, beyond: bool, and_equal: bool) -> str:
        found = []
        equal: list[str] = []
        for place, text in enumerate(key):
            strictly = self._compare_strictly(place, text, beyond)
            if strictly is not None:
                found.append(" AND ".join([*equal, strictly]))
            equal.append(self._equal(place, text))
        if and_equal:
            found.append(" AND ".join(equal))
        return "(" + " OR ".join(f"({term})" for term in found) + ")" if found else NEVER

    def _compare_strictly(self, place: int, text: str | None, beyond: bool) -> str | None:
        """The condition that the column is after (or before) the value in the index; None if that
        is impossible.
        """
        name = backticked(self.columns[place])
        greater = beyond != self.descending[place]
        if text is None:
            return f"{name} IS NOT NULL" if greater else None
        column = self._column(place)
        if column.type_id in (types.ENUM, types.SET):
            compared = _compare_number(name, column, number_of(column, text), greater)
        else:
            compared = f"{name} {'>' if greater else '<'} {literal(column, text)}"
        if greater or not self._nullable(place):
            return compared
        null = f"{name} IS NULL"
        return null if compared is None else f"({compared} OR {null})"

    def _equal(self, place: int, text: str | None) -> str:
        name, column = backticked(self.columns[place]), self._column(place)
        if text is None:
            return f"{name} IS NULL"
        if column.type_id in (types.ENUM, types.SET):
            return f"{name} = {number_of(column, text):d}"
        return f"{name} = {literal(column, text)}"

    def _column(self, place: int) -> Column:
        return self.schema.columns[self.schema.column_index(self.columns[place])]

    def _nullable(self, place: int) -> bool:
        return self._column(place).nullable


def _compare_number(name: str, column: Column, number: int, greater: bool) -> str | None:
    """Compare an ENUM or SET by number, which is its order. Only equality uses the index, so the
    numbers are listed if there are few.
    """
    count = len(types.labels(column))
    highest = count if column.type_id == types.ENUM else (1 << count) - 1
    numbers = range(number + 1, highest + 1) if greater else range(number)
    if len(numbers) > MOST_LISTED:
        return f"{name} {'>' if greater else '<'} {number:d}"
    if not numbers:
        return None
    return "(" + " OR ".join(f"{name} = {each:d}" for each in numbers) + ")"


def number_of(column: Column, text: str) -> int:
    """The number of an ENUM's or SET's text; 0 is ENUM's error value."""
    labels = types.labels(column)
    try:
        if column.type_id == types.ENUM:
            return labels.index(text) + 1 if text or "" in labels else 0
        return sum({1 << labels.index(label) for label in text.split(",")}) if text else 0
    except ValueError:
        raise _type_error(column) from None


def literal(column: Column, text: str) -> str:
    """The value as SQL, made only of digits, hexadecimal digits or a date's characters. Raises
    ChunkRefusedError if the text does not fit the column's type.
    """
    kind = column.type_id
    if kind in _INTEGERS or kind in (types.NEWDECIMAL, types.BIT):
        if column.logical == "bool" and text in ("t", "f", "true", "false"):
            return "1" if text[0] == "t" else "0"
        return _require_match(_DIGITS, column, text)
    if kind in _FLOATS:
        number = _require_match(_NUMBER, column, text)
        return number if "e" in number.lower() else f"{number}e0"
    if kind in _TEMPORAL:
        match = _TIME.fullmatch(text.replace("T", " "))
        if match is None:
            raise _type_error(column)
        return f"'{match[1]}'"
    if kind == types.STRING and column.type_name in _WORDS:
        return f"'{_require_match(_WORD, column, text)}'"
    if kind not in types.CHARACTER:
        raise ChunkRefusedError(f"a column of type {column.type_name} can't be part of a key")
    if types.collation(column) != BINARY_COLLATION:
        return _text_literal(charset_of(types.collation(column)), text)
    return f"_binary X'{bytes_value(column, text).hex()}'"


def _text_literal(charset: str | None, text: str) -> str:
    value = charset_texts.bytes_of_exact_text(charset, text)
    if value is None and charset == "sjis" and "\\" in text:
        with suppress(UnicodeEncodeError):  # the server would read another backslash
            value = text.encode("shift_jis")
    if value is not None:
        return f"_{charset} X'{value.hex()}'"
    return f"_utf8mb4 X'{text.encode().hex()}'"


def bytes_value(column: Column, text: str) -> bytes:
    """The bytes of a key's text. BINARY(n) is compared with its padding to its length."""
    try:
        value = bytes_of_text(text)
    except ValueError:
        raise ChunkRefusedError(
            f"a key's value for column {column.name}, of bytes, begins with 0x, but is not pairs "
            "of hexadecimal digits"
        ) from None
    if column.type_id == types.STRING:
        value = value.ljust(types.string_bytes(types.metadata(column)), b"\0")
    return value


def _require_match(pattern: re.Pattern[str], column: Column, text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise _type_error(column)
    return text


def _type_error(column: Column) -> ChunkRefusedError:
    return ChunkRefusedError(f"a key's value is none of column {column.name}'s type")


# The key's index, and the statements.

# Not CARDINALITY: that query reads statistics of the engine.
_INDEX_COLUMNS = """
SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, COLLATION, SUB_PART
FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s{visible}
ORDER BY INDEX_NAME <> 'PRIMARY', NON_UNIQUE, INDEX_NAME, SEQ_IN_INDEX
"""
_VISIBLE_SINCE = ((8, 0), " AND IS_VISIBLE = 'YES'")
_IGNORED_SINCE = ((10, 6), " AND IGNORED = 'NO'")


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The index that serves a key.

    Attributes:
        name: None if no index begins with the key's columns.
        descending: for each column of the key, whether the index is descending.
        ordered: whether it returns rows in the key's order; an index of value prefixes does not.
        unique: whether no two rows share a key (unless it holds NULL).
    """

    name: str | None
    descending: tuple[bool, ...]
    ordered: bool
    unique: bool


def key_index(connection: Connection, table: TableName, columns: Sequence[str]) -> KeyIndex:
    """The best index that begins with these columns: the primary key, a unique one, any."""
    mysql = connection.flavor.value == "mysql"
    since, condition = _VISIBLE_SINCE if mysql else _IGNORED_SINCE
    visible = condition if connection.version >= since else ""
    found: dict[str, list[tuple[bool, str | None, bool, bool]]] = {}
    for name, non_unique, column, collation, prefix in connection.rows(
        _INDEX_COLUMNS.format(visible=visible), (table.namespace, table.name)
    ):
        parts = found.setdefault(str(name), [])
        parts.append((not non_unique, column, collation == "D", prefix is not None))
    wanted = [column.lower() for column in columns]
    best: KeyIndex | None = None
    for name, parts in found.items():
        some = parts[: len(wanted)]
        if [(column or "").lower() for _, column, _, _ in some] != wanted:
            continue
        index = KeyIndex(
            name=name,
            descending=tuple(down for _, _, down, _ in some),
            ordered=not any(prefix for *_, prefix in some),
            unique=some[0][0] and len(parts) == len(wanted),
        )
        if best is None or (index.ordered and not best.ordered):
            best = index
    return best or KeyIndex(None, (False,) * len(wanted), False, False)


@dataclass(frozen=True, slots=True)
class MySqlChunkSql:
    """Statements for one table.

    Args:
        schema: the columns to select, in order.
        key: the columns to order and compare by.
        index: the index that serves the key.
    """

    schema: TableSchema
    key: tuple[str, ...]
    index: KeyIndex

    @property
    def conditions(self) -> MySqlKeySql:
        return MySqlKeySql(self.schema, self.key, self.index.descending)

    @property
    def key_schema(self) -> TableSchema:
        """The schema of what `boundary` selects."""
        return key_schema(self.schema, self.key)

    def range(self, after: Key | None, upto: Key | None, limit_rows: int, where: str | None) -> str:
        """Rows ``after < key <= upto`` in key order."""
        return f"{self._range(self.schema.columns, after, upto, where)} LIMIT {limit_rows:d}"

    def whole(self, where: str | None) -> str:
        """All rows, in no order."""
        return self._select(self.schema.columns, [], where)

    def boundary(
        self, after: Key | None, upto: Key | None, limit_rows: int, where: str | None
    ) -> str:
        """The key of the last row of `range` if that has ``limit_rows`` rows, else nothing. Reads
        only the key's index, unless a condition needs other columns.
        """
        rows = self._range(self.key_schema.columns, after, upto, where)
        return f"{rows} LIMIT {limit_rows - 1:d}, 1"

    def digest(self, listed: str, after: Key | None, upto: Key | None) -> str:
        """``listed``, a list of aggregates, over the rows ``after < key <= upto``."""
        bounds = self._bounds(after, upto)
        filtered = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        return f"SELECT {listed} FROM {self._source}{filtered}"  # noqa: S608 - quoted

    def shared_keys(self, after: Key | None, last: Key) -> str:
        """Selects a row if rows of the range share a key that holds NULL, so is not unique."""
        conditions = self.conditions
        bounds = [conditions.null_in_key(), *self._bounds(after, last)]
        return (
            f"SELECT 1 FROM {self._source} WHERE {' AND '.join(bounds)} "  # noqa: S608 - quoted
            f"GROUP BY {conditions.names} HAVING COUNT(*) > 1 LIMIT 1"
        )

    def of_keys(self, keys: Sequence[Key], where: str | None) -> str:
        """Rows with one of the keys, in key order."""
        conditions = self.conditions
        select = self._select(self.schema.columns, [conditions.among(keys)], where)
        return f"{select} ORDER BY {conditions.order}"

    def present_keys(self, keys: Sequence[Key]) -> str:
        """Selects the indexes of those keys that a row has. The database decides what is equal."""
        conditions = self.conditions
        return " UNION ALL ".join(
            f"(SELECT {place:d} FROM {self._source} "  # noqa: S608 - quoted
            f"WHERE {conditions.same(key)} LIMIT 1)"
            for place, key in enumerate(keys)
        )

    @property
    def _source(self) -> str:
        name = backticked(self.schema.table.namespace, self.schema.table.name)
        index = self.index.name
        return name if index is None else f"{name} FORCE INDEX ({backticked(index)})"

    def _bounds(self, after: Key | None, upto: Key | None) -> list[str]:
        conditions = self.conditions
        bounds = [] if after is None else [conditions.after(after)]
        return bounds if upto is None else [*bounds, conditions.upto(upto)]

    def _range(
        self, columns: Sequence[Column], after: Key | None, upto: Key | None, where: str | None
    ) -> str:
        select = self._select(columns, self._bounds(after, upto), where)
        return f"{select} ORDER BY {self.conditions.order}"

    def _select(
        self, columns: Sequence[Column], conditions: Sequence[str], where: str | None
    ) -> str:
        every = [*conditions, *([f"({checked_condition(where)})"] if where else [])]
        if NEVER in conditions:
            every = [NEVER]
        filtered = f" WHERE {' AND '.join(every)}" if every else ""
        keys = {*self.schema.key, *self.schema.match_key}
        listed = ", ".join(selected(column, column.name in keys) for column in columns)
        return f"SELECT {listed} FROM {self._source}{filtered}"  # noqa: S608 - quoted


def key_schema(schema: TableSchema, key: Sequence[str]) -> TableSchema:
    """The table's schema with only the key's columns."""
    columns = tuple(schema.columns[schema.column_index(name)] for name in key)
    return TableSchema(
        schema.table, 0, columns, tuple(key), tuple(key), "f", schema.wire_format, schema.schema_id
    )


def selected(column: Column, key: bool = False) -> str:
    """The column in a SELECT list, in the form that `tidelog.codecs.mysql.rows.dump_rows` reads.

    A FLOAT would lose digits, so it is multiplied by 1; adding 0 would turn -0 into 0, while the
    log keeps it. ``key``: True for a key column, which must keep text that UTF-8 can't represent.
    """
    name = backticked(column.name)
    charset = charset_of(types.collation(column))
    if key and charset is not None and needs_exact_text(column):
        return exact_text_sql(name, charset)
    return f"{name} * 1e0" if column.type_id in (types.FLOAT, types.DOUBLE) else name


# Texts of key columns.

_SPELLING = shared.KeySpelling(true="1", false="0", utc="", binary=shortest_bytes_text)


def key_texts(values: pa.Array) -> pa.StringArray:
    """See `tidelog.sources.ranges.key_texts`. Bytes become ``0x`` and hexadecimal digits, or
    stay as they are if they are UTF-8 without NUL.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz), safe=False)
    if (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) and times.any_invalid_date(values):
        return times.texts_with_invalid_dates(values)
    return shared.key_texts(values, _SPELLING)
