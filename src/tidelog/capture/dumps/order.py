"""In which order the tables of a dump are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.model.schema import TableName


def smallest_first(
    tables: Iterable[TableName], estimated_rows: Mapping[TableName, int]
) -> list[TableName]:
    """So that most of them are there soon, and none waits for one that takes hours. Those of about
    the same size (less than twice as large) stay in their order; those that the source has no
    statistics of, or none rows by these, come last.
    """

    def size(table: TableName) -> tuple[bool, int]:
        rows = estimated_rows.get(table, 0)
        return rows <= 0, rows.bit_length()

    return sorted(tables, key=size)
