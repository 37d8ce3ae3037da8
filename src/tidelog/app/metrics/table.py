"""The metrics: name, unit, meaning and value of each. `docs/reference/metrics.md` is made from it.

Labels are names of pipelines and outputs, which the configuration bounds, and kinds of problems,
which the code does. None is a table: there may be thousands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidelog.app.overview import Overview

Sample = tuple[tuple[str, ...], float | None]
"""The labels' values, and the metric's; None: not known, so it is left out."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as scraped; a counter's ends in ``_total``.
        kind: a gauge may fall; a counter falls only when another process leads.
        about: one sentence.
        labels: their names.
        samples: of a status document and the overview made from it.
    """

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    samples: Callable[[Mapping[str, Any], Overview], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Mapping[str, Any], Overview], float | None]) -> Any:
    """The samples of a metric without labels."""
    return lambda status, found: [((), value(status, found))]


def _capture(name: str) -> Any:
    return _one(lambda status, _found: (status.get("capture") or {}).get(name))


def _counter(name: str) -> Any:
    return _one(lambda status, _found: (status.get("dump_counters") or {}).get(name))


def _decision(name: str, factor: float = 1.0) -> Any:
    def value(status: Mapping[str, Any], _found: Overview) -> float | None:
        decision = (status.get("throttle") or {}).get("decision") or {}
        return None if decision.get(name) is None else factor * decision[name]

    return _one(value)


def _of_outputs(name: str) -> Any:
    def samples(_status: Mapping[str, Any], found: Overview) -> Iterator[Sample]:
        for output in found.outputs:
            yield (output.pipeline, output.output), getattr(output, name)

    return samples


def _problems(_status: Mapping[str, Any], found: Overview) -> Iterator[Sample]:
    counts = Counter((each.kind, each.severity.value) for each in found.problems)
    yield from sorted(counts.items())


def _voided(status: Mapping[str, Any], _found: Overview) -> Iterator[Sample]:
    for reason, count in sorted(((status.get("dump_counters") or {}).get("voided") or {}).items()):
        yield (reason,), count


_BY_OUTPUT: Final = ("pipeline", "output")

METRICS: Final = (
    Metric(
        "tidelog_leader_epoch", "gauge", "The number of this leadership; each next one is higher.",
        _one(lambda _status, found: found.epoch),
    ),
    Metric(
        "tidelog_source_up", "gauge", "1 while the source answers, else 0.",
        _one(lambda _status, found: 0 if found.source.error is not None else 1),
    ),
    Metric(
        "tidelog_capture_lag_seconds", "gauge",
        "How long ago the source's log first ended behind what is captured.",
        _one(lambda _status, found: found.source.lag_s),
    ),
    Metric(
        "tidelog_capture_lag_bytes", "gauge", "Bytes of the source's log that are not captured.",
        _one(lambda _status, found: found.source.lag_bytes),
    ),
    Metric(
        "tidelog_source_log_retained_bytes", "gauge",
        "What the source keeps of its log for capture (PostgreSQL: by its slot).",
        _one(lambda _status, found: found.source.retained_bytes),
    ),
    Metric(
        "tidelog_source_log_spare_bytes", "gauge",
        "What may be written until the source removes what capture needs; none without a limit.",
        _one(lambda _status, found: found.source.spare_bytes),
    ),
    Metric(
        "tidelog_source_log_lost_in_seconds", "gauge",
        "When that is, as the last minutes went; none while it does not come nearer.",
        _one(lambda _status, found: found.source.lost_in_s),
    ),
    Metric("tidelog_captured_records_total", "counter", "Records appended.", _capture("records")),
    Metric("tidelog_segments_total", "counter", "Segments written.", _capture("segments")),
    Metric(
        "tidelog_buffer_bytes", "gauge", "Records that wait for the writer.",
        _capture("buffer_bytes"),
    ),
    Metric(
        "tidelog_buffer_waited_seconds_total", "counter",
        "How long reading waited because that was full.", _capture("buffer_waited_s"),
    ),
    Metric("tidelog_windows_open", "gauge", "Windows of chunks.", _capture("open_windows")),
    Metric(
        "tidelog_windows_retained_bytes", "gauge", "What is held in memory for them.",
        _capture("retained_bytes"),
    ),
    Metric(
        "tidelog_log_paused", "gauge", "1 while the log waits for a blocking dump.",
        _one(lambda status, _found: int(bool((status.get("capture") or {}).get("held")))),
    ),
    Metric(
        "tidelog_dumps_unfinished", "gauge", "Dumps that are queued, running or paused.",
        _one(lambda _status, found: len(found.dumps)),
    ),
    Metric("tidelog_dump_chunks_total", "counter", "Chunks read.", _counter("chunks")),
    Metric("tidelog_dump_rows_total", "counter", "Rows read by dumps.", _counter("rows")),
    Metric(
        "tidelog_dump_rows_superseded_total", "counter",
        "Rows of these left out, because the log had newer ones.", _counter("superseded"),
    ),
    Metric(
        "tidelog_dump_chunks_failed_total", "counter", "Chunks that failed.", _counter("failed"),
    ),
    Metric(
        "tidelog_dump_chunks_voided_total", "counter", "Chunks that had to be read again.",
        _voided, ("reason",),
    ),
    Metric(
        "tidelog_throttle_readers_ratio", "gauge", "Which share of the readers may read.",
        _decision("parallelism_share"),
    ),
    Metric(
        "tidelog_throttle_pause_seconds", "gauge", "The pause between chunks.",
        _decision("pause_ms", 0.001),
    ),
    Metric(
        "tidelog_tables_refused", "gauge", "Tables that can't be captured as they are.",
        _one(lambda _status, found: found.tables_refused),
    ),
    Metric(
        "tidelog_tables_failed", "gauge", "Captured tables whose last dump failed.",
        _one(lambda status, _found: status.get("tables_failed")),
    ),
    Metric(
        "tidelog_output_up", "gauge", "1 while the output follows, 0 once it has stopped.",
        lambda _status, found: [
            ((each.pipeline, each.output), int(each.error is None)) for each in found.outputs
        ], _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_lag_seconds", "gauge", "The age of the first record that it lacks.",
        _of_outputs("lag_s"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_behind_records", "gauge", "Records that it lacks.",
        _of_outputs("behind_records"), _BY_OUTPUT,
    ),
    Metric(
        "tidelog_output_noted_timestamp_seconds", "gauge",
        "When its pipeline last said how far it is, in seconds since 1970.",
        lambda _status, found: [
            ((each.pipeline, each.output), each.noted_ms / 1000) for each in found.outputs
        ], _BY_OUTPUT,
    ),
    Metric(
        "tidelog_problems", "gauge", "Problems that `tidelog status` tells, by kind.",
        _problems, ("kind", "severity"),
    ),
)  # fmt: skip
"""All but ``tidelog_leading``, which also a process that stands by has."""
