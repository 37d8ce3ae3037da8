"""Reads the status document, with outputs and engines, from the state store and the event log.

So every process can read it, whichever leads, at no cost to capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from tidelog.app.base import last_results
from tidelog.app.base.elections import LEASE_NAME, pipeline_lease_name
from tidelog.app.base.instances import PIPELINE_PREFIX, pipeline_prefix, processes_with, standbys
from tidelog.app.base.last_results import CAPTURE, PIPELINE, last_end
from tidelog.app.base.last_results import VERIFY_KEY as VERIFIED_KEY
from tidelog.app.base.log_location import event_log_path
from tidelog.capture.activity import ACTIVITY_KEY
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.pauses import LOG_KEY, PIPELINE_KEYS, pause_of
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.errors import EventLogError, OffsetGoneError
from tidelog.eventlog.consumers import Consumer, Consumers, DeliveryStats
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import excludes
from tidelog.model.records import Int64s
from tidelog.model.schema import TableName
from tidelog.ports import Election, StateStore
from tidelog.results import EngineHealth
from tidelog.state.opening import ReadOnlyStateStore, StateReadCache, open_election
from tidelog.system.processes import unix_ms

# How far outputs and engines are, by their documents in the event log.

_Known = dict[tuple[int, int], tuple[int, int]]
_Missing = Callable[[int], tuple[int, float | None]]
_KNOWN = 1000


def consumers_of(log: EventLog, part_cache: _Known) -> dict[str, Any]:
    """Return the rows of ``outputs`` and ``engines`` for the status, and the names of the
    consumers whose files are damaged.

    There is a row for each output of each pipeline, and for each name of engines.
    ``behind_records``: the records that it has not processed. ``lag_s``: the age of the oldest of
    these since its commit, by the source's clock. ``part_cache``: a cache for repeated calls with
    one ``log``: a segment's part → its records, and the time of the first in microseconds.
    """
    if len(part_cache) > _KNOWN:
        part_cache.clear()
    consumers, damaged = Consumers(log.storage).read()
    missing = cache(lambda offset: _missing_records(log, offset, part_cache))
    return {
        "outputs": list(_outputs(consumers, missing)),
        "engines": list(_engines(consumers, missing)),
        "damaged_consumers": sorted(damaged),
    }


def _engines(consumers: Sequence[Consumer], missing: _Missing) -> Iterator[dict[str, Any]]:
    for consumer in consumers:
        if consumer.engine:
            records, lag_s = missing(consumer.offset)
            yield {
                "engine": consumer.name,
                "offset": consumer.offset,
                "behind_records": records,
                "lag_s": lag_s,
                "noted_ms": consumer.updated_ms,
            }


def _outputs(consumers: Sequence[Consumer], missing: _Missing) -> Iterator[dict[str, Any]]:
    for consumer in consumers:
        for output, offset in sorted(consumer.outputs.items()):
            records, lag_s = missing(offset)
            stopped = consumer.stopped.get(output)
            delivered = consumer.delivered.get(output)
            row: dict[str, Any] = {
                "pipeline": consumer.name,
                "output": output,
                "offset": offset,
                "behind_records": records,
                "lag_s": lag_s,
                "noted_ms": consumer.updated_ms,
                "state": "following" if stopped is None else "stopped",
            }
            if stopped is not None:
                row |= {"error": stopped.message, "since_ms": stopped.since_ms}
            if delivered is not None:
                row |= _deliveries(delivered)
            yield row


def _deliveries(delivered: DeliveryStats) -> dict[str, Any]:
    row: dict[str, Any] = {"rejected": delivered.rejected, "rejected_ms": delivered.rejected_ms}
    if delivered.refused:
        row["refused"] = dict(delivered.refused)
    if delivered.keyless:
        row["keyless"] = dict(delivered.keyless)
    if delivered.unregistered:
        row["unregistered"] = dict(delivered.unregistered)
    if delivered.committed_ms is not None:
        row |= {"committed_ms": delivered.committed_ms, "batch_s": delivered.batch_s}
        row |= {"batch_records": delivered.records, "batches": delivered.batches}
        row |= {"all_records": delivered.all_records, "all_s": delivered.all_s}
        row["records_per_s"] = round(delivered.records / max(delivered.batch_s, 0.001), 1)
    if delivered.begun_ms is not None:
        row |= {"begun_ms": delivered.begun_ms, "begun_records": delivered.begun_records}
    if delivered.failure is not None:
        row |= {"failed": delivered.failure.message, "failed_ms": delivered.failure.since_ms}
    return row


def _source_check(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of capture's own check in the form of `last_results.check_summary`."""
    found = status.get("source_checked")
    if found is None:
        return None
    counts = {level: found["counts"].get(level, 0) for level in ("error", "warning", "ok")}
    findings = [{"level": "error", **each} for each in status.get("check_errors") or ()]
    return {"at_ms": found["at_ms"], "by": "capture", "counts": counts, "findings": findings}


def _missing_records(log: EventLog, offset: int, part_cache: _Known) -> tuple[int, float | None]:
    """Return the number of table records from ``offset`` on, and the age of the first one.

    The age is 0.0 if there is none; None: not known. Reads one segment; the chain's metadata have
    the numbers of the others.
    """
    chain = log.chain(offset)
    if offset < chain.head:
        return sum(sum(meta.rows_by_table.values()) for meta in chain.segments), None
    records, first_us = 0, None
    for meta in chain.between(offset, chain.next):
        rows = sum(meta.rows_by_table.values())
        if rows and (meta.first < offset or first_us is None):
            part = max(offset, meta.first), meta.next
            if part not in part_cache:
                times = _times(log, *part)
                part_cache[part] = len(times), int(times[0]) if len(times) else 0
            rows, found_us = part_cache[part]
            first_us = found_us if rows else None
        records += rows
    if not records:
        return 0, 0.0
    return records, None if not first_us else round(max(0.0, time.time() - first_us / 1e6), 1)


def _times(log: EventLog, start: int, end: int) -> Int64s:
    """Return the commit times of the table records in ``[start, end)``."""
    times = [np.empty(0, np.int64)]
    try:
        for ref in log.segments(start, end):
            for batch in log.batches(ref, ["schema_id", "commit_ts"]):
                of_table = batch.column("schema_id").to_numpy() > 0
                times.append(batch.column("commit_ts").to_numpy()[of_table])
    except OffsetGoneError:
        pass  # retention deleted it during the read
    return np.concatenate(times)


# Engines in programs: which processes run them, and which have not run for long.

ENGINE_GROUPS: Final = "engine-group/"
"""The key prefix of the documents of `tidelog.app.async_engine.capture_task`."""
RUNS_S: Final = 120.0
"""A running engine reports more often than this."""


def process_of(holder: str) -> str:
    """Return the process, host and number, of a holder's name, without its token."""
    return holder.rpartition("-")[0]


def owners_of(state: StateStore) -> dict[str, dict[str, Any]]:
    """Return ``partitions``, ``owners`` and ``seen_ms``, by engine.

    ``partitions``: the number of partitions of its keys; ``owners``: the processes that have any of
    them; ``seen_ms``: when one last reported that it runs.
    """
    result = {}
    for key in state.keys(ENGINE_GROUPS):
        if (document := state.get(key)) is not None:
            owners = sorted(set(map(process_of, document.value["owners"].values())))
            fields = {name: document.value.get(name) for name in ("partitions", "seen_ms")}
            result[key.removeprefix(ENGINE_GROUPS)] = {**fields, "owners": owners}
    return result


def engine_health(status: Mapping[str, Any], now_ms: int) -> Iterator[EngineHealth]:
    """Yield the health of each row of ``engines`` in ``status``, with its owners (`owners_of`)."""
    owners = status.get("engine_owners") or {}
    for row in status.get("engines") or ():
        engine_owners = owners.get(row["engine"]) or {}
        seen_ms = engine_owners.get("seen_ms")
        runs = seen_ms is not None and now_ms - seen_ms < RUNS_S * 1000
        yield EngineHealth(
            name=row["engine"],
            offset=row["offset"],
            behind_records=row["behind_records"],
            lag_s=row["lag_s"],
            noted_ms=row["noted_ms"],
            seen_ms=seen_ms,
            owners=tuple(engine_owners["owners"]) if runs else (),
            partitions=engine_owners.get("partitions"),
        )


# The reader of the status document.


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
        self._store = ReadOnlyStateStore(config.state.location)
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
            "failing": processes_with(state, "trouble"),
            "starting": processes_with(state, "starting"),
            "starting_pipeline": (
                processes_with(state, "starting", pipeline_prefix(name))
                if self._config.outputs
                else []
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
            status["age_ms"] = unix_ms() - status["updated_ms"]
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
        """Return operations by table and kind over the last day, with their sudden drops. They are
        as capture stored them last; None: there are none yet.
        """
        stored = self._state.get(ACTIVITY_KEY)
        return None if stored is None else stored.value

    def results(self) -> dict[str, Any]:
        """Return the last results of `verify` and `check`; None each: there is none. ``by``:
        ``capture`` if only that has checked, the source alone.
        """
        verified = self._state.get(VERIFIED_KEY)
        checked = last_results.stored_check_summary(self._state, self._config)
        if checked is None and (status := self._state.get(STATUS_KEY)) is not None:
            checked = _source_check(status.value)
        return {"verified": None if verified is None else verified.value, "checked": checked}

    def from_log(self, *, at_once: bool = False) -> dict[str, Any]:
        """Return the progress of the outputs, and the contents of the event log; empty: no log.
        ``at_once``: read it now, however old the last result is. Raises EventLogError.
        """
        now = time.monotonic()
        if self._log is not None and now < self._log_due and not at_once:
            return self._log_status
        self._log_due = now + self._log_every_s
        location = event_log_path(self._config)
        try:
            if self._log is None:
                self._log = EventLog.open(location) if EventLog.exists(location) else None
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
        """Return the columns that the last version of each table excludes."""
        if not self._config.source.exclusions:
            return {}
        from tidelog.spark.datasource.partitions import schemas_now

        return {
            str(table): [each.column.name for each in schema.excluded]
            for table, schema in schemas_now(log).items()
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
            self._elections[lease] = open_election(self._config.state.location, lease, "status", 10)
        return self._elections[lease]


def _without_copies(verified: dict[str, Any]) -> dict[str, Any]:
    """Return the result without its copies, of which there may be a thousand."""
    return {name: value for name, value in verified.items() if name != "copies"}
