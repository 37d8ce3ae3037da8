"""Which tables a command names: by our patterns, or by regular expressions as Debezium's signals.

Debezium matches an expression against the whole of a table's full name, and takes one that matches
nothing as a name (its ``AbstractIncrementalSnapshotChangeEventSource``). A name with odd characters
is quoted as in SQL there: ``public."My.Table"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName

Matching = Literal["glob", "regex"]
MAX_PATTERN = 1000  # characters
_PLAIN = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Matches patterns with tables.

    Args:
        matching: ``glob``: ``namespace.table`` with ``*``; ``regex``: see above.
        database: the tables' database, which expressions may name in front; None: they may not.
    """

    matching: Matching = "glob"
    database: str | None = None

    def names(self, pattern: str, table: TableName) -> bool:
        """Does the pattern name the table?"""
        if self.matching == "glob":
            return matches([pattern], table)
        spellings = _spellings(table, self.database)
        if pattern in spellings:
            return True
        expression = _compiled(pattern)
        return expression is not None and any(expression.fullmatch(text) for text in spellings)

    def first(self, conditions: Mapping[str, str], table: TableName) -> str | None:
        """The value of the first pattern that names the table."""
        for pattern, condition in conditions.items():
            if self.names(pattern, table):
                return condition
        return None

    def unmatched(self, patterns: Iterable[str], tables: Iterable[TableName]) -> list[str]:
        """Patterns that name none of the tables, each once."""
        known = list(tables)
        distinct = dict.fromkeys(patterns)
        return [p for p in distinct if not any(self.names(p, table) for table in known)]


def any_case(pattern: str) -> str:
    """The expression, heeding no case."""
    return f"(?i:{pattern})"


def is_expression(pattern: str) -> bool:
    """Can it be compiled?"""
    return _compiled(pattern) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def _spellings(table: TableName, database: str | None) -> list[str]:
    """How people write the table: plain, with parts quoted as SQL does, behind its database."""
    namespaces, names = ({part, _quoted(part)} for part in (table.namespace, table.name))
    short = [f"{namespace}.{name}" for namespace in namespaces for name in names]
    if database is None:
        return short
    return short + [f"{front}.{text}" for front in {database, _quoted(database)} for text in short]


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
