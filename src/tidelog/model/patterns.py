"""Which tables a list of patterns names: the one matcher, for all who take names or patterns.

A pattern is ``namespace.table``, or ``*`` for all tables. In it ``*`` stands for any text, dots and
none included; no other character is special. The namespace of a name with more dots than one may
be quoted as in SQL: ``"a.b".t``. docs/reference/table-patterns.md is this for users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from tidelog.model.schema import TableName

Value = TypeVar("Value")

SYNTAX = "namespace.table, * for any text, such as public.orders or public.*"


def matches(patterns: Iterable[str | TableName], table: TableName) -> bool:
    """Does a pattern name the table? A `TableName` among the patterns names only itself.

    Names with dots of their own match too: every dot of the pattern is tried as the separator. What
    `str` makes of a table's name matches it as well.
    """
    return any(
        pattern == table if isinstance(pattern, TableName) else _matches_one(pattern, table)
        for pattern in patterns
    )


def routed(routes: Iterable[tuple[str, Sequence[str]]], table: TableName) -> str:
    """Where the table goes: the first route, with its patterns, that matches, or its own name.

    Raises ValueError if the route can't be filled in.
    """
    for route, patterns in routes:
        if matches(patterns, table):
            try:
                return route.format(namespace=table.namespace, name=table.name)
            except (KeyError, IndexError, ValueError):
                raise ValueError(
                    f"route {route!r}: only {{namespace}} and {{name}} can stand in it"
                ) from None
    return str(table)


def choice(choices: Mapping[str, Value], table: TableName, default: Value) -> Value:
    """That of the first pattern that matches the table; ``default`` if none does."""
    return next((each for pattern, each in choices.items() if matches((pattern,), table)), default)


def checked(pattern: str) -> str:
    """Returns the pattern. Raises ValueError if it can match no table."""
    if pattern != "*" and "." not in pattern[1:-1]:
        raise ValueError(f"expected {SYNTAX}")
    return pattern


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """May there be a table that both name?"""
    return any(_meet(one, other) for one in some for other in others)


@lru_cache(maxsize=1 << 14)
def _meet(one: str, other: str) -> bool:
    """Is there a text that both patterns match?"""
    if not one or not other:
        return not (one + other).strip("*")
    if "*" in (one[0], other[0]):
        return _meet(one[1:], other) or _meet(one, other[1:])
    return one[0] == other[0] and _meet(one[1:], other[1:])


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
    """Is it the text, if ``*`` stands for any? No regular expression: that of ``*a*a*a*b`` takes
    exponential time on ``aaaa…``.
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
