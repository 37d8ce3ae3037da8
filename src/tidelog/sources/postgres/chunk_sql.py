"""The SQL of one chunk. Every identifier is quoted, every key value is a typed literal, and every
operator names its schema, because the session's search_path is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.model.schema import TableSchema
from tidelog.sources.postgres.connect import quote_ident, quote_literal

Key = tuple[str | None, ...]

# Schemas of the operators < and > that belong to the order of the key's index: an extension type
# such as citext brings its own. The index that begins with the key's columns, the primary first.
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
class ChunkSql:
    """Statements over one table.

    Args:
        schema: its columns are selected, in their order.
        key: the columns to order and compare by.
        operators: `operator_schemas` of them.
        partitioned: a partitioned table is read with its partitions, any other without the tables
            that inherit from it (they are tables of their own).
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
        conditions = []
        if after is not None:
            conditions.append(self._compare(">", after))
        if upto is not None:
            conditions.append(self._compare("<=", upto))
        if where:
            conditions.append(_parenthesised(where))
        filtered = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = ", ".join(quote_ident(name) for name in self.key)
        return self._copy(f"{filtered} ORDER BY {order} LIMIT {limit_rows:d}")

    def of_keys(self, keys: Sequence[Key], where: str | None) -> str:
        """Rows with one of the keys."""
        condition = self._in(keys)
        if where:
            condition += f" AND {_parenthesised(where)}"
        order = ", ".join(quote_ident(name) for name in self.key)
        return self._copy(f" WHERE {condition} ORDER BY {order}")

    def absent_keys(self, keys: Sequence[Key]) -> str:
        """Those of the keys that no row has. The database decides what is equal: ``1.0`` and
        ``1.00`` are one number.
        """
        wanted = [f"k{place}" for place in range(len(self.key))]
        joined = " AND ".join(
            f"t.{quote_ident(name)} OPERATOR({quote_ident(namespace)}.=) v.{alias}"
            for name, namespace, alias in zip(self.key, self.operators, wanted, strict=True)
        )
        return (
            f"COPY (SELECT DISTINCT v.* FROM (VALUES {self._rows(keys)}) "  # noqa: S608 - quoted
            f"AS v({', '.join(wanted)}) "
            f"WHERE NOT EXISTS (SELECT FROM {self.source} AS t WHERE {joined})) TO STDOUT"
        )

    def _copy(self, rest: str) -> str:
        columns = ", ".join(quote_ident(column.name) for column in self.schema.columns)
        return f"COPY (SELECT {columns} FROM {self.source}{rest}) TO STDOUT"  # noqa: S608 - quoted

    def _compare(self, operator: str, key: Key) -> str:
        """A row comparison, which the key's index serves; only if the columns' operators lie in
        different schemas it is spelled out.
        """
        names = [quote_ident(name) for name in self.key]
        values = [self._literal(name, text) for name, text in zip(self.key, key, strict=True)]
        if len(set(self.operators)) == 1:
            spelled = f"OPERATOR({quote_ident(self.operators[0])}.{operator})"
            return f"ROW({', '.join(names)}) {spelled} ROW({', '.join(values)})"
        strict = operator[0]
        columns = list(zip(names, self.operators, values, strict=True))
        alternatives = []
        for place, (name, namespace, value) in enumerate(columns):
            equal = [f"{n} OPERATOR({quote_ident(s)}.=) {v}" for n, s, v in columns[:place]]
            last = operator if place == len(columns) - 1 else strict
            more = f"{name} OPERATOR({quote_ident(namespace)}.{last}) {value}"
            alternatives.append(f"({' AND '.join([*equal, more])})")
        name, namespace, value = columns[0]
        # Implied by the alternatives; it gives the index a range to begin with.
        bound = f"{name} OPERATOR({quote_ident(namespace)}.{strict}=) {value}"
        return f"({bound} AND ({' OR '.join(alternatives)}))"

    def _in(self, keys: Sequence[Key]) -> str:
        if len(self.key) == 1:
            values = ", ".join(self._literal(self.key[0], key[0]) for key in keys)
            spelled = f"OPERATOR({quote_ident(self.operators[0])}.=)"
            return f"{quote_ident(self.key[0])} {spelled} ANY (ARRAY[{values}])"
        if len(set(self.operators)) == 1:
            names = ", ".join(quote_ident(name) for name in self.key)
            spelled = f"OPERATOR({quote_ident(self.operators[0])}.=)"
            return f"ROW({names}) {spelled} ANY (VALUES {self._rows(keys)})"
        rows = []
        for key in keys:
            equal = [
                f"{quote_ident(name)} OPERATOR({quote_ident(space)}.=) {self._literal(name, text)}"
                for name, space, text in zip(self.key, self.operators, key, strict=True)
            ]
            rows.append(f"({' AND '.join(equal)})")
        return f"({' OR '.join(rows)})"

    def _rows(self, keys: Sequence[Key]) -> str:
        return ", ".join(
            "("
            + ", ".join(self._literal(name, text) for name, text in zip(self.key, key, strict=True))
            + ")"
            for key in keys
        )

    def _literal(self, column: str, text: str | None) -> str:
        """The type's own input function reads what its output function wrote."""
        type_name = self.schema.columns[self.schema.column_index(column)].type_name
        value = "NULL" if text is None else quote_literal(text)
        return f"CAST({value} AS {type_name})"


def table_reference(schema: TableSchema, partitioned: bool) -> str:
    """How FROM names the table."""
    name = quote_ident(schema.table.namespace, schema.table.name)
    return name if partitioned else f"ONLY {name}"


def _parenthesised(where: str) -> str:
    # A newline ends a trailing comment of the condition.
    return f"({where}\n)"
