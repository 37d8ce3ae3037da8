"""What a statement of the log does to tables: enough of SQL to tell, and no more.

The log holds DDL as text. Read here are the tables that a statement names, whether their columns
may be others afterwards, and whether rows changed for which there are no row events. What a
statement does beyond that (defaults, types) is the catalogue's to say. In doubt a statement counts
as doing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import pairwise

from tidelog.model.schema import TableName


class Effect(Enum):
    """What happened to one table."""

    CREATED = "created"
    CREATED_IF_MISSING = "created if missing"
    REPLACED = "replaced"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    RENAMED_AWAY = "renamed away"
    RENAMED_HERE = "renamed here"
    ALTERED = "altered"  # its columns may be others now
    KEPT = "kept"  # DDL that leaves columns and rows as they are: an index, OPTIMIZE
    WRITTEN = "written"  # rows were changed by the statement itself
    SEQUENCE_DROPPED = "sequence dropped"  # MariaDB's, which the log shows as a table
    TEMPORARY_CREATED = "temporary created"  # for the session alone
    TEMPORARY_DROPPED = "temporary dropped"


# From here on the table's columns may be others.
RESHAPES = frozenset(
    {
        Effect.CREATED,
        Effect.CREATED_IF_MISSING,
        Effect.REPLACED,
        Effect.DROPPED,
        Effect.RENAMED_AWAY,
        Effect.RENAMED_HERE,
        Effect.ALTERED,
    }
)


@dataclass(frozen=True, slots=True)
class TableEffect:
    """One table and what a statement does to it.

    ``unlogged``: why its rows may have changed without row events; None if they did not. ``added``:
    the columns that are new, which may be NULL in all rows: a copy may hold values under such a
    name, of a column that was there before.
    """

    table: TableName
    effect: Effect
    unlogged: str | None = None
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement does. ``database``: all tables of it were dropped. ``unclear``: it writes
    rows, but its tables can't be told. ``renames``: it gives names and does nothing else; effects
    are in pairs, from and to, one pair after the other.
    """

    effects: tuple[TableEffect, ...] = ()
    database: str | None = None
    unclear: bool = False
    renames: bool = False

    def reshapes(self, table: TableName) -> bool:
        """May the table's columns be others after it?"""
        if self.database == table.namespace:
            return True
        return any(e.table == table and e.effect in RESHAPES for e in self.effects)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: ``word`` (upper-cased text in ``upper``), ``name`` (in backticks or quotes),
    ``text`` (a literal), ``mark`` (one character).
    """

    kind: str
    text: str
    upper: str


# Bits of sql_mode: "…" is a name as `…` is; a backslash is a character as others are.
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20

# Possessive: nothing is tried a second time. Any user of the server may write a statement, and one
# that this reads otherwise than the server must not take more time than its length either.
_ESCAPED = {
    quote: rf"[^{quote}\\]*+(?:(?:\\(?:(?s:.)|\Z)|{quote}{quote})[^{quote}\\]*+)*+"
    for quote in "\"'"
}
_PLAIN = {quote: rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+" for quote in "\"'`"}


@cache
def _token(sql_mode: int) -> re.Pattern[str]:
    """What a token looks like under these two bits of sql_mode."""
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
    """The statement's tokens without comments; what stands in ``/*! … */`` counts as code."""
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


def read(sql: str, database: str, *, fold: bool = False, sql_mode: int = 0) -> Statement:
    """What the statement does.

    Args:
        sql: its text.
        database: the session's, for names without one.
        fold: the server keeps names in lower case (``lower_case_table_names``).
        sql_mode: the session's, as the bits that the log has.
    """
    parser = _DdlParser(list(tokens(sql, sql_mode)), database)
    statement = parser.statement()
    if not fold:
        return statement
    effects = tuple(replace(effect, table=_folded(effect.table)) for effect in statement.effects)
    dropped = statement.database
    return replace(
        statement, effects=effects, database=None if dropped is None else dropped.lower()
    )


def _folded(table: TableName) -> TableName:
    return TableName(table.namespace.lower(), table.name.lower())


# The first words of ALTER TABLE's actions that leave rows and columns as they are.
# ruff: noqa: SIM905
_HARMLESS = frozenset(
    "ALGORITHM LOCK WAIT NOWAIT COMMENT AUTO_INCREMENT AVG_ROW_LENGTH CHECKSUM COMPRESSION "
    "CONNECTION DELAY_KEY_WRITE ENCRYPTION ENGINE INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS "
    "PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT STATS_SAMPLE_PAGES "
    "TABLESPACE UNION ENABLE DISABLE FORCE ORDER DEFAULT CHARACTER CHARSET COLLATE REORGANIZE "
    "COALESCE REMOVE ANALYZE CHECK OPTIMIZE REBUILD REPAIR PARTITION WITH WITHOUT VALIDATION "
    "SECONDARY_LOAD SECONDARY_UNLOAD UPGRADE".split()
)
_INDEX_WORDS = frozenset(
    "INDEX KEY UNIQUE FULLTEXT SPATIAL CONSTRAINT FOREIGN CHECK PARTITION".split()
)
# Neither is a reserved word: a column may have it as its name.
_VERSIONING = frozenset({("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")})
_WRITES = frozenset("INSERT REPLACE UPDATE DELETE LOAD WITH CALL DO SELECT VALUES".split())


class _DdlParser:
    def __init__(self, found: list[Token], database: str) -> None:
        self._tokens = found
        self._database = database
        self._at = 0
        self._added: list[str] = []

    # ------------------------------------------------------------------ statements

    def statement(self) -> Statement:
        if self._take("SET") and self._take("STATEMENT"):  # MariaDB: SET STATEMENT … FOR …
            while self._at < len(self._tokens) and not self._take("FOR"):
                self._at += 1
        else:
            self._at = 0
        if self._take("ANALYZE") and self._take("FORMAT"):  # MariaDB: ANALYZE FORMAT=JSON UPDATE …
            self._take("=")
            self._at += 1
        first = self._word()
        self._at += 1
        if first == "TRUNCATE":
            self._take("TABLE")
            return self._one(Effect.TRUNCATED)
        if first == "CREATE":
            return self._create()
        if first == "ALTER":
            return self._alter()
        if first == "DROP":
            return self._drop()
        if first == "RENAME":
            return self._rename()
        if first in ("DELETE", "UPDATE", "INSERT", "REPLACE"):
            return self._write(first)
        if first == "LOAD":
            return self._load()
        if first in _WRITES:
            return Statement(unclear=True)
        return Statement()

    def _create(self) -> Statement:
        replaces = self._take("OR") and self._take("REPLACE")
        if self._take("TEMPORARY"):
            if not self._take("TABLE", "SEQUENCE"):
                return Statement()
            if self._take("IF"):
                self._take("NOT")
                self._take("EXISTS")
            return self._one(Effect.TEMPORARY_CREATED)
        while self._word() in ("ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
            self._at += 1
        if self._word() == "INDEX":
            return self._of_index()
        if not self._take("TABLE"):
            return Statement()
        effect = Effect.REPLACED if replaces else Effect.CREATED
        if self._take("IF") and self._take("NOT") and self._take("EXISTS"):
            effect = Effect.CREATED_IF_MISSING
        reason = "the table was replaced by a new one" if replaces else None
        table = self._table()
        if table is None:
            return Statement()
        if reason is None and self._has_rows():
            reason = "the log holds the statement that made its rows, and not them"
        return Statement((TableEffect(table, effect, reason),))

    def _has_rows(self) -> bool:
        """Does CREATE TABLE go on with SELECT, VALUES (of rows, not of a partition) or TABLE? Of
        what is logged as rows, the server leaves that out.
        """
        words = [token.upper for token in self._tokens[self._at :]]
        return any(
            word in ("SELECT", "TABLE") or (word == "VALUES" and following not in ("LESS", "IN"))
            for word, following in pairwise([*words, ""])
        )

    def _drop(self) -> Statement:
        temporary = self._take("TEMPORARY")
        if self._take("DATABASE", "SCHEMA"):
            self._if_exists()
            name = self._name()
            return Statement() if name is None else Statement(database=name)
        if self._word() == "INDEX":
            return self._of_index()
        effect = Effect.SEQUENCE_DROPPED if self._word() == "SEQUENCE" else Effect.DROPPED
        if temporary:
            effect = Effect.TEMPORARY_DROPPED
        if not self._take("TABLE", "TABLES", "SEQUENCE"):
            return Statement()
        self._if_exists()
        found = []
        while (table := self._table()) is not None:
            found.append(TableEffect(table, effect))
            if not self._take(","):
                break
        return Statement(tuple(found))

    def _rename(self) -> Statement:
        if not self._take("TABLE", "TABLES"):
            return Statement()
        self._if_exists()
        found: list[TableEffect] = []
        while (old := self._table()) is not None:
            if self._take("WAIT"):
                self._at += 1
            self._take("NOWAIT")
            self._take("TO")
            new = self._table()
            if new is None:
                break
            found += _renamed(old, new)
            if not self._take(","):
                break
        return Statement(tuple(found), renames=True)

    def _alter(self) -> Statement:
        ignores = False
        while self._take("ONLINE", "OFFLINE") or self._word() == "IGNORE":
            ignores |= self._take("IGNORE")
        if not self._take("TABLE"):
            return Statement()
        self._if_exists()
        table = self._table()
        if table is None:
            return Statement()
        if self._take("WAIT"):
            self._at += 1
        self._take("NOWAIT")
        effect, reasons, others = Effect.KEPT, list[str](), list[TableEffect]()
        if ignores:  # MariaDB
            reasons.append("ALTER IGNORE drops rows that share a key, and changes values")
        for action in self._actions():
            self._at = action
            kind, reason, more = self._action(table)
            effect = kind if kind is not Effect.KEPT else effect
            others += more
            if reason is not None:
                reasons.append(reason)
            if self._last_action(action):
                break
        reason = reasons[0] if reasons else None
        return Statement((TableEffect(table, effect, reason, tuple(self._added)), *others))

    def _last_action(self, at: int) -> bool:
        """Does all that follows belong to the action at ``at``, commas and all?"""
        words = [token.upper for token in self._tokens[at : at + 2]]
        return words[0] == "ORDER" or words[1:] == ["PARTITION"]

    def _action(self, table: TableName) -> tuple[Effect, str | None, list[TableEffect]]:
        """One action of ALTER TABLE."""
        word = self._word()
        self._at += 1
        following = self._word()
        if word in ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT") and following == "PARTITION":
            others = []
            if word in ("EXCHANGE", "CONVERT"):
                while self._at < len(self._tokens) and not self._take("TABLE"):
                    self._at += 1
                other = self._table()
                if other is not None:
                    effect = Effect.KEPT if word == "EXCHANGE" else Effect.CREATED
                    others = [TableEffect(other, effect, "a partition was exchanged with it")]
            return Effect.KEPT, "a partition was truncated, dropped or exchanged", others
        if word == "CONVERT" and following == "TABLE":
            return Effect.KEPT, "a table was made one of its partitions", []
        if word in ("DISCARD", "IMPORT"):
            return Effect.KEPT, "its tablespace was discarded or imported", []
        if word == "PARTITION" or (word == "REMOVE" and following == "PARTITIONING"):
            return Effect.KEPT, None, []
        if word == "RENAME":
            if following in ("INDEX", "KEY"):
                return Effect.KEPT, None, []
            if following == "COLUMN":
                return Effect.ALTERED, "a column was renamed", []
            self._take("TO", "AS", "=")
            new = self._table()
            if new is None:
                return Effect.ALTERED, None, []
            away, here = _renamed(table, new)
            return away.effect, None, [here]
        if word == "ADD":
            return self._add()
        if word == "DROP":
            if following in ("INDEX", "KEY", "CONSTRAINT", "FOREIGN", "CHECK"):
                self._at += 1
                return (Effect.ALTERED if self._is_primary() else Effect.KEPT), None, []
            if following == "SYSTEM":
                return Effect.ALTERED, "its versions were dropped", []
            return Effect.ALTERED, None, []
        if word == "ALTER":  # a column's default, an index's visibility
            return Effect.KEPT, None, []
        if word in _HARMLESS:
            return Effect.KEPT, None, []
        if word in ("MODIFY", "CHANGE", "CONVERT"):
            return Effect.ALTERED, "a column's type was changed", []
        return Effect.ALTERED, "it was altered", []

    def _add(self) -> tuple[Effect, str | None, list[TableEffect]]:
        word = self._word()
        words = [token.upper for token in self._action_tokens()]
        # ADD CONSTRAINT [name] PRIMARY KEY …
        if word == "PRIMARY" or (word == "CONSTRAINT" and "PRIMARY" in words[1:3]):
            return Effect.ALTERED, None, []
        if not self._is_column():
            if (word, self._word(1)) in _VERSIONING:
                return Effect.ALTERED, None, []
            if word in _INDEX_WORDS or (word == "VECTOR" and self._word(1) in ("INDEX", "KEY")):
                return Effect.KEPT, None, []
        self._added += self._added_columns()
        for i, one in enumerate(words):
            following = words[i + 1] if i + 1 < len(words) else ""
            filled = one == "DEFAULT" and following != "NULL"
            filled |= one == "NOT" and following == "NULL"
            filled |= one in ("AS", "GENERATED", "AUTO_INCREMENT", "SERIAL", "PRIMARY")
            # Without explicit_defaults_for_timestamp it has a default that the statement omits.
            filled |= one == "TIMESTAMP" and "NULL" not in words[i:]
            if filled:
                return Effect.ALTERED, "a column with values in it was added", []
        return Effect.ALTERED, None, []

    def _added_columns(self) -> list[str]:
        """Of ``ADD [COLUMN] [IF NOT EXISTS] name …``, or of a list in brackets."""
        found = list(self._action_tokens())
        at = int(bool(found) and found[0].upper == "COLUMN")
        if [token.upper for token in found[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
            at += 3
        if at >= len(found):
            return []
        if (found[at].kind, found[at].text) != ("mark", "("):
            return [found[at].text]
        names, depth = [], 0
        for before, token in pairwise(found[at:]):
            text = before.text if before.kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            if depth == 1 and text in ("(", ","):
                names.append(token.text)
        return names

    def _is_column(self) -> bool:
        """ADD COLUMN, or a column whose name is quoted."""
        return self._at < len(self._tokens) and self._tokens[self._at].kind != "word"

    def _actions(self) -> Iterator[int]:
        """Where ALTER TABLE's actions begin."""
        depth, begins = 0, True
        for at in range(self._at, len(self._tokens)):
            if begins:
                yield at
                begins = False
            text = self._tokens[at].text if self._tokens[at].kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            begins = text == "," and depth == 0

    def _action_tokens(self) -> Iterator[Token]:
        depth = 0
        for token in self._tokens[self._at :]:
            text = token.text if token.kind == "mark" else ""
            depth += (text == "(") - (text == ")")
            if text == "," and depth == 0:
                return
            yield token

    def _is_primary(self) -> bool:
        """Of an index or a constraint: does the primary key's name follow?"""
        self._if_exists()
        name = self._name()
        return name is not None and name.upper() == "PRIMARY"

    def _of_index(self) -> Statement:
        """CREATE or DROP INDEX name ON table."""
        self._at += 1
        if self._is_primary():
            return self._one(Effect.ALTERED) if self._take("ON") else Statement()
        while self._at < len(self._tokens):
            if self._take("ON"):
                return self._one(Effect.KEPT)
            self._at += 1
        return Statement()

    def _write(self, first: str) -> Statement:
        """A statement that changes rows, of one table in its plainest form."""
        while self._word() in (
            "LOW_PRIORITY", "QUICK", "IGNORE", "DELAYED", "HIGH_PRIORITY", "INTO", "FROM",
        ):  # fmt: skip
            self._at += 1
        table = self._table()
        if table is None:
            return Statement(unclear=True)
        rest = self._word()
        if first == "DELETE" and self._at == len(self._tokens):
            # What the server writes when it finds a MEMORY table empty after a restart.
            return Statement((TableEffect(table, Effect.TRUNCATED),))
        if first == "DELETE" and rest not in ("WHERE", "ORDER", "LIMIT", "PARTITION", "RETURNING"):
            return Statement(unclear=True)
        if first == "UPDATE" and rest != "SET":
            return Statement(unclear=True)
        return Statement((TableEffect(table, Effect.WRITTEN),))

    def _load(self) -> Statement:
        """LOAD DATA … INTO TABLE …"""
        while self._at < len(self._tokens):
            if self._take("INTO") and self._take("TABLE"):
                found = self._one(Effect.WRITTEN)
                return found if found.effects else Statement(unclear=True)
            self._at += 1
        return Statement(unclear=True)

    # ------------------------------------------------------------------ tokens

    def _one(self, effect: Effect, reason: str | None = None) -> Statement:
        table = self._table()
        return Statement() if table is None else Statement((TableEffect(table, effect, reason),))

    def _word(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at].upper if at < len(self._tokens) else ""

    def _take(self, *words: str) -> bool:
        if self._word() in words and self._word():
            self._at += 1
            return True
        return False

    def _if_exists(self) -> None:
        if self._take("IF"):
            self._take("EXISTS")

    def _name(self) -> str | None:
        if self._at >= len(self._tokens) or self._tokens[self._at].kind not in ("word", "name"):
            return None
        self._at += 1
        return self._tokens[self._at - 1].text

    def _table(self) -> TableName | None:
        first = self._name()
        if first is None:
            return None
        if self._take("."):
            second = self._name()
            return None if second is None else TableName(first, second)
        return TableName(self._database, first)


def _renamed(old: TableName, new: TableName) -> list[TableEffect]:
    return [
        TableEffect(old, Effect.RENAMED_AWAY),
        TableEffect(new, Effect.RENAMED_HERE, f"it was {old} before"),
    ]
