"""How large a table's rows were, so that the next chunk of them takes no more than it may."""

from __future__ import annotations

from tidelog.model.schema import TableName

SMOOTHING = 0.2
AIM = 0.75
"""Of the room that a chunk has, because rows differ: one that takes more is ended early."""


class RowWidths:
    """Bytes of a row, by table. The coordinator's lock guards it."""

    def __init__(self) -> None:
        self._widths: dict[TableName, float] = {}

    def note(self, table: TableName, rows: int, size: int) -> None:
        """A chunk of so many rows took ``size`` bytes. Larger rows count at once, smaller ones
        little by little.
        """
        if rows:
            width = size / rows
            before = self._widths.get(table, width)
            self._widths[table] = max(width, before + SMOOTHING * (width - before))

    def rows(self, table: TableName, most: int, room: int) -> int:
        """How many rows to read, at most ``most``, so that they take less than ``room``."""
        width = self._widths.get(table)
        return most if not width else max(1, min(most, int(AIM * room / width)))
