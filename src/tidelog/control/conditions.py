"""Checks SQL conditions without parsing SQL.

A condition is put into a chunk's SELECT between parentheses, so it must be one expression that ends
where its text ends. Debezium's blocking snapshots take a whole SELECT; its condition is extracted
from the form that their manual shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

MAX_CONDITION = 20_000  # characters
_NOT_IN_PAIRS = "the SQL condition's quotes or parentheses are not in pairs"

# The parts of postgresql.org/docs/current/sql-syntax-lexical.html that decide where tokens end.
_TOKEN = re.compile(
    r"""(?P<quoted> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                  | \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$ )
      | (?P<comment> -- | /\* )
      | (?P<open> [(\[] ) | (?P<close> [)\]] )
      | (?P<word> [A-Za-z_][\w$]* )
      | (?P<end> ; )
      | (?P<unclosed> ['"] | \$(?:[A-Za-z_]\w*|)\$ )
      | (?P<space> \s+ )
      | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)
_BEYOND_PLAIN = (
    *("GROUP", "HAVING", "LIMIT", "OFFSET", "FETCH", "UNION", "INTERSECT", "EXCEPT"),
    *("WINDOW", "FOR", "JOIN", "INTO"),
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    depth: int


def check_condition(condition: str) -> str:
    """Return the condition if it is one expression.

    Raises:
        ValueError: says what is not allowed; never contains the condition.
    """
    if not condition.strip():
        raise ValueError("the condition is empty")
    _check_length(condition)
    depth = 0
    for token in _tokens(condition):
        depth = token.depth
        if token.kind == "end":
            raise ValueError("one SQL condition without ';' is expected")
        if token.kind == "comment":
            raise ValueError("an SQL condition without comments is expected")
        if depth < 0:
            raise ValueError(_NOT_IN_PAIRS)
    if depth != 0:
        raise ValueError(_NOT_IN_PAIRS)
    return condition


def condition_of_filter(text: str) -> str | None:
    """The condition of a Debezium ``filter``: a condition, or ``SELECT * FROM t WHERE …``.

    Returns:
        None for a SELECT without WHERE. An ORDER BY is ignored: chunks have their own order.

    Raises:
        ValueError: for any other SELECT, or what `check_condition` rejects.
    """
    _check_length(text)
    text = text.strip().removesuffix(";")
    tokens = [token for token in _tokens(text) if token.kind != "space"]
    if not tokens or tokens[0].text.upper() != "SELECT":
        return check_condition(text)
    words = {
        token.text.upper(): place
        for place, token in reversed(list(enumerate(tokens)))
        if token.kind == "word" and token.depth == 0
    }
    where, order = words.get("WHERE", len(tokens)), words.get("ORDER", len(tokens))
    simple = (
        [token.text.upper() for token in tokens[1:3]] == ["*", "FROM"]
        and not words.keys() & set(_BEYOND_PLAIN)
        and where <= order
        and _is_one_name(tokens[3 : min(where, order)])
    )
    if not simple:
        raise ValueError(
            "of SELECT statements only SELECT * FROM table [WHERE …] [ORDER BY …] can be used"
        )
    if where == len(tokens):
        return None
    begin = tokens[where].start + len("WHERE")
    end = tokens[order].start if order < len(tokens) else len(text)
    return check_condition(text[begin:end].strip())


def _check_length(text: str) -> None:
    if len(text) > MAX_CONDITION:
        raise ValueError(f"a condition has at most {MAX_CONDITION} characters")


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens. ``depth``: nesting around the token; for a closing one, the depth after it.

    Raises ValueError at an unclosed quote: searching for the end of each would take too long.
    """
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup if match.lastgroup != "tag" else "quoted")
        if kind == "unclosed":
            raise ValueError(_NOT_IN_PAIRS)
        if kind == "close":
            depth -= 1
        yield _Token(kind, match[0], match.start(), depth)
        if kind == "open":
            depth += 1
    if depth:
        yield _Token("space", "", len(text), depth)


def _is_one_name(tokens: list[_Token]) -> bool:
    """Are the tokens exactly one table name, in any database's quotes?"""
    text = "".join(token.text if token.kind != "quoted" else "q" for token in tokens)
    adjoining = all(
        before.start + len(before.text) == after.start for before, after in pairwise(tokens)
    )
    return adjoining and re.fullmatch(r"[\w$.\[\]`]+", text) is not None
