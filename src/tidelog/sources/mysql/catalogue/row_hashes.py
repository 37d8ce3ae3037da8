"""Removes the hidden columns that MariaDB adds to tables with unique keys over long columns.

MariaDB implements a unique key over a TEXT or BLOB, or one ``USING HASH``, as an index of a number
that it computes for each row: a column ``DB_ROW_HASH_1``, ``DB_ROW_HASH_2`` … at the row's end,
BIGINT UNSIGNED NULL. The catalogue hides these columns; the binlog's table maps and rows hold them
(``add_hash_field`` in MariaDB's ``sql_table.cc``). Tidelog leaves them out of the event log.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields, replace

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.schema import TableName
from tidelog.sources.mysql.connect import Connection

_NAME = re.compile(r"DB_ROW_HASH_\d+")
_UNIQUE_HASHES = """
SELECT count(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 AND INDEX_TYPE = 'HASH'
"""


def count_hash_columns(seen: TableMapSeen, shown: Collection[str]) -> int:
    """The number of row hashes at the end of the table map, by their names.

    Args:
        seen: the table map.
        shown: the names of columns that the catalogue shows.
    """
    names = seen.metadata.names or ()
    count = 0
    while count < len(names):
        name = names[-1 - count]
        if name in shown or not _NAME.fullmatch(name) or not _may_be_hashes(seen, count + 1):
            break
        count += 1
    return count


def remove_hash_columns(
    connection: Connection, table: TableName, seen: TableMapSeen, columns: int
) -> TableMapSeen:
    """The table map without the row hashes after the first ``columns`` columns; unchanged where the
    extra columns are others, or may be.

    Args:
        connection: reads the indexes where the map has no names.
        table: the table's current name.
        seen: the table map.
        columns: the number of columns in the catalogue.
    """
    count = len(seen.types) - columns
    if connection.flavor is not Flavor.MARIADB or count <= 0 or not _may_be_hashes(seen, count):
        return seen
    if seen.metadata.names is None:
        hashes = connection.value(_UNIQUE_HASHES, (table.namespace, table.name))
        return first_columns(seen, columns) if hashes == count else seen
    named = seen.metadata.names[columns:]
    return first_columns(seen, columns) if all(map(_NAME.fullmatch, named)) else seen


def first_columns(seen: TableMapSeen, count: int) -> TableMapSeen:
    """The table map with the first ``count`` columns only."""
    if count == len(seen.types):
        return seen
    metadata = seen.metadata
    lists = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    del lists["primary_key"]
    cut = {name: None if each is None else each[:count] for name, each in lists.items()}
    return replace(
        seen,
        types=seen.types[:count],
        metas=seen.metas[:count],
        metadata=replace(metadata, **cut),
    )


def _may_be_hashes(seen: TableMapSeen, count: int) -> bool:
    """Return True if the last ``count`` columns have the type of row hashes."""
    unsigned = seen.metadata.unsigned
    return all(
        seen.types[i] == types.LONGLONG
        and seen.nullable[i // 8] >> i % 8 & 1
        and (unsigned is None or unsigned[i])
        for i in range(len(seen.types) - count, len(seen.types))
    )
