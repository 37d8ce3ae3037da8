"""Which of several dumps is read next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.capture.dumps.state import DumpState

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
