"""Builds the SQL of one chunk: its key's conditions and texts, and what the dump's own may name.

Every identifier is quoted, every key value is a typed literal, and every operator names its schema,
because the session's search_path is empty.

NULL is the greatest value of a nullable key column, as in ``ORDER BY``, and its text is None: so a
walk over the key continues with the rows whose key holds NULL.

A dump's condition whose author has fewer rights than capture may use only some columns. Its grammar
calls only PostgreSQL's own functions, and with an empty search_path its operators are those of
pg_catalog. The remaining risk are values: a type that a role created brings that role's casts, and
PostgreSQL runs them implicitly where an operator needs another type (``CREATE CAST … AS
IMPLICIT``). The table's own name, used as a column, is its whole row: such a type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from tidelog.errors import ChunkRefusedError
from tidelog.model.schema import TableSchema, double_quoted
from tidelog.ports import ChunkRequest
from tidelog.sources import ranges as shared
from tidelog.sources.postgres.connect import quote_literal

# Conditions on a table's key: the bounds of a range, and lists of requested keys.

Key = tuple[str | None, ...]

# The subquery of wanted keys; no table of a condition has this name.
_WANTED = double_quoted("tidelog wanted")


@dataclass(frozen=True, slots=True)
class PostgresKeySql:
    """Conditions on one table's key.

    Args:
        schema: the columns' types, and whether they are nullable.
        columns: the key's columns, in order.
        operators: schema of each column's comparison operators.
        table: the qualifier of the table's columns where a condition needs one.
    """

    schema: TableSchema
    columns: tuple[str, ...]
    operators: tuple[str, ...]
    table: str

    @property
    def names(self) -> str:
        return ", ".join(double_quoted(name) for name in self.columns)

    def after(self, key: Key) -> list[str]:
        """Disjoint conditions that together mean ``key < columns``; each is a range of the key's
        index. Empty if nothing follows.
        """
        return self._after([], 0, key)

    def upto(self, key: Key) -> str:
        """The condition ``columns <= key``, exact and usable by the index."""
        first_null = next((place for place, text in enumerate(key) if text is None), len(key))
        if first_null == len(key):
            return self._compare("<=", 0, key)
        bound = [self._compare("<=", 0, key[:first_null])] if first_null else []
        exact = []
        equal: list[str] = []
        for place, text in enumerate(key):
            name = double_quoted(self.columns[place])
            if text is None:
                exact.append([*equal, f"{name} IS NOT NULL"])
                equal.append(f"{name} IS NULL")
            else:
                exact.append([*equal, self._compare("<", place, (text,))])
                equal.append(self._equal(place, text))
        exact.append(equal)
        alternatives = " OR ".join(f"({' AND '.join(terms)})" for terms in exact)
        return " AND ".join([*bound, f"({alternatives})"])

    def same(self, key: Key) -> str:
        """The condition ``columns = key``, where NULL equals NULL."""
        return " AND ".join(self._equal(place, text) for place, text in enumerate(key))

    def among(self, keys: Sequence[Key]) -> list[str]:
        """Disjoint conditions that together mean that the row has one of the keys; the key's index
        serves each of them.
        """
        return [self._among(nulls, some) for nulls, some in _by_nulls(keys)]

    def absent(self, keys: Sequence[Key], source: str) -> list[str]:
        """Queries that together select those keys that no row of ``source`` has."""
        return [self._absent(nulls, some, source) for nulls, some in _by_nulls(keys)]

    # ------------------------------------------------------------------ ranges

    def _after(self, equal: list[str], begin: int, key: Key) -> list[str]:
        end = begin
        while end < len(key) and key[end] is not None:
            end += 1
        found = []
        if end > begin:
            greater = self._compare(">", begin, key[begin:end])
            found.append(" AND ".join([*equal, greater]))
        equal = list(equal)
        for place in range(begin, end):
            if self._nullable(place):
                found.append(
                    " AND ".join([*equal, f"{double_quoted(self.columns[place])} IS NULL"])
                )
            equal.append(self._equal(place, key[place]))
        if end < len(key):
            equal.append(self._equal(end, None))
            found += self._after(equal, end + 1, key)
        return found

    def _compare(self, operator: str, begin: int, key: Key) -> str:
        """Compare the columns from ``begin`` on as one row, which the key's index serves; it is
        written out only if the columns' operators are in different schemas.

        Not true where a NULL decides: that row is greater, which `after` handles separately.
        """
        places = range(begin, begin + len(key))
        names = [double_quoted(self.columns[place]) for place in places]
        values = [self._literal(place, text) for place, text in zip(places, key, strict=True)]
        spaces = [double_quoted(self.operators[place]) for place in places]
        if len(set(spaces)) == 1:
            spelled = f"OPERATOR({spaces[0]}.{operator})"
            return f"ROW({', '.join(names)}) {spelled} ROW({', '.join(values)})"
        strict = operator[0]
        columns = list(zip(names, spaces, values, strict=True))
        alternatives = []
        for place, (name, space, value) in enumerate(columns):
            equal = [f"{n} OPERATOR({s}.=) {v}" for n, s, v in columns[:place]]
            last = operator if place == len(columns) - 1 else strict
            alternatives.append(
                f"({' AND '.join([*equal, f'{name} OPERATOR({space}.{last}) {value}'])})"
            )
        name, space, value = columns[0]
        # Implied by the alternatives; it gives the index a range to start with.
        bound = f"{name} OPERATOR({space}.{strict}=) {value}"
        return f"({bound} AND ({' OR '.join(alternatives)}))"

    def _equal(self, place: int, text: str | None) -> str:
        name = double_quoted(self.columns[place])
        if text is None:
            return f"{name} IS NULL"
        space = double_quoted(self.operators[place])
        return f"{name} OPERATOR({space}.=) {self._literal(place, text)}"

    def _nullable(self, place: int) -> bool:
        return self.schema.columns[self.schema.column_index(self.columns[place])].nullable

    # ------------------------------------------------------------------ sets of keys

    def _among(self, nulls: tuple[int, ...], keys: Sequence[Key]) -> str:
        given = [place for place in range(len(self.columns)) if place not in nulls]
        terms = [f"{double_quoted(self.columns[place])} IS NULL" for place in nulls]
        if len(given) == 1:
            place = given[0]
            spelled = f"OPERATOR({double_quoted(self.operators[place])}.=)"
            values = self._array(place, [key[place] for key in keys])
            wanted = f"SELECT * FROM {self._wanted_keys(given, keys)}" if values is None else values  # noqa: S608
            terms.append(f"{double_quoted(self.columns[place])} {spelled} ANY ({wanted})")
        elif given:
            wanted = self._wanted_keys(given, keys)
            terms.append(f"EXISTS (SELECT FROM {wanted} WHERE {self._join_condition(given)})")
        return " AND ".join(terms)

    def _absent(self, nulls: tuple[int, ...], keys: Sequence[Key], source: str) -> str:
        given = [place for place in range(len(self.columns)) if place not in nulls]
        terms = [f"{self._qualified(place)} IS NULL" for place in nulls]
        if given:
            terms.append(self._join_condition(given))
        listed = ", ".join(
            f"CAST(NULL AS {self._type(place)}) AS k{place}"
            if place in nulls
            else f"{_WANTED}.k{place}"
            for place in range(len(self.columns))
        )
        wanted = f" FROM {self._wanted_keys(given, keys)}" if given else ""
        return (
            f"SELECT DISTINCT {listed}{wanted} "  # noqa: S608 - quoted
            f"WHERE NOT EXISTS (SELECT FROM {source} WHERE {' AND '.join(terms)})"
        )

    def _join_condition(self, places: Sequence[int]) -> str:
        return " AND ".join(
            f"{self._qualified(place)} OPERATOR({double_quoted(self.operators[place])}.=) "
            f"{_WANTED}.k{place}"
            for place in places
        )

    def _wanted_keys(self, places: Sequence[int], keys: Sequence[Key]) -> str:
        """A FROM item with the keys' values: one array for each column, which parses far faster
        than one expression for each value.
        """
        alias = f"AS {_WANTED}({', '.join(f'k{place}' for place in places)})"
        arrays = [self._array(place, [key[place] for key in keys]) for place in places]
        if all(arrays):
            unnested = ", ".join(f"pg_catalog.unnest({array})" for array in arrays)
            return f"ROWS FROM ({unnested}) {alias}"
        rows = ", ".join(
            f"({', '.join(self._literal(place, key[place]) for place in places)})" for key in keys
        )
        return f"(VALUES {rows}) {alias}"

    def _array(self, place: int, texts: Sequence[str | None]) -> str | None:
        """The values as one literal; None for columns of arrays: no array of arrays exists."""
        type_name = self._type(place)
        if type_name.endswith("[]"):
            return None
        return f"CAST({quote_literal(_array_text(texts))} AS {type_name}[])"

    # ------------------------------------------------------------------ values

    def _qualified(self, place: int) -> str:
        return f"{self.table}.{double_quoted(self.columns[place])}"

    def _type(self, place: int) -> str:
        return self.schema.columns[self.schema.column_index(self.columns[place])].type_name

    def _literal(self, place: int, text: str | None) -> str:
        """The value as SQL: the type's own input function reads what its output function wrote."""
        value = "NULL" if text is None else quote_literal(text)
        return f"CAST({value} AS {self._type(place)})"


def _by_nulls(keys: Sequence[Key]) -> list[tuple[tuple[int, ...], list[Key]]]:
    """Keys grouped by the positions of their NULLs."""
    found: dict[tuple[int, ...], list[Key]] = {}
    for key in keys:
        nulls = tuple(place for place, text in enumerate(key) if text is None)
        found.setdefault(nulls, []).append(key)
    return list(found.items())


def _array_text(texts: Sequence[str | None]) -> str:
    """An array's text (manual, "Array Input and Output Syntax")."""
    return "{" + ",".join(map(_element_text, texts)) + "}"


def _element_text(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# The order of the key's index, and the statements.

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
        """The key of the last row of `range` if that has ``limit_rows`` rows, else nothing. An
        index-only scan, unless a condition needs other columns.
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
        """Selects the keys that no row has. The database decides what is equal, as 1.0 and 1.00."""
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
            self.schema, self.key, self.operators, double_quoted(self.schema.table.name)
        )

    @property
    def _columns(self) -> str:
        return ", ".join(double_quoted(column.name) for column in self.schema.columns)

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
    name = double_quoted(schema.table.namespace, schema.table.name)
    return name if partitioned else f"ONLY {name}"


# Texts of key columns that PostgreSQL's input functions read.

_SPELLING = shared.KeySpelling(
    true="t", false="f", utc="+00", binary=lambda value: "\\x" + value.hex()
)


def key_texts(values: pa.Array) -> pa.StringArray:
    r"""See `tidelog.sources.ranges.key_texts`. Bytes are ``\x`` and hexadecimal digits."""
    return shared.key_texts(values, _SPELLING)


# Names that a dump's condition may use.

# By column, whether each of its types is PostgreSQL's own, was created by a superuser or by this
# role, or is an enum, a domain or an array of such types without a cast. (The server ignores a
# domain's own casts, and its checks run when a row is written.)
_COLUMNS = """
WITH RECURSIVE parts AS (
  SELECT a.attname, a.atttypid AS oid
  FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped
  UNION
  SELECT parts.attname,
    CASE WHEN y.typtype = 'd' THEN y.typbasetype ELSE y.typelem END
  FROM parts JOIN pg_catalog.pg_type y ON y.oid = parts.oid
  WHERE y.typtype = 'd' OR y.typcategory = 'A'
)
SELECT parts.attname, bool_and(y.oid < 16384 OR o.rolsuper OR o.rolname = current_user
  OR (y.typtype IN ('d', 'e') OR y.typcategory = 'A') AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_cast c WHERE c.castsource = y.oid OR c.casttarget = y.oid))
FROM parts JOIN pg_catalog.pg_type y ON y.oid = parts.oid
JOIN pg_catalog.pg_roles o ON o.oid = y.typowner
GROUP BY 1
"""


def require_plain(
    connection: psycopg.Connection[tuple[Any, ...]], schema: TableSchema, request: ChunkRequest
) -> None:
    """Check the names of the condition; does nothing if ``request.where_names`` is None.

    Raises:
        ChunkRefusedError: the condition uses a name that may run another role's code; the message
            says which.
    """
    if not request.where_names:
        return
    rows = connection.execute(_COLUMNS.encode(), (schema.relation_id,)).fetchall()
    columns: dict[str, bool] = dict(rows)
    for name in request.where_names:
        quoted = name.startswith('"')
        column = name[1:-1].replace('""', '"') if quoted else name.lower()
        if not quoted and not name.isascii():
            _refuse(schema, f"names {name} without double quotes, which servers read differently")
        if column not in columns:
            _refuse(schema, f"names {name}, which is no column of the table")
        if not columns[column]:
            _refuse(
                schema, f"names {name}, whose type may run functions of the role that created it"
            )


def _refuse(schema: TableSchema, why: str) -> None:
    raise ChunkRefusedError(
        f"reading {schema.table}: the condition {why}. One of the signal table can't be used here: "
        "give it by `tidelog dump --where`, over HTTP or in the signal file"
    )
