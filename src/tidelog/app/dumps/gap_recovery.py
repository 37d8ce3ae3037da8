"""The way out of a gap: consent, once, to go on without what the source can't give any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from tidelog.app.elections import LEASE_NAME
from tidelog.app.log_location import log_place
from tidelog.app.sources.kinds import source_kind
from tidelog.capture.generation import CONSENT_KEY, GAP_KEY, GENERATION_KEY, STATUS_KEY
from tidelog.capture.limits.log_guard import GIVEN_UP_KEY, with_its_cause
from tidelog.config import Config
from tidelog.errors import GapError, TableRefusedError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import Resume
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue, LogReader, StateStore
from tidelog.state.opening import open_election, open_state
from tidelog.state.wrappers import ReadOnlyStateStore

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


def reset_plan(config: Config) -> dict[str, Any]:
    """What `reset` would lead to; asks the source for its tables, and changes nothing.

    ``captured_until_ms``: when the newest transaction was committed that is captured; None: not
    known. ``log_exists``: False: it was lost, and another one begins. ``tables``: those that are
    dumped again. ``not_dumped``: those that no dump can read, each with its ``reason``.

    Raises:
        UsageError: a capture leads, or nothing was ever captured.
    """
    log_exists = EventLog.exists(log_place(config))
    with closing(ReadOnlyStateStore(config.state.place)) as state:
        if not log_exists and state.get(GENERATION_KEY) is None:
            raise UsageError(f"{log_place(config)} holds no event log: there is nothing to reset")
        if (leader := _leader(config) if state.exists else None) is not None:
            raise UsageError(
                f"{leader} leads: stop capture first, and its standbys. A capture that "
                "leads has no gap"
            )
        status = state.get(STATUS_KEY)
    last_us = 0 if status is None else (status.value.get("capture") or {}).get("last_commit_ts", 0)
    with closing(source_kind(config).catalogue()) as catalogue:
        tables = sorted(catalogue.tables(config.source.tables), key=str)
        reasons = {str(table): _not_dumped(catalogue, table) for table in tables}
    return {
        "log": log_place(config),
        "log_exists": log_exists,
        "captured_until_ms": last_us // 1000 or None,
        "tables": [table for table, reason in reasons.items() if reason is None],
        "not_dumped": [
            {"table": table, "reason": reason}
            for table, reason in reasons.items()
            if reason is not None
        ],
    }


def _leader(config: Config) -> str | None:
    with closing(open_election(config.state.place, LEASE_NAME, "reset", 10)) as election:
        return election.leader()


def _not_dumped(catalogue: Catalogue, table: TableName) -> str | None:
    """Why no dump can read the table; None: one can."""
    try:
        shape = catalogue.shape(table)
    except TableRefusedError as error:
        return error.reason
    if shape is None:
        return "the table is gone"
    return None if shape.schema.key else "it has no primary key"


def reset(config: Config) -> None:
    """The next capture that leads may go on behind a gap, if there is one: it notes it in the event
    log, and dumps all tables again that a dump can read. Where the event log is lost, it begins a
    new one. Raises UsageError as `reset_plan` does.
    """
    reset_plan(config)
    with closing(open_state(config.state.place)) as state:
        state.put(CONSENT_KEY, {"at_ms": int(time.time() * 1000)}, None)
