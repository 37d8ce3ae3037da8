"""The way out of a gap: consent, once, to go on without what the source can't give any more."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from tidelog.app.elections import LEASE_NAME
from tidelog.app.log_location import log_place
from tidelog.app.sources.kinds import source_kind
from tidelog.capture.generation import CONSENT_KEY, GENERATION_KEY, STATUS_KEY
from tidelog.config import Config
from tidelog.errors import TableRefusedError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.ports import Catalogue
from tidelog.state.opening import open_election, open_state
from tidelog.state.read_only import ReadOnlyStateStore


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
