"""Matches columns by patterns: the pattern of tables, a dot, and a name with ``*`` for any text.

docs/reference/table-patterns.md is this for users. ``!`` in front of a pattern makes an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.model.patterns import EXCLUDE, check_listed, glob, matches
from tidelog.model.printable import printable
from tidelog.model.schema import TableName

SYNTAX = "namespace.table.column, * for any text, such as public.users.password or *.*.password"


def matching_columns(
    patterns: Sequence[str], table: TableName, names: Iterable[str], *, ignore_case: bool = False
) -> tuple[str, ...]:
    """Return those of a table's columns that the patterns match, in order.

    ``ignore_case``: upper and lower case do not differ, in any part.
    """
    if ignore_case:
        patterns = [pattern.lower() for pattern in patterns]
        table = TableName(table.namespace.lower(), table.name.lower())
    found = []
    for name in names if patterns else ():
        column = name.lower() if ignore_case else name
        matched = [
            pattern
            for pattern in patterns
            if _matches_one(pattern.removeprefix(EXCLUDE), table, column)
        ]
        if matched and not any(pattern.startswith(EXCLUDE) for pattern in matched):
            found.append(name)
    return tuple(found)


def columns_of_any_table(patterns: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a pattern without ``!`` matches in some table, whichever it is."""
    cuts = [cut for p in patterns if not p.startswith(EXCLUDE) for cut in _cuts(p)]
    return tuple(name for name in names if any(glob(column, name) for _, column in cuts))


def unmatched_columns(
    patterns: Iterable[str],
    columns: Mapping[TableName, Sequence[str]],
    *,
    ignore_case: bool = False,
) -> list[str]:
    """Return the patterns, each once, that match no column. One with ``!`` is looked up without it.

    ``columns``: the names of each table's columns.
    """
    return [
        pattern
        for pattern in dict.fromkeys(patterns)
        if not any(
            matching_columns([pattern.removeprefix(EXCLUDE)], table, names, ignore_case=ignore_case)
            for table, names in columns.items()
        )
    ]


def unmatched_column_text(pattern: str) -> str:
    """Return the sentence about a pattern that matches no column."""
    return f"no column of a captured table matches '{printable(pattern)}'"


def check_column_pattern(pattern: str) -> str:
    """Return a user's pattern of columns. Raises ValueError, which says how to write it, if it can
    match no column, or has the syntax of another tool.
    """
    positive = pattern.removeprefix(EXCLUDE)
    if not any("." in table.strip(".") or table == "*" for table, column in _cuts(positive)):
        raise ValueError(f"expected {SYNTAX}")
    try:
        check_listed(pattern)
    except ValueError as error:
        reason = str(error).partition("; ")[2]
        raise ValueError(f"expected {SYNTAX}; {reason}") from None
    return pattern


def _matches_one(pattern: str, table: TableName, column: str) -> bool:
    return any(glob(name, column) and matches([tables], table) for tables, name in _cuts(pattern))


def _cuts(pattern: str) -> Iterable[tuple[str, str]]:
    """Yield what the pattern may mean: each dot may separate table and column."""
    for at, character in enumerate(pattern):
        if character == "." and pattern[:at] and pattern[at + 1 :]:
            yield pattern[:at], pattern[at + 1 :]
