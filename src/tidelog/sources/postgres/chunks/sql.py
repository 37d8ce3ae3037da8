"""Builds the SQL of one chunk.

Every identifier is quoted, every key value is a typed literal, and every operator names its schema,
because the session's search_path is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.model.schema import TableSchema
from tidelog.sources.postgres.chunks.key_sql import Key, PostgresKeySql
from tidelog.sources.postgres.connect import quote_ident

# Schemas of the operators < and > that define the order of the key's index: an extension type such
# as citext has its own. From the index that begins with the key's columns, the primary one first.
_OPERATORS = """
SELECT n.nspname
FROM (
  SELECT i.indclass::oid[] AS classes
  FROM pg_catalog.pg_index i
  WHERE i.indrelid = %s::oid AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts >= %s
    AND (string_to_array(i.indkey::text, ' ')::int2[])[1:%s] = (
      SELECT array_agg(a.attnum ORDER BY k.place)
      FROM unnest(%s::text[]) WITH ORDINALITY AS k(name, place)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attname = k.name)
  ORDER BY i.indisprimary DESC, i.indisunique DESC, i.indexrelid LIMIT 1
) AS index
CROSS JOIN LATERAL unnest(index.classes) WITH ORDINALITY AS u(class, place)
JOIN pg_catalog.pg_opclass c ON c.oid = u.class
JOIN pg_catalog.pg_amop o ON o.amopfamily = c.opcfamily AND o.amopstrategy = 5
  AND o.amoplefttype = c.opcintype AND o.amoprighttype = c.opcintype
JOIN pg_catalog.pg_operator p ON p.oid = o.amopopr
JOIN pg_catalog.pg_namespace n ON n.oid = p.oprnamespace
WHERE u.place <= %s
ORDER BY u.place
"""


def operator_schemas(
    connection: psycopg.Connection[tuple[Any, ...]], schema: TableSchema, columns: Sequence[str]
) -> tuple[str, ...]:
    """The schema of each key column's comparison operators."""
    count = len(columns)
    rows = connection.execute(
        _OPERATORS.encode(), (schema.relation_id, count, count, list(columns), count)
    ).fetchall()
    found = tuple(row[0] for row in rows)
    return found if len(found) == count else ("pg_catalog",) * count


@dataclass(frozen=True, slots=True)
class PostgresChunkSql:
    """Statements for one table.

    Args:
        schema: the columns to select, in order.
        key: the columns to order and compare by.
        operators: the key's `operator_schemas`.
        partitioned: True for a partitioned table, which is read with its partitions; other tables
            are read without the tables that inherit from them (they are tables of their own).
    """

    schema: TableSchema
    key: tuple[str, ...]
    operators: tuple[str, ...]
    partitioned: bool

    @property
    def source(self) -> str:
        return table_reference(self.schema, self.partitioned)

    def range(self, after: Key | None, upto: Key | None, limit_rows: int, where: str | None) -> str:
        """Rows ``after < key <= upto`` in key order."""
        some = f"LIMIT {limit_rows:d}"
        return _copy(self._range(self._columns, after, upto, limit_rows, where, some))

    def boundary(
        self, after: Key | None, upto: Key | None, limit_rows: int, where: str | None
    ) -> str:
        """The key of the last row of `range` if that has ``limit_rows`` rows, else nothing.

        An index-only scan, unless a condition needs other columns.
        """
        last = f"LIMIT 1 OFFSET {limit_rows - 1:d}"
        return _copy(self._range(self._key.names, after, upto, limit_rows, where, last))

    def same_key(self, key: Key, limit_rows: int) -> str:
        """Selects a NULL column for each row that has exactly this key, at most ``limit_rows``."""
        return _copy(
            f"SELECT NULL FROM {self.source} WHERE {self._key.same(key)} "  # noqa: S608 - quoted
            f"LIMIT {limit_rows:d}"
        )

    def of_keys(self, keys: Sequence[Key], where: str | None) -> str:
        """Rows with one of the keys, in key order."""
        parts = [self._select(self._columns, [part], where) for part in self._key.among(keys)]
        return _copy(f"{self._union(self._columns, parts)} ORDER BY {self._key.names}")

    def absent_keys(self, keys: Sequence[Key]) -> str:
        """Selects the keys that no row has. The database decides what is equal: ``1.0`` and
        ``1.00`` are one number.
        """
        return _copy(" UNION ALL ".join(self._key.absent(keys, self.source)))

    def digests(self, expression: str, after: Key | None, upto: Key | None) -> str:
        """``expression`` as ``h`` for each row ``after < key <= upto``, in no order."""
        bounds = [] if upto is None else [self._key.upto(upto)]
        begins = [[]] if after is None else [[begin] for begin in self._key.after(after)]
        parts = [
            self._select(f"{expression} AS h", [*begin, *bounds], None)
            for begin in begins or [["false"]]
        ]
        # OFFSET 0: computed once, although it is used twice.
        return f"{' UNION ALL '.join(parts)} OFFSET 0"

    @property
    def _key(self) -> PostgresKeySql:
        return PostgresKeySql(
            self.schema, self.key, self.operators, quote_ident(self.schema.table.name)
        )

    @property
    def _columns(self) -> str:
        return ", ".join(quote_ident(column.name) for column in self.schema.columns)

    def _range(
        self,
        columns: str,
        after: Key | None,
        upto: Key | None,
        limit_rows: int,
        where: str | None,
        some: str,
    ) -> str:
        bounds = [] if upto is None else [self._key.upto(upto)]
        if after is None:
            parts = [self._select(columns, bounds, where)]
        else:
            begins = self._key.after(after) or ["false"]
            parts = [self._select(columns, [begin, *bounds], where) for begin in begins]
        ordered = f" ORDER BY {self._key.names} "
        if len(parts) > 1:  # each a range of the index, instead of a filter over the whole index
            parts = [f"{part}{ordered}LIMIT {limit_rows:d}" for part in parts]
        return self._union(columns, parts) + ordered + some

    def _select(self, columns: str, conditions: Sequence[str], where: str | None) -> str:
        every = [*conditions, *([f"({where}\n)"] if where else [])]  # the newline ends a comment
        filtered = f" WHERE {' AND '.join(every)}" if every else ""
        return f"SELECT {columns} FROM {self.source}{filtered}"  # noqa: S608 - quoted

    def _union(self, columns: str, parts: Sequence[str]) -> str:
        if len(parts) == 1:
            return parts[0]
        united = " UNION ALL ".join(f"({part})" for part in parts)
        return f"SELECT {columns} FROM ({united}) AS united"  # noqa: S608 - quoted


def _copy(query: str) -> str:
    return f"COPY ({query}) TO STDOUT"


def table_reference(schema: TableSchema, partitioned: bool) -> str:
    """The table in a FROM clause."""
    name = quote_ident(schema.table.namespace, schema.table.name)
    return name if partitioned else f"ONLY {name}"
