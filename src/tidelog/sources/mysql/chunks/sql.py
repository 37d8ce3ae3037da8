"""Builds the SQL of one chunk.

Every identifier is quoted, every key value is a literal of its type, and the key's index is named,
so that the server uses it whatever its statistics say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.texts.exact_texts import needs_exact
from tidelog.codecs.mysql.texts.exact_texts import sql as exact_sql
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.sources.mysql.chunks.conditions import checked_condition
from tidelog.sources.mysql.chunks.key_sql import NEVER, Key, MySqlKeySql
from tidelog.sources.mysql.connect import Connection, quote_name

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
        """The key of the last row of `range` if that has ``limit_rows`` rows, else nothing.

        Reads only the key's index, unless a condition needs other columns.
        """
        rows = self._range(self.key_schema.columns, after, upto, where)
        return f"{rows} LIMIT {limit_rows - 1:d}, 1"

    def digest(self, listed: str, after: Key | None, upto: Key | None) -> str:
        """``listed``, a list of aggregates, over the rows ``after < key <= upto``."""
        bounds = self._bounds(after, upto)
        filtered = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        return f"SELECT {listed} FROM {self._source}{filtered}"  # noqa: S608 - quoted

    def shared_keys(self, after: Key | None, last: Key) -> str:
        """Selects a row if rows of the range share a key that holds NULL; such a key is
        not unique.
        """
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
        name = quote_name(self.schema.table.namespace, self.schema.table.name)
        index = self.index.name
        return name if index is None else f"{name} FORCE INDEX ({quote_name(index)})"

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
    name = quote_name(column.name)
    charset = charset_of(types.collation(column))
    if key and charset is not None and needs_exact(column):
        return exact_sql(name, charset)
    return f"{name} * 1e0" if column.type_id in (types.FLOAT, types.DOUBLE) else name
