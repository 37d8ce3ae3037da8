"""Matches tables by patterns: the one matcher for all users of names or patterns.

A pattern is ``namespace.table``, or ``*`` for all tables. In it ``*`` stands for any text, also
with dots or empty; no other character is special. The namespace of a name with several dots may be
quoted as in SQL: ``"a.b".t``. docs/reference/table-patterns.md is this for users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from tidelog.model.schema import TableName

Value = TypeVar("Value")

SYNTAX = "namespace.table, * for any text, such as public.orders or public.*"


def matches(patterns: Iterable[str | TableName], table: TableName) -> bool:
    """Return whether a pattern matches the table. A `TableName` as a pattern matches only itself.

    Names with dots match, too: every dot of the pattern is tried as the separator. The `str` of a
    table's name matches it as well.
    """
    return any(
        pattern == table if isinstance(pattern, TableName) else _matches_one(pattern, table)
        for pattern in patterns
    )


def routed(routes: Iterable[tuple[str, Sequence[str]]], table: TableName) -> str:
    """Return the table's destination: the first route with a matching pattern, or its own name.

    Raises ValueError if the route can't be filled in.
    """
    for route, patterns in routes:
        if matches(patterns, table):
            try:
                return route.format(namespace=table.namespace, name=table.name)
            except (KeyError, IndexError, ValueError):
                raise ValueError(
                    f"route {route!r}: only {{namespace}} and {{name}} can be used in it"
                ) from None
    return str(table)


def choice(choices: Mapping[str, Value], table: TableName, default: Value) -> Value:
    """Return the value of the first pattern that matches the table, else ``default``."""
    return next((each for pattern, each in choices.items() if matches((pattern,), table)), default)


def check_pattern(pattern: str) -> str:
    """Return the pattern. Raises ValueError if it can match no table."""
    if pattern != "*" and "." not in pattern[1:-1]:
        raise ValueError(f"expected {SYNTAX}")
    return pattern


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether a table may match patterns of both."""
    return any(_patterns_overlap(one, other) for one in some for other in others)


@lru_cache(maxsize=1 << 14)
def _patterns_overlap(one: str, other: str) -> bool:
    """Return whether a text may match both patterns."""
    if not one or not other:
        return not (one + other).strip("*")
    if "*" in (one[0], other[0]):
        return _patterns_overlap(one[1:], other) or _patterns_overlap(one, other[1:])
    return one[0] == other[0] and _patterns_overlap(one[1:], other[1:])


def _matches_one(pattern: str, table: TableName) -> bool:
    if pattern in ("*", str(table)):
        return True
    pieces = pattern.split(".")
    for cut in range(1, len(pieces)):
        namespace, name = ".".join(pieces[:cut]), ".".join(pieces[cut:])
        if glob(namespace, table.namespace) and glob(name, table.name):
            return True
    return False


def glob(pattern: str, text: str) -> bool:
    """Return whether the text matches, with ``*`` for any text.

    No regular expression: that of ``*a*a*a*b`` takes exponential time on ``aaaa…``.
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *between, last = others
    end = len(text) - len(last)
    if not (text.startswith(first) and text.endswith(last) and len(first) <= end):
        return False
    at = len(first)
    for piece in between:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
