"""Selects the tables that a command names, by patterns or by Debezium's regular expressions.

Debezium matches an expression against a table's full name, and takes one that matches nothing as a
name (its ``AbstractIncrementalSnapshotChangeEventSource``). There a name with special characters is
quoted as in SQL: ``public."My.Table"``.

Expressions come from anyone who may write a signal. Python's `re` may take very long for one, and
blocks all other threads during that time; RE2 takes time in proportion to the name, and in return
has no look-around and no back-references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import re2

from tidelog.model import patterns as table_patterns
from tidelog.model.patterns import EXCLUDE, all_but, check_listed, excludes, matches
from tidelog.model.schema import TableName

Matching = Literal["glob", "regex"]
MAX_PATTERN = 1000  # characters
MAX_PATTERNS = 1000  # of one command

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Matches patterns with tables.

    Args:
        matching: ``glob``: ``namespace.table`` with ``*``; ``regex``: see above.
        database: the tables' database, which expressions may put in front; None: they may not.
    """

    matching: Matching = "glob"
    database: str | None = None

    def names(self, pattern: str, table: TableName) -> bool:
        """Does the pattern match the table?"""
        if self.matching == "glob":
            return matches([pattern], table)
        spellings = _spellings(table, self.database)
        if pattern in spellings:
            return True
        expression = _compiled(pattern)
        return expression is not None and any(expression.fullmatch(text) for text in spellings)

    def chosen(self, patterns: Sequence[str], tables: Iterable[TableName]) -> list[TableName]:
        """The tables that the patterns select, in the order of the patterns; no pattern: all."""
        known = list(tables)
        if not patterns:
            return known
        naming = list(patterns)
        if self.matching == "glob":
            naming = [p for p in all_but(patterns) if not self.excludes(p)]
            known = [table for table in known if not excludes(patterns, table)]
        named = (table for p in naming for table in known if self.names(p, table))
        return list(dict.fromkeys(named))

    def first_match(self, conditions: Mapping[str, str], table: TableName) -> str | None:
        """The value of the first pattern that matches the table."""
        for pattern, condition in conditions.items():
            if self.names(pattern, table):
                return condition
        return None

    def unmatched(self, patterns: Iterable[str], tables: Iterable[TableName]) -> list[str]:
        """The patterns that match none of the tables, each once."""
        if self.matching == "glob":
            return table_patterns.unmatched(patterns, tables)
        known = list(tables)
        distinct = dict.fromkeys(patterns)
        return [p for p in distinct if not any(self.names(p, table) for table in known)]

    def excludes(self, pattern: str) -> bool:
        """Does the pattern exclude tables, rather than name them?"""
        return self.matching == "glob" and pattern.startswith(EXCLUDE)

    def advice(self, pattern: str) -> str:
        """How to write the pattern, if it has another tool's syntax; else empty."""
        if self.matching == "regex":
            return ""
        try:
            check_listed(pattern)
        except ValueError as error:
            return str(error)
        return ""


def any_case(pattern: str) -> str:
    """The expression, made case-insensitive."""
    return f"(?i:{pattern})"


def without_any_case(pattern: str) -> str:
    """The expression that was passed to `any_case`."""
    return pattern[4:-1] if pattern.startswith("(?i:") and pattern.endswith(")") else pattern


def is_expression(pattern: str) -> bool:
    """Is it a valid expression of RE2?"""
    return _compiled(pattern) is not None


@lru_cache(maxsize=MAX_PATTERNS)
def _compiled(pattern: str) -> Any:
    """The compiled expression; None: it is not valid."""
    try:
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=10_000)
def _spellings(table: TableName, database: str | None) -> tuple[str, ...]:
    """How users write the table: plain, with parts quoted as in SQL, with its database in front."""
    namespaces, names = ({part, _quoted(part)} for part in (table.namespace, table.name))
    short = [f"{namespace}.{name}" for namespace in namespaces for name in names]
    fronts = () if database is None else (database, _quoted(database))
    spellings = (*short, *(f"{front}.{text}" for front in fronts for text in short))
    # RE2 takes UTF-8 only; a database without an encoding may have other names.
    return tuple(text.encode("utf-8", "replace").decode() for text in spellings)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
