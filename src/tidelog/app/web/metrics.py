"""Defines the metrics, and computes their values. `docs/reference/metrics.md` is made from it.

Labels are names of pipelines and outputs, which the configuration bounds, and kinds of problems,
limits, operations and reasons, which the code bounds. No label is a table: there may be thousands.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from tidelog.app.overview.build import overview
from tidelog.app.overview.reader import consumers_of
from tidelog.capture.dumps.throttle import Limit
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.results import Overview
from tidelog.system.processes import unix_ms

# The definitions: name, unit, meaning and value.

Sample = tuple[tuple[str, ...], float | None]
"""The labels' values, and the metric's value; None: not known, so it is left out."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: the name as scraped; a counter's ends in ``_total``.
        kind: a gauge may fall; a counter falls only when another process starts to lead, and an
            output's counter only when its pipeline's document was deleted.
        about: one sentence.
        labels: the names of the labels.
        samples: returns the samples, from a status document and its overview.
    """

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    samples: Callable[[Mapping[str, Any], Overview], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    @property
    def of_output(self) -> bool:
        """Whether pipelines report it, so that it survives a change of capture's leader."""
        return self.labels == _BY_OUTPUT


def _one(value: Callable[[Mapping[str, Any], Overview], float | None]) -> Any:
    """Return the samples of a metric without labels."""
    return lambda status, current: [((), value(status, current))]


def _section_value(section: str, name: str, factor: float = 1.0) -> Any:
    """Return a number of a section of the status."""

    def value(status: Mapping[str, Any], _found: Overview) -> float | None:
        number = (status.get(section) or {}).get(name)
        return None if number is None else factor * number

    return _one(value)


def _capture(name: str) -> Any:
    return _section_value("capture", name)


def _counter(name: str) -> Any:
    return _section_value("dump_counters", name)


def _decision(name: str, factor: float = 1.0) -> Any:
    def value(status: Mapping[str, Any], _found: Overview) -> float | None:
        decision = (status.get("throttle") or {}).get("decision") or {}
        return None if decision.get(name) is None else factor * decision[name]

    return _one(value)


def _limits(status: Mapping[str, Any], _found: Overview) -> Iterator[Sample]:
    decision = (status.get("throttle") or {}).get("decision") or {}
    if "limited_by" in decision:
        for limit in get_args(Limit):
            yield (limit,), float(decision["limited_by"] == limit)


def _state(name: str) -> Any:
    def samples(status: Mapping[str, Any], _found: Overview) -> Iterator[Sample]:
        for operation, value in ((status.get("state") or {}).get(name) or {}).items():
            yield (operation,), value

    return samples


def _output_values(name: str) -> Any:
    def samples(_status: Mapping[str, Any], current: Overview) -> Iterator[Sample]:
        for output in current.outputs:
            yield (output.pipeline, output.output), getattr(output, name)

    return samples


def _engine_values(name: str) -> Any:
    def samples(_status: Mapping[str, Any], current: Overview) -> Iterator[Sample]:
        for engine in current.engines:
            yield (engine.name,), getattr(engine, name)

    return samples


def _refused_tables(_status: Mapping[str, Any], current: Overview) -> Iterator[Sample]:
    for output in current.outputs:
        yield (output.pipeline, output.output), len(output.refused)


def _output_times(name: str) -> Any:
    """Return a time of each output, in seconds; none before there is one."""

    def samples(_status: Mapping[str, Any], current: Overview) -> Iterator[Sample]:
        for output in current.outputs:
            at_ms = getattr(output, name)
            yield (output.pipeline, output.output), None if at_ms is None else at_ms / 1000

    return samples


def _commit_s(status: Mapping[str, Any], _found: Overview) -> float | None:
    last_us = (status.get("capture") or {}).get("last_commit_ts")
    return last_us / 1e6 if last_us else None


def _left_s(_status: Mapping[str, Any], current: Overview) -> float | None:
    """Return the seconds left of the dump that takes longest."""
    return max((each.left_s for each in current.dumps if each.left_s is not None), default=None)


def _problems(_status: Mapping[str, Any], current: Overview) -> Iterator[Sample]:
    counts = Counter((each.kind, each.severity.value) for each in current.problems)
    yield from sorted(counts.items())


def _voided_chunks(status: Mapping[str, Any], _found: Overview) -> Iterator[Sample]:
    for reason, count in sorted(((status.get("dump_counters") or {}).get("voided") or {}).items()):
        yield (reason,), count


_BY_OUTPUT: Final = ("pipeline", "output")
_BY_OPERATION: Final = ("operation",)

LEADING: Final = Metric(
    "tidelog_leading", "gauge", "1 if this process captures, else 0.",
    lambda _status, _found: [((), 1.0)],
)  # fmt: skip
"""Standbys have this metric, too."""

METRICS: Final = (
    Metric(
        "tidelog_leader_epoch", "gauge", "The number of this leadership; each next one is higher.",
        _one(lambda _status, current: current.epoch),
    ),
    Metric(
        "tidelog_leader_since_timestamp_seconds", "gauge",
        "When this leadership began, in seconds since 1970.",
        _one(
            lambda _status, current: None
            if current.since_ms is None
            else current.since_ms / 1000
        ),
    ),
    Metric(
        "tidelog_lease_remaining_seconds", "gauge",
        "How long the lease lasts if it is not renewed.", _section_value("lease", "remaining_s"),
    ),
    Metric(
        "tidelog_lease_renewals_total", "counter", "Times that the lease was renewed.",
        _section_value("lease", "renewals"),
    ),
    Metric(
        "tidelog_lease_renewals_failed_total", "counter",
        "Times that the lease could not be renewed.",
        _section_value("lease", "failures"),
    ),
    Metric(
        "tidelog_state_requests_total", "counter", "Requests of capture to the state store.",
        _state("requests"), _BY_OPERATION,
    ),
    Metric(
        "tidelog_state_request_seconds_total", "counter",
        "How long requests to the state store took.",
        _state("seconds"), _BY_OPERATION,
    ),
    Metric(
        "tidelog_state_requests_failed_total", "counter",
        "Requests to the state store that it could not answer.", _state("failures"), _BY_OPERATION,
    ),
    Metric(
        "tidelog_source_up", "gauge", "1 while the source answers, else 0.",
        _one(lambda _status, current: 0 if current.source.error is not None else 1),
    ),
    Metric(
        "tidelog_capture_lag_seconds", "gauge",
        "How long ago the source's log first ended behind what is captured.",
        _one(lambda _status, current: current.source.lag_s),
    ),
    Metric(
        "tidelog_capture_lag_bytes", "gauge", "Bytes of the source's log that are not captured.",
        _one(lambda _status, current: current.source.lag_bytes),
    ),
    Metric(
        "tidelog_source_log_retained_bytes", "gauge",
        "What the source keeps of its log for capture (PostgreSQL: by its slot).",
        _one(lambda _status, current: current.source.retained_bytes),
    ),
    Metric(
        "tidelog_source_log_spare_bytes", "gauge",
        "What may be written until the source removes what capture needs; none without a limit.",
        _one(lambda _status, current: current.source.spare_bytes),
    ),
    Metric(
        "tidelog_source_log_lost_in_seconds", "gauge",
        "When the source removes what capture needs, as the last minutes went; none while that "
        "does not come nearer.",
        _one(lambda _status, current: current.source.lost_in_s),
    ),
    Metric(
        "tidelog_gap_timestamp_seconds", "gauge",
        "When capture last resumed after a gap, in seconds since 1970; none if "
        "it never did.", _section_value("gap", "at_ms", 0.001),
    ),
    Metric("tidelog_captured_records_total", "counter", "Records appended.", _capture("records")),
    Metric(
        "tidelog_captured_bytes_total", "counter", "Bytes of the payloads of records appended.",
        _capture("bytes"),
    ),
    Metric(
        "tidelog_captured_commit_timestamp_seconds", "gauge",
        "When the newest captured transaction was committed, by the source's clock, in seconds "
        "since 1970.", _one(_commit_s),
    ),
    Metric("tidelog_segments_total", "counter", "Segments written.", _capture("segments")),
    Metric(
        "tidelog_segment_append_seconds_total", "counter",
        "How long appending segments took, until they were durable.", _capture("append_s"),
    ),
    Metric(
        "tidelog_event_log_segments", "gauge", "Segments that the event log has.",
        _section_value("log", "segments"),
    ),
    Metric(
        "tidelog_event_log_payload_bytes", "gauge",
        "Bytes of the payloads in the event log; on disk they are compressed.",
        _section_value("log", "payload_bytes"),
    ),
    Metric(
        "tidelog_buffer_bytes", "gauge", "Records that wait for the writer.",
        _capture("buffer_bytes"),
    ),
    Metric(
        "tidelog_buffer_waited_seconds_total", "counter",
        "How long reading waited because the buffer was full.", _capture("buffer_waited_s"),
    ),
    Metric("tidelog_windows_open", "gauge", "Windows of chunks.", _capture("open_windows")),
    Metric(
        "tidelog_windows_retained_bytes", "gauge", "Bytes in memory for windows.",
        _capture("retained_bytes"),
    ),
    Metric(
        "tidelog_windows_unseen_transactions", "gauge",
        "Captured transactions in memory that a chunk's snapshot may not show.",
        _capture("unseen_transactions"),
    ),
    Metric(
        "tidelog_log_paused", "gauge", "1 while the log waits for a blocking dump.",
        _one(lambda status, _found: int(bool((status.get("capture") or {}).get("held")))),
    ),
    Metric(
        "tidelog_dumps_unfinished", "gauge", "Dumps that are queued, running or paused.",
        _one(lambda _status, current: len(current.dumps)),
    ),
    Metric(
        "tidelog_dumps_paused", "gauge", "Unfinished dumps that are paused.",
        _one(lambda _status, current: sum(each.status == "paused" for each in current.dumps)),
    ),
    Metric(
        "tidelog_dump_tables_unfinished", "gauge",
        "Tables that unfinished dumps are still to read.",
        _one(
            lambda _status, current: sum(
                each.tables - each.tables_done for each in current.dumps
            )
        ),
    ),
    Metric(
        "tidelog_dump_left_seconds", "gauge",
        "How long the longest dump still takes, at the rate so far.", _one(_left_s),
    ),
    Metric(
        "tidelog_dump_readers_busy", "gauge", "Readers that read a chunk now.",
        _one(lambda status, _found: status.get("readers_busy")),
    ),
    Metric("tidelog_dump_chunks_total", "counter", "Chunks read.", _counter("chunks")),
    Metric("tidelog_dump_rows_total", "counter", "Rows read by dumps.", _counter("rows")),
    Metric(
        "tidelog_dump_rows_superseded_total", "counter",
        "Rows read by dumps and left out, because the log had newer ones.", _counter("superseded"),
    ),
    Metric(
        "tidelog_dump_chunks_failed_total", "counter", "Chunks that failed.", _counter("failed"),
    ),
    Metric(
        "tidelog_dump_chunks_voided_total", "counter", "Chunks that had to be read again.",
        _voided_chunks, ("reason",),
    ),
    Metric(
        "tidelog_throttle_readers_ratio", "gauge", "The share of the readers that may read.",
        _decision("parallelism_share"),
    ),
    Metric(
        "tidelog_throttle_pause_seconds", "gauge", "The pause between chunks.",
        _decision("pause_ms", 0.001),
    ),
    Metric(
        "tidelog_throttle_pace_ratio", "gauge",
        "Which share of the time SELECTs of the one reader that is left may work.",
        _decision("pace"),
    ),
    Metric(
        "tidelog_throttle_limited", "gauge", "1 for the limit that slows dumps down now, else 0.",
        _limits, ("limit",),
    ),
    Metric(
        "tidelog_tables_refused", "gauge", "Tables that can't be captured as they are.",
        _one(lambda _status, current: current.tables_refused),
    ),
    Metric(
        "tidelog_tables_failed", "gauge", "Captured tables whose last dump failed.",
        _one(lambda status, _found: status.get("tables_failed")),
    ),
    Metric(
        "tidelog_engine_behind_records", "gauge", "Records that an engine has not processed yet.",
        _engine_values("behind_records"), ("engine",),
    ),
    Metric(
        "tidelog_engine_lag_seconds", "gauge", "The age of the oldest of these records.",
        _engine_values("lag_s"), ("engine",),
    ),
    Metric(
        "tidelog_output_up", "gauge", "1 while the output follows, 0 once it has stopped.",
        lambda _status, current: [
            ((each.pipeline, each.output), int(each.error is None)) for each in current.outputs
        ], _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_lag_seconds", "gauge", "The age of the oldest of these records.",
        _output_values("lag_s"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_behind_records", "gauge", "Records that are not delivered yet.",
        _output_values("behind_records"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_noted_timestamp_seconds", "gauge",
        "When its pipeline last reported its progress, in seconds since 1970.",
        lambda _status, current: [
            ((each.pipeline, each.output), each.noted_ms / 1000) for each in current.outputs
        ], _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_batches_total", "counter", "Batches delivered to the output.",
        _output_values("batches"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_batch_seconds_total", "counter", "How long batches of the output took.",
        _output_values("all_s"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_last_batch_seconds", "gauge", "How long its last batch took.",
        _output_values("batch_s"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_committed_timestamp_seconds", "gauge",
        "When its last batch was done, in seconds since 1970.",
        _output_times("committed_ms"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_records_total", "counter", "Records of the log in the output's batches.",
        _output_values("all_records"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_dead_letters_total", "counter",
        "Records that it did not take, and that lie in its dead letters.",
        _output_values("rejected"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_dead_letter_timestamp_seconds", "gauge",
        "When the last of its dead letters came, in seconds since 1970; none if none did.",
        _output_times("rejected_ms"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_refused_tables", "gauge",
        "Tables that it leaves out for their names, or whose rows it lacks since then.",
        _refused_tables, _BY_OUTPUT,
    ),
    Metric(
        "tidelog_problems", "gauge", "Problems that `tidelog status` shows, by kind.",
        _problems, ("kind", "severity"),
    ),
)  # fmt: skip
"""All metrics but `LEADING`."""


# The values of a process's metrics.

logger = logging.getLogger(__name__)

STATUS_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 5.0
"""The greatest age of what was read from the event log, which may be on an object store."""

Known = tuple[tuple[str, ...], float]
"""The labels' values, and the metric's value."""


class MetricValues:
    """The values of the metrics in one process. Thread-safe.

    Args:
        status: returns the status document if this process leads capture, else None.
        log_path: the event log, beside which pipelines store their progress.
    """

    def __init__(self, status: Callable[[], dict[str, Any] | None], log_path: str) -> None:
        self._status = status
        self._log_path = log_path
        self._lock = threading.Lock()
        # separate: an object store may be slow, and status is not
        self._log_lock = threading.Lock()
        self._log_values: dict[str, Any] = {"outputs": []}
        self._log_due = 0.0
        self._log: EventLog | None = None
        self._times: dict[tuple[int, int], tuple[int, int]] = {}
        self._status_due = 0.0
        self._cached_status: dict[str, Any] | None = None

    def status(self) -> dict[str, Any] | None:
        """Return the status, at most a second old: it takes a moment, and anybody may ask for
        health.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._status_due:
                self._cached_status, self._status_due = self._status(), now + STATUS_EVERY_S
            return self._cached_status

    def forget(self) -> None:
        """Forget the status, because it has changed."""
        self._status_due = 0.0  # without the lock: a leader that ends waits for nobody

    def document(self) -> dict[str, Any] | None:
        """Return the status with the event log's part; None if this process does not lead."""
        status = self.status()
        if status is None:
            return None
        with self._log_lock:
            now = time.monotonic()
            if now >= self._log_due:
                self._log_due = now + LOG_EVERY_S
                self._read_log()
            return {**status, "leader": status.get("holder"), **self._log_values}

    def samples(self) -> Iterator[tuple[Metric, list[Known]]]:
        """Yield each metric with its known samples; only `LEADING` if this process is no leader."""
        document = self.document()
        yield LEADING, [((), float(document is not None))]
        if document is None:
            return
        current = overview(document, unix_ms())
        for metric in METRICS:
            samples = metric.samples(document, current)
            yield metric, [(labels, float(x)) for labels, x in samples if x is not None]

    def _read_log(self) -> None:
        """Read the event log; on errors keep the old values: an alert must not end by them."""
        try:
            self._log = self._log or EventLog.open(self._log_path)
            segments = self._log.chain().segments
            self._log_values = {
                "log": {
                    "segments": len(segments),
                    "payload_bytes": sum(meta.payload_bytes for meta in segments),
                },
                **consumers_of(self._log, self._times),
            }
        except (TidelogError, OSError) as error:
            self._log = None
            logger.warning("metrics of event log and outputs are not updated: %s", error)
