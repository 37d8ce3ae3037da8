"""Detects changes of a table's rows that row events do not show, from ``information_schema``.

The binlog holds every DDL statement, and the log reader judges each of them; this is a second
check. It compares the table's columns, partitions and engine. CREATE_TIME would show recreated
tables, but every ALTER TABLE changes it, even for a comment.

Row images: a column that is missing in records where ``binlog_row_image`` is not FULL is usually
unchanged. A table is refused if one of the exceptions (seen on MariaDB 10.11 and 11.4, MySQL 8.0)
can occur in it:

- Neither server logs a column that an INSERT does not name and whose default is a constant, even a
  column of the key: the inserted row is unknown then (MINIMAL). Defaults that are expressions are
  logged.
- MariaDB logs no virtual column with an update, and no column that REPLACE or ON DUPLICATE KEY
  UPDATE sets back to its default. Where the old image is short, capture reads the row again. Where
  it is whole (FULL_NODUP; tables without a primary key), the old value would be taken for the new
  one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import UnsupportedTableError
from tidelog.model.schema import TableName
from tidelog.sources.mysql.connect import Connection, text_of

_TABLE = """
SELECT ENGINE, TABLE_ROWS, DATA_LENGTH
FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_ESTIMATES = """
SELECT TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN ({names})
"""
_FEW, _AT_ONCE = 20, 200
"""With few tables each one is queried alone, so that MariaDB opens no others."""
_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, IS_NULLABLE, COLUMN_DEFAULT, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
ORDER BY ORDINAL_POSITION
"""
_COLUMN_NAMES = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_PARTITIONS = """
SELECT PARTITION_NAME, SUBPARTITION_NAME, PARTITION_EXPRESSION, PARTITION_DESCRIPTION
FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
AND PARTITION_NAME IS NOT NULL ORDER BY 1, 2
"""
_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_TYPE FROM information_schema.TABLES
WHERE TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
  AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
# The same for all tables at once, and the key's columns.
_ALL = (
    _TABLES,
    """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, IS_NULLABLE,
  COLUMN_DEFAULT, EXTRA
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
""",
    """
SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, SUBPARTITION_NAME, PARTITION_EXPRESSION,
  PARTITION_DESCRIPTION
FROM information_schema.PARTITIONS
WHERE TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
AND PARTITION_NAME IS NOT NULL ORDER BY 1, 2, 3, 4
""",
    """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
  AND INDEX_NAME = 'PRIMARY'
ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX
""",
)


TRANSACTIONAL = ("InnoDB", "ROCKSDB", "TokuDB")
"""Engines whose tables a snapshot shows as they were."""


@dataclass(frozen=True, slots=True)
class MySqlTableStorage:
    """How a table is stored now; estimates are the engine's. ``text`` is for `rows_may_differ`."""

    text: str
    engine: str
    estimated_rows: int
    estimated_bytes: int


def names_of(connection: Connection) -> dict[TableName, str]:
    """Every table that `versions_of` returns, with an empty text; reads nothing else."""
    return {TableName(text_of(row[0]), text_of(row[1])): "" for row in connection.rows(_TABLES)}


def versions_of(connection: Connection) -> dict[TableName, str]:
    """For every table of the server, a text that changes when its `MySqlTableStorage.text` or
    primary key changes.
    """
    found: dict[TableName, Any] = {}
    for query in _ALL:
        for namespace, name, *row in connection.rows(query):
            table = TableName(text_of(namespace), text_of(name))
            if query is _TABLES:
                found[table] = hashlib.sha256()
            if table in found:
                found[table].update(repr(row).encode())
    return {table: digest.hexdigest()[:32] for table, digest in found.items()}


def storage_of(connection: Connection, table: TableName) -> MySqlTableStorage | None:
    """The table's storage; None if there is no such table. Raises PyMySQL's errors."""
    name = (table.namespace, table.name)
    row = connection.row(_TABLE, name)
    if row is None:
        return None
    engine, rows, size = row
    partitions = connection.rows(_PARTITIONS, name)
    parts = hashlib.sha256(repr(partitions).encode()).hexdigest()[:16] if partitions else ""
    columns: dict[str, list[str]] = {}
    for column, kind, collation, nullable, default, extra in connection.rows(_COLUMNS, name):
        # A default may be a value of the application's: only its presence is kept.
        fills = nullable == "NO" or default not in (None, "NULL") or "GENERATED" in str(extra)
        columns[column] = [_digest(f"{kind} {collation}"), "1" if fills else "0"]
    text = _text_of(engine, parts, columns)
    return MySqlTableStorage(text, text_of(engine or ""), int(rows or 0), int(size or 0))


def excluding(text: str, excluded: Sequence[str]) -> str:
    """The `MySqlTableStorage.text` of a table that has these columns kept out of the event log."""
    return _text_of(*json.loads(text), list(excluded)) if excluded else text


def columns_of(
    connection: Connection, tables: Sequence[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """The columns of those of the tables that exist, in order. Raises PyMySQL's errors."""
    found: dict[TableName, list[str]] = {}
    for namespace, name, column in connection.rows(_COLUMN_NAMES):
        found.setdefault(TableName(text_of(namespace), text_of(name)), []).append(text_of(column))
    return {table: tuple(found[table]) for table in tables if table in found}


def estimated_rows(connection: Connection, tables: Sequence[TableName]) -> dict[TableName, int]:
    """The engine's row estimates, of the tables that have one. Raises PyMySQL's errors."""
    names: dict[str, list[str]] = {}
    for table in tables:
        names.setdefault(table.namespace, []).append(table.name)
    found = {}
    for namespace, all_names in names.items():
        size = 1 if len(all_names) <= _FEW else _AT_ONCE
        for some in (all_names[at : at + size] for at in range(0, len(all_names), size)):
            query = _ESTIMATES.format(names=", ".join(["%s"] * len(some)))
            for name, rows in connection.rows(query, (namespace, *some)):
                if rows is not None:
                    found[TableName(namespace, text_of(name))] = int(rows)
    return found


def rows_may_differ(before: str, after: str) -> bool:
    """Return True if rows may have changed without row events between two of a table's
    `MySqlTableStorage.text`.
    """
    if before == after:
        return False
    *made, columns, excluded = _parsed(before)
    *made_now, columns_now, excluded_now = _parsed(after)
    if made != made_now:
        return True
    if not (columns_now.keys() - set(excluded_now)).isdisjoint(excluded):
        return True  # rows read before lack a column
    for name, (kind, fills) in columns_now.items():
        if name in excluded_now:
            continue
        if name not in columns:
            if fills == "1":
                return True
        elif columns[name][0] != kind:
            return True
    return False


def _parsed(text: str) -> list[Any]:
    found: list[Any] = json.loads(text)
    return found if len(found) == 4 else [*found, []]


def _text_of(*parts: Any) -> str:
    return json.dumps(parts, separators=(",", ":")).replace(" ", "\\u0020")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# Row images.

_IMAGE_COLUMNS = """
SELECT COLUMN_KEY, COLUMN_DEFAULT, EXTRA, COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_PRIMARY = """
SELECT 1 FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' LIMIT 1
"""
_UNIQUE = """
SELECT 1 FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 LIMIT 1
"""
_CONSTANT = re.compile(r"-?[0-9][-+.0-9e]*|[bx]?'.*'", re.IGNORECASE | re.DOTALL)
_BLOB = re.compile(r"(tiny|medium|long)?(blob|text)|json")
REMEDY = "SET GLOBAL binlog_row_image = 'FULL';"


def check_row_image(
    connection: Connection,
    table: TableName,
    surrogate: Callable[[TableName, Sequence[str]], Sequence[str]],
) -> None:
    """Raise UnsupportedTableError if the server's current records of the table do not show what
    changed.

    Args:
        connection: the server.
        table: the table to check.
        surrogate: returns the key that ``source.keys`` gives a table with these columns.
    """
    image = str(connection.value("SELECT @@GLOBAL.binlog_row_image")).upper()
    if image == "FULL":
        return
    name = (table.namespace, table.name)
    rows = connection.rows(_IMAGE_COLUMNS, name)
    virtual = any("VIRTUAL" in str(extra).upper() for _, _, extra, *_ in rows)
    key = [
        _is_constant(default, str(extra), connection.flavor)
        for role, default, extra, *_ in rows
        if role == "PRI"
    ]
    why = ""
    if image == "MINIMAL" and any(key):
        why = "a column of its key has a constant default, which inserts do not log"
    elif connection.flavor is Flavor.MARIADB and virtual and (image == "FULL_NODUP" or not key):
        why = "updates do not log its virtual columns"
    elif (
        connection.flavor is Flavor.MARIADB
        and image != "FULL_NODUP"
        and not key
        and connection.rows(_UNIQUE, name)
    ):
        why = (
            "it has no primary key, and the columns that REPLACE or ON DUPLICATE KEY UPDATE sets "
            "back to their default are not logged"
        )
    elif image in ("MINIMAL", "NOBLOB") and key:
        why = _unlogged_key(connection, table, surrogate, image, rows)
    if why:
        ways = " log" if why.endswith(" or") else ". Log"
        reason = f"binlog_row_image is {image}: {why}{ways} whole rows of the server"
        raise UnsupportedTableError(table, reason, REMEDY)


def _unlogged_key(
    connection: Connection,
    table: TableName,
    surrogate: Callable[[TableName, Sequence[str]], Sequence[str]],
    image: str,
    rows: Sequence[Sequence[object]],
) -> str:
    """What is wrong with the table's key of ``source.keys``; empty: it is logged or not used."""
    columns = {text_of(name): (role, text_of(kind)) for role, _, _, name, kind in rows}
    logged = [
        name
        for name, (role, kind) in columns.items()
        if text_of(role) == "PRI" or (image == "NOBLOB" and not _BLOB.fullmatch(kind))
    ]
    lost = [name for name in surrogate(table, list(columns)) if name not in logged]
    if not lost or connection.rows(_PRIMARY, (table.namespace, table.name)):
        return ""
    unique = ", ".join(name for name, (role, _) in columns.items() if text_of(role) == "PRI")
    return (
        f"updates and deletes do not log {', '.join(lost)}, of its key in source.keys, beside its "
        f"unique key ({unique}): name that one in source.keys, or"
    )


def _is_constant(default: object, extra: str, flavor: Flavor) -> bool:
    """Return True if the default is not an expression. MySQL 8.0.13 and later say so in EXTRA;
    before, CURRENT_TIMESTAMP was the only expression. MariaDB quotes constants that are no numbers.
    """
    if default is None:
        return False
    text = default.decode("utf-8", "replace") if isinstance(default, bytes) else str(default)
    if flavor is Flavor.MARIADB:
        return _CONSTANT.fullmatch(text) is not None
    return "DEFAULT_GENERATED" not in extra and not text.upper().startswith("CURRENT_TIMESTAMP")
