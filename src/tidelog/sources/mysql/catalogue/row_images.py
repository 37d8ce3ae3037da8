"""Refuses tables whose changes are not known from records where ``binlog_row_image`` is not FULL.

A column that is missing in such records is usually unchanged. The exceptions (seen on MariaDB 10.11
and 11.4, MySQL 8.0):

- Neither server logs a column that an INSERT does not name and whose default is a constant, even a
  column of the key: the inserted row is unknown then (MINIMAL). Defaults that are expressions are
  logged.
- MariaDB logs no virtual column with an update, and no column that REPLACE or ON DUPLICATE KEY
  UPDATE sets back to its default. Where the old image is short, capture reads the row again. Where
  it is whole (FULL_NODUP; tables without a primary key), the old value would be taken for the new
  one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import TableRefusedError
from tidelog.model.schema import TableName
from tidelog.sources.mysql.connect import Connection

_COLUMNS = """
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
    """Raise TableRefusedError if the server's current records of the table do not show what
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
    rows = connection.rows(_COLUMNS, name)
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
        raise TableRefusedError(table, reason, REMEDY)


def _unlogged_key(
    connection: Connection,
    table: TableName,
    surrogate: Callable[[TableName, Sequence[str]], Sequence[str]],
    image: str,
    rows: Sequence[Sequence[object]],
) -> str:
    """What is wrong with the table's key of ``source.keys``; empty if the key is logged or not
    used.
    """
    columns = {_text(name): (role, _text(kind)) for role, _, _, name, kind in rows}
    logged = [
        name
        for name, (role, kind) in columns.items()
        if _text(role) == "PRI" or (image == "NOBLOB" and not _BLOB.fullmatch(kind))
    ]
    lost = [name for name in surrogate(table, list(columns)) if name not in logged]
    if not lost or connection.rows(_PRIMARY, (table.namespace, table.name)):
        return ""
    unique = ", ".join(name for name, (role, _) in columns.items() if _text(role) == "PRI")
    return (
        f"updates and deletes do not log {', '.join(lost)}, of its key in source.keys, beside its "
        f"unique key ({unique}): name that one in source.keys, or"
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_constant(default: object, extra: str, flavor: Flavor) -> bool:
    """Return True if the default is not an expression.

    MySQL 8.0.13 and later say so in EXTRA; before, CURRENT_TIMESTAMP was the only expression.
    MariaDB quotes constants that are no numbers.
    """
    if default is None:
        return False
    text = default.decode("utf-8", "replace") if isinstance(default, bytes) else str(default)
    if flavor is Flavor.MARIADB:
        return _CONSTANT.fullmatch(text) is not None
    return "DEFAULT_GENERATED" not in extra and not text.upper().startswith("CURRENT_TIMESTAMP")
