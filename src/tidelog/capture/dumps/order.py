"""In which order the tables of a dump are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.model.schema import TableName

SMALL: Final = 1024
"""Rows: of less the statistics say little, and the time is that of a few round trips."""


def smallest_first(
    tables: Iterable[TableName], estimated_rows: Mapping[TableName, int]
) -> list[TableName]:
    """So that most of them are there soon, and none waits for one that takes hours. Those of about
    the same size (less than twice as large, or less than `SMALL` rows) stay in their order; those
    that the source has no statistics of come last.
    """

    def size(table: TableName) -> tuple[bool, int]:
        rows = estimated_rows.get(table)
        return rows is None, max(rows or 0, SMALL - 1).bit_length()

    return sorted(tables, key=size)
