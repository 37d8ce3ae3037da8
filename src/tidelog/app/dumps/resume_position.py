"""Where a log continues: at its end or, if the user consents, after the part that the source no
longer has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidelog.capture.generation import CONSENT_KEY, GAP_KEY
from tidelog.capture.limits.log_guard import GIVEN_UP_KEY, with_its_cause
from tidelog.errors import GapError
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import Resume
from tidelog.ports import LogReader, StateStore

logger = logging.getLogger(__name__)

CONSENT_S: Final = 600.0
"""How long after a start `tidelog reset` holds: what breaks the log is read at once, or soon."""
PASSED_KEY: Final = "log-gap-passed"
"""When a capture last went on behind a gap."""


class Gaps:
    """The gaps of one capture, over all its leaderships.

    Args:
        dumps_again: whether the configuration says that what was missed may be dumped again.
    """

    def __init__(self, dumps_again: Callable[[], bool]) -> None:
        self._dumps_again = dumps_again
        self._consent_until = 0.0
        self._streaming = False
        self._found: GapError | None = None
        self.passed_ms: int | None = None
        """When a capture last went on behind one; None: none ever did."""

    def pass_over(self, gap: GapError) -> None:
        """A gap was found while the log was read: the next session begins after it. Raises the
        GapError unless the user has consented.
        """
        if not (self._consented and self._streaming):
            raise gap
        self._found = gap

    def begin(self, state: StateStore, reader: LogReader, writer: EventLogWriter) -> Resume:
        """Where the log goes on; behind a gap, if the user has consented to dump again. Raises
        GapError.
        """
        self._streaming, gap, self._found = False, self._found, None
        passed = state.get(PASSED_KEY)
        self.passed_ms = None if passed is None else int(passed.value["at_ms"])
        if state.get(CONSENT_KEY) is not None:
            self._consent_until = time.monotonic() + CONSENT_S
        try:
            if gap is not None:
                raise gap
            begin = reader.start(writer.resume)
        except GapError as error:
            if not self._consented or writer.resume is None:
                raise with_its_cause(error, state) from None
            logger.warning("all tables are dumped again, because changes were missed: %s", error)
            begin = self._behind(writer.resume, state, reader, writer)
        else:
            writer.source = reader.identify()
            if begin != writer.resume:  # the first one, or of another server
                writer.append_position(begin)
        state.delete(CONSENT_KEY)  # it was given for this start
        state.delete(GIVEN_UP_KEY)
        self._streaming = True
        return begin

    def _behind(
        self, missed: Resume, state: StateStore, reader: LogReader, writer: EventLogWriter
    ) -> Resume:
        state.put(GAP_KEY, writer.next_offset, None)
        begin = reader.start_over(missed)
        # What was appended stays appended: the log's end never moves backward.
        begin = reader.start(replace(begin, position=missed.position, ordinal=missed.ordinal))
        writer.source = reader.identify()
        self.passed_ms = time.time_ns() // 1_000_000
        state.put(PASSED_KEY, {"at_ms": self.passed_ms}, None)
        writer.append_control({"type": "gap", "from": missed.acknowledge, "to": begin.acknowledge})
        writer.append_position(begin)
        self._consent_until = 0.0
        return begin

    @property
    def _consented(self) -> bool:
        """May what was missed be dumped again?"""
        return self._dumps_again() or time.monotonic() < self._consent_until
