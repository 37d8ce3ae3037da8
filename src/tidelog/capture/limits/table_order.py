"""In which order the tables of a dump are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidelog.errors import ConnectionLostError, SourceError
from tidelog.model.schema import TableName

logger = logging.getLogger(__name__)

SMALL: Final = 1024
"""Rows: of less the statistics say little, and the time is that of a few round trips."""


def in_order(
    tables: Sequence[TableName],
    estimates: Callable[[Sequence[TableName]], Mapping[TableName, int]],
) -> list[TableName]:
    """`smallest_first` by what ``estimates`` says; as they are, if it fails. Raises
    ConnectionLostError.
    """
    if len(tables) < 2:
        return list(tables)
    try:
        return smallest_first(tables, estimates(tables))
    except ConnectionLostError:
        raise
    except SourceError as error:
        logger.info("tables are dumped in the order given: %s", error)
        return list(tables)


def smallest_first(
    tables: Iterable[TableName], estimated_rows: Mapping[TableName, int]
) -> list[TableName]:
    """The tables by size, so that most are done soon, and none waits for one that takes hours.
    Those of about the same size (less than twice as large, or less than `SMALL` rows) stay in their
    order; those that the source has no statistics of come last.
    """

    def size(table: TableName) -> tuple[bool, int]:
        rows = estimated_rows.get(table)
        return rows is None, max(rows or 0, SMALL - 1).bit_length()

    return sorted(tables, key=size)
