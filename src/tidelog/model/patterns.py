"""Matches tables and columns by patterns: the one matcher for all users of names or patterns.

A pattern is ``namespace.table``, or ``*`` for all tables. In it ``*`` stands for any text, also
with dots or empty; no other character is special. A namespace may be quoted as in SQL, and is then
taken as it is: ``"a.b".t``. A pattern of a list with ``!`` in front excludes: a table is selected
if a pattern without ``!`` matches it and none with ``!`` does, in whatever order they stand.

A pattern of columns is the pattern of tables, a dot, and a name with ``*`` for any text; ``!`` in
front makes an exception. docs/reference/table-patterns.md is this for users.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, TypeVar

from tidelog.model.schema import TableName, double_quoted
from tidelog.model.units import printable

Value = TypeVar("Value")

SYNTAX = "namespace.table, * for any text, such as public.orders or public.*"
EXCLUDE: Final = "!"

_QUOTED_NAMESPACE = re.compile(r'"(?:[^"]|"")+"\..', re.DOTALL)
_QUOTED_NAMES = re.compile(r'"(?:[^"]|"")+"\.".*"$', re.DOTALL)
_QUOTED_NAME = re.compile(r"""(?:^|\.)(?:".*"|`.*`)$|^`""", re.DOTALL)
_QUOTED = re.compile(r"""(["`])((?:(?!\1).|\1\1)*)\1""")
_REGULAR_EXPRESSION = re.compile(
    r"\\[.*+?()|\[\]wWdDsSbB]|^\^|\([^)]*[|*+][^)]*\)|\{[^}]*,[^}]*\}|\{\d+\}|\[\^|\][+{]|\.\."
)
_OTHER: Final = "\1"  # any character that no pattern has
_SEPARATOR: Final = "\0"  # between namespace and name; no database has it in a name
_END: Final = "\2"
_STAR: Final = "\3"  # of a name
_MOST_STATES: Final = 100_000


def matches(patterns: Iterable[str | TableName], table: TableName) -> bool:
    """Return whether the patterns select the table. A `TableName` matches only itself.

    Names with dots match, too: every dot of a pattern is tried as the separator. The `str` of a
    table's name matches it as well.
    """
    selected = False
    for pattern in patterns:
        if isinstance(pattern, TableName):
            selected = selected or pattern == table
        elif pattern.startswith(EXCLUDE):
            if _matches_table(pattern[1:], table):
                return False
        else:
            selected = selected or _matches_table(pattern, table)
    return selected


def exclusion(*tables: TableName, of: str = "source.tables") -> str:
    """Return what to do to exclude these tables, as part of a sentence."""
    listed = ", ".join(f"'{EXCLUDE}{printable(pattern_of(table))}'" for table in tables)
    return f"exclude {'it' if len(tables) == 1 else 'them'}: add {listed} to {of}"


def excludes(patterns: Iterable[str], table: TableName) -> bool:
    """Return whether a pattern with ``!`` matches the table."""
    return any(_matches_table(p[1:], table) for p in patterns if p.startswith(EXCLUDE))


def all_but(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns; for a list in which none means all, with ``*`` if all have ``!``."""
    given = tuple(patterns)
    return ("*", *given) if given and _only_excludes(given) else given


def patterns_without_table(patterns: Iterable[str], tables: Iterable[TableName]) -> list[str]:
    """Return the patterns, each once, that match none of the tables: misspelled, or for future
    tables. One with ``!`` is looked up without it.
    """
    known = list(tables)
    return [
        pattern
        for pattern in dict.fromkeys(patterns)
        if not any(_matches_table(pattern.removeprefix(EXCLUDE), table) for table in known)
    ]


def unmatched_text(pattern: str, tables: str) -> str:
    """Return the sentence about a pattern without a table. ``tables``: which it can match."""
    shown = f"'{printable(pattern)}'"
    if pattern.startswith(EXCLUDE):
        return f"{shown} excludes no {tables}"
    return f"no {tables} matches {shown}"


_TYPING_ERRORS = 2


def similar_table(
    pattern: str,
    tables: Iterable[TableName],
    partitioned: Callable[[TableName], TableName | None] = lambda _table: None,
) -> str:
    """Return which table to name in place of a pattern that matches none: that of which it names a
    partition, or the question whether one was meant that differs in case, or little; or nothing,
    also for a pattern with ``*``. ``partitioned``: see `tidelog.ports.Catalogue`.
    """
    named = positive = pattern.removeprefix(EXCLUDE)
    if "*" in positive:
        return ""
    excludes = EXCLUDE if pattern.startswith(EXCLUDE) else ""
    with suppress(ValueError):
        table = TableName.parse(named)
        if (whole := partitioned(table)) is not None:
            shown = printable(excludes + pattern_of(whole))
            return f"{printable(named)} is a partition of {whole}, which has its rows: name {shown}"
        positive = str(table)
    positive = positive.lower()
    known = {str(table).lower(): table for table in tables}
    near = [positive]
    if positive not in known:  # of ten thousand names only few are compared, which takes time
        alike = [each for each in known if abs(len(each) - len(positive)) <= _TYPING_ERRORS]
        near = get_close_matches(positive, alike, 1, 0.8)
    return f"did you mean {excludes}{printable(pattern_of(known[near[0]]))}?" if near else ""


def route_of(routes: Iterable[tuple[str, Sequence[str]]], table: TableName) -> str:
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
    """Return a user's pattern. Raises ValueError, which says how to write it, if it can match no
    table, or has the syntax of another tool: a table with such a name is written with its namespace
    in quotes.
    """
    if pattern.startswith(EXCLUDE):
        raise ValueError("a pattern with ! excludes tables of a list; here it names tables")
    return check_listed(pattern)


def check_listed(pattern: str) -> str:
    """As `check_pattern`, for a pattern of a list: it may have ``!`` in front."""
    positive = require_pattern(pattern)
    if not _QUOTED_NAMESPACE.match(positive) or _QUOTED_NAMES.match(positive):
        foreign = _foreign(positive)
        if foreign is not None:
            raise ValueError(f"expected {SYNTAX}; {foreign}")
    return pattern


def check_selects(patterns: Sequence[str]) -> Sequence[str]:
    """Return the patterns of a list. Raises ValueError if all of them exclude."""
    if patterns and _only_excludes(patterns):
        raise ValueError(
            'patterns with ! only exclude: add one that selects, such as "*.*" for all tables'
        )
    return patterns


def pattern_of(table: TableName) -> str:
    """Return a pattern that a user can write for the table, whatever its name has."""
    if "." not in table.name:
        with suppress(ValueError):
            return check_pattern(str(table))
    quoted = f"{double_quoted(table.namespace)}.{table.name}"
    if _QUOTED_NAMES.match(quoted):  # as SQL has it, which is refused
        return f"{double_quoted(table.namespace)}.*{table.name[1:]}"
    return quoted


def dump_command(table: TableName) -> str:
    """Return the command that dumps the table, as a user can paste it into a shell."""
    return f"tidelog dump CONFIG --table {shlex.quote(pattern_of(table))}"


def require_pattern(pattern: str) -> str:
    """Return a pattern, of a user or of a program, without its ``!``. Raises ValueError if it can
    match no table.
    """
    positive = pattern.removeprefix(EXCLUDE)
    if positive != "*" and "." not in positive[1:-1]:
        raise ValueError(f"expected {SYNTAX}")
    return positive


def _foreign(pattern: str) -> str | None:
    """Return how to write a pattern that has the syntax of another tool; None: it has none."""
    if pattern.startswith(("-", EXCLUDE)):
        return f"to exclude it, write {EXCLUDE}{pattern.lstrip('-! ')}"
    if pattern != pattern.strip():
        return f"leave out the spaces around it: {pattern.strip()}"
    if _QUOTED_NAME.search(pattern):
        plain = _QUOTED.sub(lambda m: m[2].replace(m[1] * 2, m[1]), pattern)
        return f"leave out the quotes; upper and lower case are as they stand: {plain}"
    if "," in pattern and all("." in part for part in pattern.split(",")):
        return f"give each its own item of the list: {', '.join(pattern.replace(',', ' ').split())}"
    if _REGULAR_EXPRESSION.search(pattern):
        simple = re.sub(r"\\([.])|\.[*+]", lambda m: m[1] or "*", pattern.strip("^$"))
        instead = simple if re.fullmatch(r"[\w.*-]+", simple) else "one pattern for each table"
        return f"a regular expression is none; instead of this one: {instead}"
    if "%" in pattern:
        return f"any text is *, not %: {pattern.replace('%', '*')}"
    return None


def _only_excludes(patterns: Iterable[str]) -> bool:
    return all(pattern.startswith(EXCLUDE) for pattern in patterns)


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether a table may be selected by both lists."""
    return _overlap(tuple(some), tuple(others))


@lru_cache(maxsize=1 << 10)
def _overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """All patterns are matched at once with all names that some may have, character by character. A
    state is a set of places: how much of which word is matched.
    """
    words = [
        (role, f"{word}{_END}")
        for number, patterns in enumerate((some, others))
        for pattern in patterns
        for role in [EXCLUDE if pattern.startswith(EXCLUDE) else str(number)]
        for word in _words(pattern.removeprefix(EXCLUDE))
    ]
    start = _skip_stars(words, ((number, 0) for number in range(len(words))))
    seen, waiting = {start}, [start]
    while waiting and len(seen) < _MOST_STATES:
        state = waiting.pop()
        letters = {words[number][1][at] for number, at in state} - {"*"}
        ended = {words[number][0] for number, at in state if words[number][1][at] == _END}
        if ended == {"0", "1"}:
            return True
        for letter in (*(letters - {_END}), _OTHER):
            after = _skip_stars(words, _behind(words, state, letter))
            if after not in seen and {"0", "1"} <= {words[number][0] for number, _ in after}:
                seen.add(after)
                waiting.append(after)
    return bool(waiting)  # too many states to know


_Words = Sequence[tuple[str, str]]
"""Each with its role: it selects for the first list, ``0``, or the second, ``1``, or excludes."""
_Place = tuple[int, int]
"""The number of a word, and how many of its characters are matched."""


def _behind(words: _Words, state: Iterable[_Place], letter: str) -> Iterator[_Place]:
    for number, at in state:
        expected = words[number][1][at]
        if expected == letter:
            yield number, at + 1
        elif expected == "*" and letter != _SEPARATOR:
            yield number, at


def _skip_stars(words: _Words, places: Iterable[_Place]) -> frozenset[_Place]:
    """Return the places, and those behind the stars there: a star may stand for no text."""
    reached = set()
    for number, at in places:
        reached.add((number, at))
        while words[number][1][at] == "*":
            at += 1
            reached.add((number, at))
    return frozenset(reached)


def _words(pattern: str) -> tuple[str, ...]:
    """Return what the pattern may stand for, each with `_SEPARATOR` behind the namespace."""
    if pattern == "*":
        return (f"*{_SEPARATOR}*",)
    if _QUOTED_NAMESPACE.match(pattern):
        named = TableName.parse(pattern)
        return (f"{named.namespace.replace('*', _STAR)}{_SEPARATOR}{named.name}",)
    dots = [at for at, character in enumerate(pattern) if character == "."]
    return tuple(f"{pattern[:at]}{_SEPARATOR}{pattern[at + 1 :]}" for at in dots)


def _matches_table(pattern: str, table: TableName) -> bool:
    if pattern in ("*", str(table)):
        return True
    if _QUOTED_NAMESPACE.match(pattern):
        named = TableName.parse(pattern)
        if named.namespace == table.namespace and matches_glob(named.name, table.name):
            return True
    pieces = pattern.split(".")
    for cut in range(1, len(pieces)):
        namespace, name = ".".join(pieces[:cut]), ".".join(pieces[cut:])
        if matches_glob(namespace, table.namespace) and matches_glob(name, table.name):
            return True
    return False


def matches_glob(pattern: str, text: str) -> bool:
    """Return whether the text matches, with ``*`` for any text. No regular expression: that of
    ``*a*a*a*b`` takes exponential time on ``aaaa…``.
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


# Patterns of columns.

COLUMN_SYNTAX = (
    "namespace.table.column, * for any text, such as public.users.password or *.*.password"
)


def matching_columns(
    patterns: Sequence[str], table: TableName, names: Iterable[str], *, ignore_case: bool = False
) -> tuple[str, ...]:
    """Return those of a table's columns that the patterns match, in order. ``ignore_case``: upper
    and lower case do not differ, in any part.
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
            if matches_column(pattern.removeprefix(EXCLUDE), table, column)
        ]
        if matched and not any(pattern.startswith(EXCLUDE) for pattern in matched):
            found.append(name)
    return tuple(found)


def columns_of_any_table(patterns: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a pattern without ``!`` matches in some table, whichever it is."""
    cuts = [cut for p in patterns if not p.startswith(EXCLUDE) for cut in _cuts(p)]
    return tuple(name for name in names if any(matches_glob(column, name) for _, column in cuts))


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


def named_tables(pattern: str, tables: Iterable[TableName]) -> list[TableName]:
    """Return the tables of which a pattern of columns names one column, without ``*`` or ``!``."""
    if "*" in pattern or pattern.startswith(EXCLUDE):
        return []
    parts = [of_tables.lower() for of_tables, _ in _cuts(pattern)]
    return [each for each in tables if any(matches([part], each.lower_case()) for part in parts)]


def unmatched_column_text(pattern: str, columns: Mapping[TableName, Sequence[str]]) -> str:
    """Return the sentence about a pattern that matches no column of these tables."""
    shown = printable(pattern)
    for table in named_tables(pattern, columns):
        name = shown.rpartition(".")[2]
        near = get_close_matches(name.lower(), [each.lower() for each in columns[table]], 1)
        found = [each for each in columns[table] if [each.lower()] == near]
        hint = f"; did you mean {printable(found[0])}?" if found else ""
        return f"'{shown}': the table has no such column{hint}"
    return f"no column of a captured table matches '{shown}'"


def check_column_pattern(pattern: str) -> str:
    """Return a user's pattern of columns. Raises ValueError, which says how to write it, if it can
    match no column, or has the syntax of another tool.
    """
    positive = pattern.removeprefix(EXCLUDE)
    if not any("." in table.strip(".") or table == "*" for table, column in _cuts(positive)):
        raise ValueError(f"expected {COLUMN_SYNTAX}")
    try:
        check_listed(pattern)
    except ValueError as error:
        reason = str(error).partition("; ")[2]
        raise ValueError(f"expected {COLUMN_SYNTAX}; {reason}") from None
    return pattern


def matches_column(pattern: str, table: TableName, column: str) -> bool:
    """Return whether a pattern of columns matches this one."""
    return any(
        matches_glob(name, column) and matches([tables], table) for tables, name in _cuts(pattern)
    )


def _cuts(pattern: str) -> Iterable[tuple[str, str]]:
    """Yield what the pattern may mean: each dot may separate table and column."""
    for at, character in enumerate(pattern):
        if character == "." and pattern[:at] and pattern[at + 1 :]:
            yield pattern[:at], pattern[at + 1 :]
