"""Deletes the progress of engines that will not run again, so that retention stops waiting."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from tidelog.app.log_location import event_log_path
from tidelog.app.overview.reader import ENGINE_GROUPS, RUNS_S, process_of
from tidelog.config import Config
from tidelog.errors import UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.results import ForgottenEngine
from tidelog.state.opening import open_state
from tidelog.system.processes import has_ended


def forget_engine(config: Config, name: str) -> ForgottenEngine:
    """Delete and return the progress of all engines of this name; a later one is new.

    Raises:
        UsageError: there is none, it is a pipeline's name, or an engine of the name runs.
        EventLogError: there is no event log.
    """
    consumers = Consumers(EventLog.open(event_log_path(config)).storage)
    consumer = consumers.find(name)
    with closing(open_state(config.state.place)) as state:
        document = state.get(f"{ENGINE_GROUPS}{name}")
        if consumer is None and document is None:
            known = ", ".join(each.name for each in consumers.all() if each.engine) or "none"
            raise UsageError(f"no engine named {name} has progress in this event log: {known}")
        if consumer is not None and not consumer.engine:
            raise UsageError(f"{name} is a pipeline, no engine")
        group = {} if document is None else document.value
        noted_ms = 0 if consumer is None else consumer.updated_ms
        if time.time() * 1000 - group.get("seen_ms", noted_ms) < RUNS_S * 1000:
            processes = group.get("processes", {})
            running = [each for each in group.get("members", ()) if not _has_ended(processes, each)]
            if running or document is None:
                who = ", ".join(map(process_of, running)) or "somebody"
                raise UsageError(
                    f"an engine named {name} runs, or ran less than {RUNS_S:.0f} s ago: {who}."
                    " End it first"
                )
        if document is not None:
            state.delete(f"{ENGINE_GROUPS}{name}")
    consumers.forget(name)
    return ForgottenEngine(name, None if consumer is None else consumer.offset)


def _has_ended(processes: dict[str, Any], holder: str) -> bool:
    return has_ended(processes.get(holder, {}))
