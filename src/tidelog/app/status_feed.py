"""What capture and pipelines noted of themselves, asked for again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidelog.app.elections import LEASE_NAME, pipeline_lease
from tidelog.app.log_location import log_place
from tidelog.app.overview.outputs import outputs_of
from tidelog.app.roster import PIPELINE_PREFIX, failing, of_pipeline, standbys
from tidelog.capture.session import STATUS_KEY
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election
from tidelog.state.opening import look_every_s, open_election, open_state

_ASK_EVERY_S = 0.5  # capture publishes about once a second
_OUTPUTS_EVERY_S = 1.0

OnStatus = Callable[[dict[str, Any]], None]


def ignore(_status: dict[str, Any]) -> None:
    """Nobody wants to know."""


class StatusFeed:
    """Reads the state store and the event log alone: looking costs capture nothing. A context
    manager, for one thread.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._place = config.state.place
        self._state = open_state(self._place)
        self._elections: dict[str, Election] = {}
        self._log: EventLog | None = None
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        self._outputs: list[dict[str, Any]] = []
        self._outputs_due = 0.0
        self.ask_every_s = max(_ASK_EVERY_S, look_every_s(self._place))
        """A store whose requests are paid for is asked less often."""

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *_error: object) -> None:
        for election in self._elections.values():
            election.close()
        self._state.close()

    def latest(self) -> dict[str, Any]:
        """As `tidelog.app.status`. An event log that can't be read now is as it was."""
        found = self.noted()
        now = time.monotonic()
        if now >= self._outputs_due:
            self._outputs_due = now + max(_OUTPUTS_EVERY_S, self.ask_every_s)
            try:
                self._look_at_outputs()
            except (TidelogError, OSError):
                self._log = None
        return {**found, "outputs": self._outputs}

    def noted(self) -> dict[str, Any]:
        """The status that the leader published last, who leads and who would, of capture and of
        each pipeline. ``capture`` is None before the first.
        """
        document = self._state.get(STATUS_KEY)
        name = self._config.pipeline.name
        found: dict[str, Any] = {
            "leader": self._election(LEASE_NAME).leader(),
            "standbys": standbys(self._state),
            "failing": failing(self._state),
            "pipelines": self._pipelines(),
            "configured_outputs": [f"{name}/{output.name}" for output in self._config.outputs],
        }
        if document is None:
            return {**found, "capture": None}
        age_ms = int(time.time() * 1000) - document.value["updated_ms"]
        return {**found, **document.value, "age_ms": age_ms}

    def _look_at_outputs(self) -> None:
        if self._log is None:
            place = log_place(self._config)
            if not EventLog.exists(place):
                return
            self._log = EventLog.open(place)
        self._outputs = list(outputs_of(self._log, self._first))

    def _pipelines(self) -> list[dict[str, Any]]:
        """Who delivers each pipeline, who did last if nobody does, and who stands by."""
        found = []
        for key in self._state.keys(PIPELINE_PREFIX):
            name, document = key.removeprefix(PIPELINE_PREFIX), self._state.get(key)
            if document is None:
                continue
            row: dict[str, Any] = {
                "pipeline": name,
                "leader": self._election(pipeline_lease(name)).leader(),
            }
            row |= {each: document.value[each] for each in ("epoch", "zone", "since_ms")}
            row["standbys"] = standbys(self._state, of_pipeline(name))
            found.append(row)
        return found

    def _election(self, lease: str) -> Election:
        if lease not in self._elections:
            self._elections[lease] = open_election(self._place, lease, "status", 10)
        return self._elections[lease]
