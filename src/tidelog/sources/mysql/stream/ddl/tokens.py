"""Splits a statement into words, names and marks, and provides a cursor over them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tidelog.model.schema import TableName


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    ``kind``: ``word`` (upper-cased text in ``upper``), ``name`` (in backticks or quotes), ``text``
    (a literal), ``mark`` (one character).
    """

    kind: str
    text: str
    upper: str


# Bits of sql_mode: double quotes delimit names; a backslash does not escape.
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20

# Possessive quantifiers avoid backtracking: any user of the server may write a statement, and one
# that this reads differently from the server must still take linear time.
_ESCAPED = {
    quote: rf"[^{quote}\\]*+(?:(?:\\(?:(?s:.)|\Z)|{quote}{quote})[^{quote}\\]*+)*+"
    for quote in "\"'"
}
_PLAIN = {quote: rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+" for quote in "\"'`"}


@cache
def _token(sql_mode: int) -> re.Pattern[str]:
    """The pattern of a token under these two bits of sql_mode."""
    texts = _PLAIN if sql_mode & _NO_BACKSLASH_ESCAPES else _ESCAPED
    double = _PLAIN if sql_mode & _ANSI_QUOTES else texts
    return re.compile(
        rf"""
        (?P<space>\s+|\#[^\n]*|--(?=[\s\x00-\x1f\x7f]|\Z)[^\n]*)
        |(?P<open>/\*(?:M?!)\d*)|(?P<comment>/\*(?s:.*?)(?:\*/|\Z))|(?P<close>\*/)
        |`(?P<name>{_PLAIN["`"]})(?:`|\Z)
        |"(?P<double>{double['"']})(?:"|\Z)
        |'(?P<text>{texts["'"]})(?:'|\Z)
        |(?P<word>[\w$\u0080-\U0010ffff]+)
        |(?P<mark>(?s:.))
        """,
        re.VERBOSE,
    )


def tokens(sql: str, sql_mode: int = 0) -> Iterator[Token]:
    """The statement's tokens without comments; the content of ``/*! … */`` counts as code."""
    for found in _token(sql_mode & (_ANSI_QUOTES | _NO_BACKSLASH_ESCAPES)).finditer(sql):
        kind = found.lastgroup
        if kind == "name":
            yield Token("name", found["name"].replace("``", "`"), "")
        elif kind == "double":  # a literal, or a name under ANSI_QUOTES
            yield Token("name", found["double"].replace('""', '"'), "")
        elif kind == "text":
            yield Token("text", found["text"], "")
        elif kind == "word":
            yield Token("word", found["word"], found["word"].upper())
        elif kind == "mark":
            yield Token("mark", found["mark"], found["mark"])


class TokenCursor:
    """Reads a statement token by token.

    Attributes:
        tokens: all tokens.
        at: the current token's index; ``len(tokens)`` at the end.
    """

    def __init__(self, tokens: list[Token], database: str) -> None:
        self.tokens = tokens
        self.at = 0
        self._database = database

    @property
    def ended(self) -> bool:
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].upper if at < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        if self.word() in words and self.word():
            self.at += 1
            return True
        return False

    def if_exists(self) -> None:
        if self.take("IF"):
            self.take("EXISTS")

    def name(self) -> str | None:
        if self.at >= len(self.tokens) or self.tokens[self.at].kind not in ("word", "name"):
            return None
        self.at += 1
        return self.tokens[self.at - 1].text

    def table(self) -> TableName | None:
        first = self.name()
        if first is None:
            return None
        if self.take("."):
            second = self.name()
            return None if second is None else TableName(first, second)
        return TableName(self._database, first)

    def names_primary(self) -> bool:
        """Return True if the name of a primary key follows."""
        self.if_exists()
        name = self.name()
        return name is not None and name.upper() == "PRIMARY"
