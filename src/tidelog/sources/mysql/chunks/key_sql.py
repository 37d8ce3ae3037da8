"""Builds conditions on a table's key: the bounds of a range, and lists of requested keys.

Row comparisons, ``(a, b) > (1, 2)``, would read the whole index (manual, "Row Constructor
Expression Optimization"), so they are written out. Comparisons use the columns' own collation: a
literal's is weaker (manual, "Collation Coercibility in Expressions").

NULL comes first in an ascending index and last in a descending one; its text is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.rows import bytes_keys
from tidelog.codecs.mysql.texts import exact_texts
from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import Column, TableSchema
from tidelog.sources.mysql.connect import quote_name

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
        return ", ".join(quote_name(name) for name in self.columns)

    @property
    def order(self) -> str:
        """The ORDER BY list in the order of the key's index."""
        return ", ".join(
            f"{quote_name(name)} DESC" if down else quote_name(name)
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
            return f"{quote_name(self.columns[0])} IN ({literals})"
        return "(" + " OR ".join(f"({self.same(key)})" for key in keys) + ")"

    def null_in_key(self) -> str:
        """The condition that a column of the key is NULL."""
        found = [
            f"{quote_name(n)} IS NULL" for p, n in enumerate(self.columns) if self._nullable(p)
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
        name = quote_name(self.columns[place])
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
        name, column = quote_name(self.columns[place]), self._column(place)
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
    """Compare an ENUM or SET by number, which is its order.

    Only equality uses the index, so the numbers are listed if there are few.
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
    """The value as SQL, made only of digits, hexadecimal digits or a date's characters.

    Raises ChunkRefusedError if the text does not fit the column's type.
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
    value = exact_texts.value_of(charset, text)
    if value is None and charset == "sjis" and "\\" in text:
        with suppress(UnicodeEncodeError):  # the server would read another backslash
            value = text.encode("shift_jis")
    if value is not None:
        return f"_{charset} X'{value.hex()}'"
    return f"_utf8mb4 X'{text.encode().hex()}'"


def bytes_value(column: Column, text: str) -> bytes:
    """The bytes of a key's text. BINARY(n) is padded to its length, and compared with
    its padding.
    """
    try:
        value = bytes_keys.bytes_of(text)
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
