"""Orders tables within a dump, and decides which of several dumps is read next. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidelog.capture.dumps.state import DumpState
from tidelog.errors import ConnectionLostError, SourceError
from tidelog.model.schema import TableName

logger = logging.getLogger(__name__)

SMALL: Final = 1024
"""Rows: below this, statistics say little, and a few round trips are most of the time."""


def in_order(
    tables: Sequence[TableName],
    estimates: Callable[[Sequence[TableName]], Mapping[TableName, int]],
) -> list[TableName]:
    """Apply `smallest_first` to ``estimates``; if these fail, return the given order. Raises
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
    """The tables by size, so that most are done soon and none waits for one that takes hours.
    Tables of similar size (less than twice as large, or less than `SMALL` rows) keep their order;
    those without statistics come last.
    """

    def size(table: TableName) -> tuple[bool, int]:
        rows = estimated_rows.get(table)
        return rows is None, max(rows or 0, SMALL - 1).bit_length()

    return sorted(tables, key=size)


OTHERS_EVERY = 4
"""One of this many chunks is taken from a less urgent dump, so that no dump waits for ever."""


class DumpTurns:
    """The turns of dumps: the most urgent come first; equally urgent ones take turns."""

    def __init__(self) -> None:
        self._most = 0
        self._after = {True: 0, False: 0}  # by urgency: number of the last dump that had its turn
        self._given = 0

    def order(self, dumps: Sequence[DumpState]) -> list[DumpState]:
        """The dumps in the order of their turns; the later ones are used if the first have no chunk
        now.
        """
        self._most = max((dump.priority for dump in dumps), default=0)
        others_first = self._given % OTHERS_EVERY == OTHERS_EVERY - 1

        def turn(dump: DumpState) -> tuple[bool, bool, int]:
            urgent = self._is_urgent(dump)
            return urgent == others_first, dump.number <= self._after[urgent], dump.number

        return sorted(dumps, key=turn)

    def took_turn(self, dump: DumpState) -> None:
        """Note that a chunk of this dump is read next."""
        self._after[self._is_urgent(dump)] = dump.number
        self._given += 1

    def _is_urgent(self, dump: DumpState) -> bool:
        return dump.priority == self._most
