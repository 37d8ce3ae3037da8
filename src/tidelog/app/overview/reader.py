"""Reads what an overview is made of: from the state store and the event log, so that it can be had
in every process, whoever leads, and costs capture nothing.
"""

from __future__ import annotations

import time
from typing import Any

from tidelog.app import last_check
from tidelog.app.elections import LEASE_NAME, pipeline_lease
from tidelog.app.instances import PIPELINE_PREFIX, failing, of_pipeline, standbys
from tidelog.app.log_location import log_place
from tidelog.app.overview.engines import owners_of
from tidelog.app.overview.outputs import consumers_of
from tidelog.app.verify.last_result import KEY as VERIFIED_KEY
from tidelog.capture.activity.log import ACTIVITY_KEY
from tidelog.capture.catalogue.catalogue_watch import SHAPES_KEY
from tidelog.capture.generation import STATUS_KEY
from tidelog.capture.limits.pauses import LOG_KEY, PIPELINE_KEYS, pause_of
from tidelog.config import Config
from tidelog.errors import EventLogError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election, StateStore
from tidelog.state.opening import open_election
from tidelog.state.wrappers import ReadOnlyStateStore, StateReadCache


def activity_of(log: EventLog) -> dict[str, dict[str, Any]]:
    """For status: ``records`` and ``last_ms`` by table. Made of the chain's metadata alone."""
    found: dict[str, dict[str, Any]] = {}
    for meta in log.chain(log.info.start_offset).segments:
        for table, rows in meta.rows_by_table.items():
            if not rows:
                continue
            seen = found.setdefault(table, {"records": 0, "last_ms": 0})
            seen["records"] += rows
            seen["last_ms"] = max(seen["last_ms"], meta.created_ms)
    return found


class StatusReader:
    """The status document, again and again. A context manager, for one thread at a time.

    Args:
        config: whose.
        log_every_s: what the event log says may be so old.
    """

    def __init__(self, config: Config, *, log_every_s: float = 0.0) -> None:
        self._config = config
        self._looked_at = ReadOnlyStateStore(config.state.place)
        self._state: StateStore = self._looked_at
        self._elections: dict[str, Election] = {}
        self._log: EventLog | None = None
        self._log_every_s = log_every_s
        self._log_due = 0.0
        self._of_log: dict[str, Any] = {}
        self._times: dict[tuple[int, int], tuple[int, int]] = {}

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(self, *_error: object) -> None:
        for election in self._elections.values():
            election.close()
        self._state.close()

    def read(self) -> dict[str, Any]:
        """`noted` and `from_log`."""
        return {**self.noted(), **self.from_log()}

    def noted(self) -> dict[str, Any]:
        """Position, lag, leader and dumps, as the leader last wrote them, and who would lead, of
        capture and of each pipeline. ``capture`` is None before the first.
        """
        state = StateReadCache(self._state)
        document = state.get(STATUS_KEY)
        shapes = state.get(SHAPES_KEY)
        name = self._config.pipeline.name
        found: dict[str, Any] = {
            "leader": self._election(LEASE_NAME).leader() if self._looked_at.exists else None,
            "standbys": standbys(state),
            "failing": failing(state),
            "pipelines": self._pipelines(state),
            "configured_outputs": [f"{name}/{output.name}" for output in self._config.outputs],
            "captured": [] if shapes is None else sorted(shapes.value),
            "engine_owners": owners_of(state),
        }
        verified = state.get(VERIFIED_KEY)
        found["verified"] = None if verified is None else _briefly(verified.value)
        if document is None:
            found["capture"] = None
        else:
            found.update(document.value)
            found["age_ms"] = int(time.time() * 1000) - found["updated_ms"]
        # Also where no capture has told it, and of pipelines that run without one.
        log = pause_of(state, LOG_KEY)
        found["log_paused"] = None if log is None else log.to_json()
        found["paused_pipelines"] = {
            key.removeprefix(PIPELINE_KEYS): pause.to_json()
            for key in state.keys(PIPELINE_KEYS)
            if (pause := pause_of(state, key)) is not None
        }
        return found

    def activity(self) -> dict[str, Any] | None:
        """Operations by table and kind over the last day, as capture stored them last, with their
        sudden drops; None: there are none yet.
        """
        stored = self._state.get(ACTIVITY_KEY)
        return None if stored is None else stored.value

    def results(self) -> dict[str, Any]:
        """What `verify` and `check` found last; None each: nothing is noted."""
        verified = self._state.get(VERIFIED_KEY)
        return {
            "verified": None if verified is None else verified.value,
            "checked": last_check.noted(self._state),
        }

    def from_log(self) -> dict[str, Any]:
        """How far the outputs are, and what the event log holds; nothing before there is one.
        Raises EventLogError.
        """
        now = time.monotonic()
        if self._log is not None and now < self._log_due:
            return self._of_log
        self._log_due = now + self._log_every_s
        place = log_place(self._config)
        try:
            if self._log is None:
                self._log = EventLog.open(place) if EventLog.exists(place) else None
            if self._log is not None:
                self._of_log = self._look(self._log)
        except EventLogError:
            self._log = None  # e.g. it was made anew
            raise
        return self._of_log

    def _look(self, log: EventLog) -> dict[str, Any]:
        chain = log.chain()
        return {
            "log": {
                "head": chain.head,
                "next": chain.next,
                "segments": len(chain.segments),
                "payload_bytes": sum(meta.payload_bytes for meta in chain.segments),
            },
            "activity": activity_of(log),
            **consumers_of(log, self._times),
        }

    def _pipelines(self, state: StateStore) -> list[dict[str, Any]]:
        """Who delivers each pipeline, who did last if nobody does, and who stands by."""
        found = []
        for key in state.keys(PIPELINE_PREFIX):
            name, document = key.removeprefix(PIPELINE_PREFIX), state.get(key)
            if document is None:
                continue
            leader = self._election(pipeline_lease(name)).leader()
            row: dict[str, Any] = {"pipeline": name, "leader": leader}
            row |= {each: document.value[each] for each in ("epoch", "zone", "since_ms")}
            row["standbys"] = standbys(state, of_pipeline(name))
            found.append(row)
        return found

    def _election(self, lease: str) -> Election:
        if lease not in self._elections:
            self._elections[lease] = open_election(self._config.state.place, lease, "status", 10)
        return self._elections[lease]


def _briefly(verified: dict[str, Any]) -> dict[str, Any]:
    """Without the result of each copy, of which there may be a thousand."""
    return {name: value for name, value in verified.items() if name != "copies"}
