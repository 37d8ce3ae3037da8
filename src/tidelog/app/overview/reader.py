"""Reads the status document from the state store and the event log.

So every process can read it, whichever leads, at no cost to capture.
"""

from __future__ import annotations

import time
from typing import Any

from tidelog.app import last_check
from tidelog.app.elections import LEASE_NAME, pipeline_lease_name
from tidelog.app.instances import (
    PIPELINE_PREFIX,
    failing_processes,
    pipeline_prefix,
    standbys,
    starting_processes,
)
from tidelog.app.last_end import CAPTURE, PIPELINE, last_end
from tidelog.app.log_location import event_log_path
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
from tidelog.model.patterns import excludes
from tidelog.model.schema import TableName
from tidelog.ports import Election, StateStore
from tidelog.state.opening import open_election
from tidelog.state.wrappers import ReadOnlyStateStore, StateReadCache


def activity_of(log: EventLog) -> dict[str, dict[str, Any]]:
    """Return ``records`` and ``last_ms`` by table, from the chain's metadata alone."""
    activity: dict[str, dict[str, Any]] = {}
    for meta in log.chain(log.info.start_offset).segments:
        for table, rows in meta.rows_by_table.items():
            if not rows:
                continue
            counts = activity.setdefault(table, {"records": 0, "last_ms": 0})
            counts["records"] += rows
            counts["last_ms"] = max(counts["last_ms"], meta.created_ms)
    return activity


class StatusReader:
    """Reads the status document repeatedly. A context manager, for one thread at a time.

    Args:
        config: the configuration.
        log_every_s: the greatest age of what was read from the event log.
    """

    def __init__(self, config: Config, *, log_every_s: float = 0.0) -> None:
        self._config = config
        self._store = ReadOnlyStateStore(config.state.place)
        self._state: StateStore = self._store
        self._elections: dict[str, Election] = {}
        self._log: EventLog | None = None
        self._log_every_s = log_every_s
        self._log_due = 0.0
        self._log_status: dict[str, Any] = {}
        self._times: dict[tuple[int, int], tuple[int, int]] = {}

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(self, *_error: object) -> None:
        for election in self._elections.values():
            election.close()
        self._state.close()

    def read(self) -> dict[str, Any]:
        """Return `from_state` and `from_log` together."""
        return {**self.from_state(), **self.from_log()}

    def from_state(self) -> dict[str, Any]:
        """Return what leaders last wrote to the state store, and the leader and standbys.

        This is position, lag, leader and dumps of capture, and of each pipeline. ``capture`` is
        None before the first.
        """
        state = StateReadCache(self._state)
        document = state.get(STATUS_KEY)
        shapes = state.get(SHAPES_KEY)
        name = self._config.pipeline.name
        status: dict[str, Any] = {
            "leader": self._election(LEASE_NAME).leader() if self._store.exists else None,
            "standbys": standbys(state),
            "failing": failing_processes(state),
            "starting": starting_processes(state),
            "starting_pipeline": (
                starting_processes(state, pipeline_prefix(name)) if self._config.outputs else []
            ),
            "pipelines": self._pipelines(state),
            "configured_outputs": [f"{name}/{output.name}" for output in self._config.outputs],
            "captured": [] if shapes is None else sorted(shapes.value),
            "engine_owners": owners_of(state),
        }
        verified = state.get(VERIFIED_KEY)
        status["verified"] = None if verified is None else _without_copies(verified.value)
        if document is None:
            status["capture"] = None
        else:
            status.update(document.value)
            status["age_ms"] = int(time.time() * 1000) - status["updated_ms"]
            status["left_out"] = [
                each for each in status.get("left_out") or () if not self._excluded(each["table"])
            ]
        status["ended"] = self._ends(state, status)
        # Also if no capture has reported it, and for pipelines that run without one.
        log = pause_of(state, LOG_KEY)
        status["log_paused"] = None if log is None else log.to_json()
        status["paused_pipelines"] = {
            key.removeprefix(PIPELINE_KEYS): pause.to_json()
            for key in state.keys(PIPELINE_KEYS)
            if (pause := pause_of(state, key)) is not None
        }
        return status

    def _ends(self, state: StateStore, status: dict[str, Any]) -> dict[str, Any]:
        """Return the errors with which capture, and pipelines by name, ended, of those of which no
        process leads.
        """
        holder = status.get("holder")
        capture = None
        if status["leader"] is None:
            since_ms = status.get("updated_ms", 0)
            capture = last_end(state, CAPTURE, holder=holder, since_ms=since_ms)
        pipelines: dict[str, Any] = {}
        if self._config.outputs:
            name = self._config.pipeline.name
            last = {row["pipeline"]: row for row in status["pipelines"]}
            row = last.get(name, {"leader": None, "since_ms": 0})
            if row["leader"] is None:
                found = last_end(state, PIPELINE + name, holder=None, since_ms=row["since_ms"])
                if found is not None:
                    pipelines[name] = found
        return {"capture": capture, "pipelines": pipelines}

    def _excluded(self, table: str) -> bool:
        """Return whether the user excluded the table, so that nobody misses it."""
        return excludes(self._config.source.tables, TableName.parse(table))

    def activity(self) -> dict[str, Any] | None:
        """Return operations by table and kind over the last day, with their sudden drops.

        They are as capture stored them last; None: there are none yet.
        """
        stored = self._state.get(ACTIVITY_KEY)
        return None if stored is None else stored.value

    def results(self) -> dict[str, Any]:
        """Return the last results of `verify` and `check`; None each: there is none."""
        verified = self._state.get(VERIFIED_KEY)
        return {
            "verified": None if verified is None else verified.value,
            "checked": last_check.stored_result(self._state, self._config),
        }

    def from_log(self) -> dict[str, Any]:
        """Return the progress of the outputs, and the contents of the event log; empty: no log.

        Raises EventLogError.
        """
        now = time.monotonic()
        if self._log is not None and now < self._log_due:
            return self._log_status
        self._log_due = now + self._log_every_s
        place = event_log_path(self._config)
        try:
            if self._log is None:
                self._log = EventLog.open(place) if EventLog.exists(place) else None
            if self._log is not None:
                self._log_status = self._read_log(self._log)
        except EventLogError:
            self._log = None  # e.g. it was recreated
            raise
        return self._log_status

    def _read_log(self, log: EventLog) -> dict[str, Any]:
        chain = log.chain()
        return {
            "log": {
                "head": chain.head,
                "next": chain.next,
                "segments": len(chain.segments),
                "payload_bytes": sum(meta.payload_bytes for meta in chain.segments),
            },
            "activity": activity_of(log),
            "excluded_columns": self._excluded_columns(log),
            **consumers_of(log, self._times),
        }

    def _excluded_columns(self, log: EventLog) -> dict[str, list[str]]:
        """Return the columns that the newest version of each table excludes."""
        if not self._config.source.exclusions:
            return {}
        newest = ((table, found[-1]) for table, found in log.schemas.by_table().items())
        return {
            str(table): [each.column.name for each in schema.excluded]
            for table, schema in newest
            if schema.excluded
        }

    def _pipelines(self, state: StateStore) -> list[dict[str, Any]]:
        """Return the leader of each pipeline, or the last one, and its standbys."""
        rows = []
        for key in state.keys(PIPELINE_PREFIX):
            name, document = key.removeprefix(PIPELINE_PREFIX), state.get(key)
            if document is None:
                continue
            leader = self._election(pipeline_lease_name(name)).leader()
            row: dict[str, Any] = {"pipeline": name, "leader": leader}
            row |= {each: document.value[each] for each in ("epoch", "zone", "since_ms")}
            row["standbys"] = standbys(state, pipeline_prefix(name))
            rows.append(row)
        return rows

    def _election(self, lease: str) -> Election:
        if lease not in self._elections:
            self._elections[lease] = open_election(self._config.state.place, lease, "status", 10)
        return self._elections[lease]


def _without_copies(verified: dict[str, Any]) -> dict[str, Any]:
    """Return the result without its copies, of which there may be a thousand."""
    return {name: value for name, value in verified.items() if name != "copies"}
