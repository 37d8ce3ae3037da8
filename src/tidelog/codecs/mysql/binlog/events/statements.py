"""Parses events with a statement, and determines the statement's kind."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from tidelog.codecs.mysql.binlog.events.compression import inflate
from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.items import Alter
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.codecs.mysql.texts.charset_texts import UTF8, decode_text

# The servers write these in the form of SHOW CREATE TABLE, for CREATE TABLE … SELECT and … LIKE.
_WRITTEN_BY_SERVER = re.compile(rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?`[^\n]*\(\n  `")


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query's status variables, as far as they are used.

    Attributes:
        sql_mode: the session's sql_mode, 0 if unknown.
        collation: the client's collation, None if unknown.
        databases: the databases that the statement used.
        alter: the phase of MariaDB's ALTER.
    """

    sql_mode: int = 0
    collation: int | None = None
    databases: tuple[str, ...] | None = None
    alter: Alter | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A Query_event. ``thread``: the session's ``pseudo_thread_id``."""

    database: str
    sql: bytes
    error_code: int
    status: QueryStatus
    thread: int = 0

    def text(self) -> str:
        """The statement, in the client's character set unless the server wrote it."""
        charset = charset_of(self.status.collation or 0)
        if charset not in UTF8 and _WRITTEN_BY_SERVER.match(self.sql):
            with contextlib.suppress(UnicodeDecodeError):
                return self.sql.decode("utf-8")
        return decode_text(self.sql, charset)


_MAX_DATABASES = 254  # Q_UPDATED_DB_NAMES: more databases than the server lists


def parse_query(body: bytes, *, load: bool = False, compressed: bool = False) -> Query:
    """Parse a Query_event.

    Args:
        body: the event's body.
        load: True for an Execute_load_query_event, which has 13 bytes more.
        compressed: True for MariaDB's Query_compressed_event.
    """
    fields = Fields(body)
    thread = fields.integer(4)
    fields.take(4)  # seconds
    database_length = fields.integer(1)
    error_code = fields.integer(2)
    status_length = fields.integer(2)
    if load:
        fields.take(13)  # file, position of its name, duplicates
    status = fields.take(status_length)
    database = fields.take(database_length).decode("utf-8", "replace")
    if fields.integer(1) != 0:
        raise ValueError("database name")
    sql = fields.rest()
    if compressed:
        sql = inflate(sql)
    return Query(database, sql, error_code, _status(status), thread)


_STATUS_BYTES = {0: 4, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8}
_STATUS_BYTES |= {18: 2, 19: 1, 20: 1, 128: 3, 129: 8}


def _status(status: bytes) -> QueryStatus:
    """A query's status variables, up to the first unknown one."""
    fields = Fields(status)
    sql_mode = 0
    collation: int | None = None
    databases: tuple[str, ...] | None = None
    alter: Alter | None = None
    try:
        while fields.left():
            code = fields.integer(1)
            if code == 1:  # Q_SQL_MODE_CODE
                sql_mode = fields.integer(8)
            elif code == 4:  # Q_CHARSET_CODE
                collation = fields.integer(2)
                fields.take(4)
            elif code in _STATUS_BYTES:
                fields.take(_STATUS_BYTES[code])
            elif code == 2:  # Q_CATALOG_CODE, with a final 0
                fields.take(fields.integer(1) + 1)
            elif code in (5, 6):  # Q_TIME_ZONE_CODE, Q_CATALOG_NZ_CODE
                fields.take(fields.integer(1))
            elif code == 11:  # Q_INVOKER
                fields.take(fields.integer(1))
                fields.take(fields.integer(1))
            elif code == 12:  # Q_UPDATED_DB_NAMES
                count = fields.integer(1)
                listed = count if count < _MAX_DATABASES else 0
                databases = tuple(_zero_ended(fields) for _ in range(listed))
            elif code == 130:  # Q_GTID_FLAGS3 of MariaDB
                flags = fields.integer(1)
                if flags & 2:
                    alter = Alter.START
                elif flags & 12:
                    alter = Alter.COMMIT if flags & 4 else Alter.ROLLBACK
                    fields.take(8)
            else:
                break
    except IndexError:
        pass
    return QueryStatus(sql_mode, collation, databases, alter)


def _zero_ended(fields: Fields) -> str:
    end = fields.data.index(b"\0", fields.at, fields.end)
    return fields.take(end + 1 - fields.at)[:-1].decode("utf-8", "replace")


_CHANGING = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "SELECT", "DO", "VALUES"}
)
_LEADING = re.compile(
    r"(?:\s|\(|/\*M?!\d*|/\*(?!M?!).*?\*/|(?:--(?=[\s\x00-\x1f\x7f]|$)|#)[^\n]*(?:\n|$))*",
    re.DOTALL,
)
# MariaDB: settings for a single statement.
_SETTINGS = re.compile(
    r"""SET\s+STATEMENT\b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\bFOR\b""",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"\w+|[^\w\s]")


def first_words(sql: str) -> tuple[str, tuple[str, ...]]:
    """(the first word, the first four words) of a statement in upper case, after comments, brackets
    and settings. The content of a comment for some versions (``/*!``) counts.
    """
    at = _end(_LEADING, sql, 0)
    after = _end(_SETTINGS, sql, at)
    if after > at:
        at = _end(_LEADING, sql, after)
    rest = sql[at : at + 200]
    words = tuple(word.upper() for word in _WORD.findall(rest)[:4])
    return (words[0] if words else ""), words


def _end(pattern: re.Pattern[str], sql: str, at: int) -> int:
    found = pattern.match(sql, at)
    return found.end() if found else at


def changes_rows(words: tuple[str, ...]) -> bool:
    """Return True if a statement with these first words may change rows. MariaDB's ANALYZE runs
    another statement.
    """
    if words[:1] == ("ANALYZE",):
        return not {"TABLE", "TABLES"} & set(words[1:3])
    return words[:1] != () and words[0] in _CHANGING
