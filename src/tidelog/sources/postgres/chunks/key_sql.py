"""Builds conditions on a table's key: the bounds of a range, and lists of requested keys.

NULL is the greatest value of a nullable key column, as in ``ORDER BY``, and its text is None: so a
walk over the key continues with the rows whose key holds NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.model.schema import TableSchema
from tidelog.sources.postgres.connect import quote_ident, quote_literal

Key = tuple[str | None, ...]

# The subquery of wanted keys; no table of a condition has this name.
_WANTED = quote_ident("tidelog wanted")


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
        return ", ".join(quote_ident(name) for name in self.columns)

    def after(self, key: Key) -> list[str]:
        """Disjoint conditions that together mean ``key < columns``; each is a range of the key's
        index.

        Empty if nothing follows.
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
            name = quote_ident(self.columns[place])
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
                found.append(" AND ".join([*equal, f"{quote_ident(self.columns[place])} IS NULL"]))
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
        names = [quote_ident(self.columns[place]) for place in places]
        values = [self._literal(place, text) for place, text in zip(places, key, strict=True)]
        spaces = [quote_ident(self.operators[place]) for place in places]
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
        name = quote_ident(self.columns[place])
        if text is None:
            return f"{name} IS NULL"
        space = quote_ident(self.operators[place])
        return f"{name} OPERATOR({space}.=) {self._literal(place, text)}"

    def _nullable(self, place: int) -> bool:
        return self.schema.columns[self.schema.column_index(self.columns[place])].nullable

    # ------------------------------------------------------------------ sets of keys

    def _among(self, nulls: tuple[int, ...], keys: Sequence[Key]) -> str:
        given = [place for place in range(len(self.columns)) if place not in nulls]
        terms = [f"{quote_ident(self.columns[place])} IS NULL" for place in nulls]
        if len(given) == 1:
            place = given[0]
            spelled = f"OPERATOR({quote_ident(self.operators[place])}.=)"
            values = self._array(place, [key[place] for key in keys])
            wanted = f"SELECT * FROM {self._wanted_keys(given, keys)}" if values is None else values  # noqa: S608
            terms.append(f"{quote_ident(self.columns[place])} {spelled} ANY ({wanted})")
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
            f"{self._qualified(place)} OPERATOR({quote_ident(self.operators[place])}.=) "
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
        """The values as one literal; None for a column of arrays, as arrays of arrays
        don't exist.
        """
        type_name = self._type(place)
        if type_name.endswith("[]"):
            return None
        return f"CAST({quote_literal(_array_text(texts))} AS {type_name}[])"

    # ------------------------------------------------------------------ values

    def _qualified(self, place: int) -> str:
        return f"{self.table}.{quote_ident(self.columns[place])}"

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
