"""The restricted conditions that writers of the signal table may use: comparisons of columns.

A dump's condition runs with the privileges of capture's role, so a signal must not be able to call
arbitrary functions (``pg_read_file``, ``pg_terminate_backend``, one of the writer's own).
Everything outside this grammar is rejected; it has no subselect and no names except columns'::

    condition   comparisons joined by AND, OR, NOT
    comparison  = <> != < <= > >=, IS [NOT] NULL | TRUE | FALSE | UNKNOWN | DISTINCT FROM,
                [NOT] IN (…), [NOT] BETWEEN … AND …, [NOT] LIKE | ILIKE … [ESCAPE …]
    operators   + - * / % ||
    values      columns, numbers, 'texts', TRUE, FALSE, NULL, DATE '…', CAST(… AS type), …::type
    functions   those of `FUNCTIONS`
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

FUNCTIONS: Final = frozenset({"lower", "upper", "length", "char_length", "abs", "coalesce", "mod"})
"""They depend only on their arguments, in every database that can be a source."""
MAX_DEPTH: Final = 64

_TYPES = frozenset(
    {
        *("smallint", "integer", "int", "int2", "int4", "int8", "bigint", "numeric", "decimal"),
        *("real", "float4", "float8", "text", "varchar", "char", "uuid", "boolean", "bool"),
        *("date", "time", "timestamp", "timestamptz", "interval", "datetime", "signed", "unsigned"),
    }
)
_TYPED = frozenset({"date", "time", "timestamp", "timestamptz", "interval", "uuid"})
_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "||"})
_CONSTANTS = frozenset({"null", "true", "false"})
_WORDS = frozenset(
    {
        *("and", "or", "not", "is", "in", "between", "like", "ilike", "escape", "cast", "as"),
        *("distinct", "from", "unknown", "select", "case", "exists", "any", "all", "array", "row"),
    }
)
# Texts without backslashes: databases interpret these differently.
_TOKEN = re.compile(
    r"""\s*(?: (?P<number> (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]) )
      | (?P<text> '(?:[^'\\]|'')*'(?!') )
      | (?P<quoted> "(?:[^"\\`]|"")+" | `[^`\\"]+` )
      | (?P<word> [^\W\d][\w$]* )
      | (?P<sign> <> | != | <= | >= | \|\| | :: | [-+*/%=<>(),] ) )""",
    re.VERBOSE,
)


def checked(condition: str) -> str:
    """Return the condition if the grammar allows it.

    Raises:
        ValueError: says what is not allowed; never contains the condition.
    """
    _Parser(condition).parse()
    return condition


def names(condition: str) -> tuple[str, ...]:
    """The column names in the condition, as written. Raises as `checked`."""
    parser = _Parser(condition)
    parser.parse()
    return tuple(dict.fromkeys(parser.names))


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"{what}. A condition of the signal table compares columns with values and calls no "
        "function but " + ", ".join(sorted(FUNCTIONS)) + "; give any other by `tidelog dump "
        "--where`, over HTTP or in the signal file"
    )


class _Parser:
    def __init__(self, condition: str) -> None:
        self._tokens = _tokens(condition)
        self.names: list[str] = []
        self._at = 0
        self._depth = 0

    def parse(self) -> None:
        self._condition()
        if self._at < len(self._tokens):
            self._unexpected()

    # ------------------------------------------------------------ tokens

    def _next_is(self, *texts: str) -> bool:
        if self._at >= len(self._tokens):
            return False
        kind, text = self._tokens[self._at]
        return kind in ("word", "sign") and text in texts

    def _take(self, *texts: str) -> bool:
        matches = self._next_is(*texts)
        self._at += matches
        return matches

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._unexpected()

    def _kind(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._tokens[place][0] if place < len(self._tokens) else "end"

    def _unexpected(self) -> NoReturn:
        _refuse(f"the condition is not understood (at its word or sign {self._at + 1})")

    # ------------------------------------------------------------ grammar

    def _condition(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(f"the condition is nested more than {MAX_DEPTH} deep")
        self._negation()
        while self._take("and", "or"):
            self._negation()
        self._depth -= 1

    def _negation(self) -> None:
        while self._take("not"):
            pass
        self._sum()
        while self._comparison():
            pass

    def _comparison(self) -> bool:
        if self._take(*_COMPARISONS):
            self._sum()
            return True
        if self._take("is"):
            self._take("not")
            if self._take("distinct"):
                self._expect("from")
                self._sum()
            elif not self._take("null", "true", "false", "unknown"):
                self._unexpected()
            return True
        negated = self._take("not")
        if self._take("in"):
            self._list()
        elif self._take("between"):
            self._sum()
            self._expect("and")
            self._sum()
        elif self._take("like", "ilike"):
            self._sum()
            if self._take("escape"):
                self._sum()
        else:
            if negated:
                self._unexpected()
            return False
        return True

    def _sum(self) -> None:
        self._signed()
        while self._take(*_ARITHMETIC):
            self._signed()

    def _signed(self) -> None:
        while self._take("+", "-"):
            pass
        self._value()
        while self._take("::"):
            self._type()

    def _list(self) -> None:
        self._expect("(")
        self._condition()
        while self._take(","):
            self._condition()
        self._expect(")")

    def _value(self) -> None:
        kind = self._kind()
        if self._next_is("("):
            self._list()
        elif self._take("cast"):
            self._expect("(")
            self._condition()
            self._expect("as")
            self._type()
            self._expect(")")
        elif kind in ("number", "text", "quoted"):
            if kind == "quoted":
                self.names.append(self._tokens[self._at][1])
            self._at += 1
            if kind == "quoted" and self._next_is("("):
                _refuse("the condition calls a function")
        elif kind == "word":
            self._named()
        else:
            self._unexpected()

    def _named(self) -> None:
        word = self._tokens[self._at][1]
        if word in _CONSTANTS:
            self._at += 1
            return
        if word in _WORDS:
            self._unexpected()
        self._at += 1
        if word in _TYPED and self._kind() == "text":
            self._at += 1
        elif self._next_is("("):
            if word not in FUNCTIONS:
                _refuse("the condition calls a function that a signal may not call")
            self._list()
        else:
            self.names.append(word)

    def _type(self) -> None:
        if self._take("double"):
            self._expect("precision")
            return
        if not self._take(*_TYPES):
            _refuse("the condition casts to a type that a signal may not name")
        if self._take("("):
            while True:
                if self._kind() != "number":
                    self._unexpected()
                self._at += 1
                if not self._take(","):
                    break
            self._expect(")")


def _tokens(condition: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at, end = 0, len(condition.rstrip())
    while at < end:
        match = _TOKEN.match(condition, at)
        if match is None:
            _refuse(f"the condition holds what is not understood (at its character {at + 1})")
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "word" and text.isascii():  # databases fold only these alike
            text = text.lower()
        if tokens and (tokens[-1][1], text) in (("-", "-"), ("/", "*")):
            _refuse("the condition holds a comment")
        # N'…', E'…', _utf8'…': a prefix directly before a text changes its meaning.
        if kind == "text" and tokens and tokens[-1][0] in ("word", "text", "quoted"):
            spaced = condition[at : match.start(kind)] != ""
            if not (spaced and tokens[-1][0] == "word"):
                _refuse("the condition holds a text with something directly before it")
        tokens.append((kind, text))
        at = match.end()
    return tokens
