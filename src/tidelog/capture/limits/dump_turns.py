"""Which of several dumps is read next. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidelog.capture.dumps.state import DumpState
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


OTHERS_EVERY = 4
"""One of so many chunks is taken from a less urgent dump, so that no dump waits for ever."""


class DumpTurns:
    """The most urgent dumps come first; those that are as urgent as each other take turns."""

    def __init__(self) -> None:
        self._most = 0
        self._after = {True: 0, False: 0}  # by urgency: the number of the dump that was given last
        self._given = 0

    def order(self, dumps: Sequence[DumpState]) -> list[DumpState]:
        """The dumps, those first whose turn it is; the next ones are for where they have no chunk
        now.
        """
        self._most = max((dump.priority for dump in dumps), default=0)
        others_first = self._given % OTHERS_EVERY == OTHERS_EVERY - 1

        def turn(dump: DumpState) -> tuple[bool, bool, int]:
            urgent = self._is_urgent(dump)
            return urgent == others_first, dump.number <= self._after[urgent], dump.number

        return sorted(dumps, key=turn)

    def gave(self, dump: DumpState) -> None:
        """A chunk of the dump, as `order` had it, is read next."""
        self._after[self._is_urgent(dump)] = dump.number
        self._given += 1

    def _is_urgent(self, dump: DumpState) -> bool:
        return dump.priority == self._most
