"""Finds problems of processes in the status document: which starts, leads, stands by, or ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.dump_problems import table_has_ended
from tidelog.app.overview.problems import (
    capture_starts,
    is_dump_unfinished,
    pipeline_begins,
    problem,
    span_of,
    start_command,
)
from tidelog.capture.dumps.state import DumpStatus
from tidelog.model.units import brief_span, counted
from tidelog.results import EngineHealth, OutputHealth, Problem, RunningDump, Severity

STALE_S = 60.0
"""Seconds after which a status is stale: a leader writes one a second, on an object store one in
half a minute.
"""
STARTING = "starting"
NEVER = "No capture has begun here; one that was started just now appears within seconds."
ABANDONED_S: Final = 7 * 86_400.0
AFTER_ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "GapError": (
        "tidelog reset CONFIG\nIt shows what is lost and asks; then start again.",
        "gaperror",
    ),
    "LogResetError": (
        "tidelog reset CONFIG\nIt shows what is lost and asks; then start again.",
        "logreseterror",
    ),
    "SourceChangedError": (
        "tidelog check CONFIG\nCorrect source.url if it leads elsewhere; then start again.",
        "sourcechangederror",
    ),
    "PreflightError": (
        "tidelog check CONFIG\nCorrect what it marks ✗; then start again.",
        "preflighterror",
    ),
    "ConfigError": (
        "tidelog check CONFIG\nCorrect what it marks ✗; then start again.",
        "configerror",
    ),
}
"""By the class of the error with which capture ended: what to do, and the entry about it."""


LOST: Final = ("GapError", "LogResetError")
"""The classes of errors after which the source no longer has the log that capture needs."""


def process_problems(
    status: Mapping[str, Any],
    outputs: Sequence[OutputHealth],
    dumps: Sequence[RunningDump],
    age_s: float | None,
    now_ms: int,
) -> Iterator[Problem]:
    """Yield the problems of processes that capture and deliver, or do not."""
    yield from _starting(status, dumps, age_s)
    yield from _leadership(status, age_s, now_ms)
    yield from _ended_pipelines(status, outputs, now_ms)


def _starting(
    status: Mapping[str, Any], dumps: Sequence[RunningDump], age_s: float | None
) -> Iterator[Problem]:
    """Yield what starts now, and how far it is. How long Spark takes until it delivers is not known
    before it does: no time is given for that.
    """
    names = {name.partition("/")[0] for name in status.get("configured_outputs") or ()}
    led = {row["pipeline"] for row in status.get("pipelines") or () if row["leader"]}
    starts = [  # not a process that will stand by
        *([{"starting": "capture"}] if capture_starts(status, age_s) else ()),
        *(status.get("starting_pipeline") or () if not names & led else ()),
    ]
    begun = {
        f"{each['pipeline']}/{each['output']}"
        for each in status.get("outputs") or ()
        if each.get("committed_ms") is not None or not each["behind_records"]
    }
    waits = [
        name
        for name in status.get("configured_outputs") or ()
        if name not in begun and pipeline_begins(status, name)
    ]
    if not starts and not waits:
        return
    parts = list(dict.fromkeys(str(each["starting"]) for each in starts)) or ["the first batch"]
    tables = [
        table
        for dump in status.get("dumps") or ()
        if is_dump_unfinished(dump)
        for table in dump.get("tables") or ()
    ]
    if tables:
        done = sum(map(table_has_ended, tables))
        parts.append(f"{done:,} of {counted(len(tables), 'table')} dumped{_time_left(dumps)}")
    if waits:
        some = len(waits) < len(status.get("configured_outputs") or ())
        to = f" to {', '.join(waits)}" if some else ""
        parts.append(f"nothing is delivered{to} yet")
    yield problem(
        STARTING,
        Severity.INFO,
        "",
        f"Starting: {', '.join(parts)}.",
        "",
        "processes-hosts-and-disks",
    )


def _entry_of(trouble: str) -> str:
    return "storageerror" if "Check free space" in trouble else "connectionlosterror"


def _time_left(dumps: Sequence[RunningDump]) -> str:
    """Return the time that the dumps still take at the rates so far; empty: not known."""
    times = [dump.left_s for dump in dumps if dump.status == DumpStatus.RUNNING]
    known = [each for each in times if each]
    if not known or len(known) < len(dumps):
        return ""
    return f" (about {span_of(max(known))} left)"


def _end_of_capture(status: Mapping[str, Any], now_ms: int) -> str:
    """Return when and why the last capture ended; empty: it did not end with an error. Where one
    process does both, the pipeline's error ends capture, too.
    """
    ended = status.get("ended") or {}
    end = ended.get("capture")
    for of_pipeline in (ended.get("pipelines") or {}).values():
        if end is None and of_pipeline["holder"] == status.get("holder"):
            end = of_pipeline
    return "" if end is None else _end_text(end, now_ms)


def _end_text(end: Mapping[str, Any], now_ms: int) -> str:
    return f"ended {brief_span(max(0, now_ms - end['at_ms']))} ago: {end['reason']}"


def _ended_pipelines(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    """Yield the errors with which pipelines ended that nobody runs now."""
    stopped = {each.pipeline for each in outputs if each.error is not None}
    for name, end in sorted(((status.get("ended") or {}).get("pipelines") or {}).items()):
        text = _end_text(end, now_ms)
        of_capture = status.get("leader") is None and text == _end_of_capture(status, now_ms)
        if of_capture or name in stopped or status.get("starting_pipeline"):
            continue  # already reported
        yield problem(
            "pipeline-ended",
            Severity.CRITICAL,
            name,
            f"Nobody delivers; the last pipeline {name} {text}",
            "tidelog pipeline CONFIG",
            "processes-hosts-and-disks",
        )


def _leadership(status: Mapping[str, Any], age_s: float | None, now_ms: int) -> Iterator[Problem]:
    leader = status["leader"] if "leader" in status else status.get("holder")
    # Each try has the lease while it connects.
    reported = status.get("failing") or ()
    failing = [each for each in reported if leader in (None, each["holder"])]
    end = _end_of_capture(status, now_ms)
    last = ((status.get("ended") or {}).get("capture") or {}).get("error")
    remedy, entry = AFTER_ERRORS.get(
        str(last), (start_command(status), "processes-hosts-and-disks")
    )
    if capture_starts(status, age_s) and not failing:
        pass  # `_starting` reports it: a second process must not be started
    elif age_s is None:
        yield problem(
            "never-captured",
            Severity.CRITICAL,
            "",
            f"No capture has begun here; the last try {end}" if end else NEVER,
            remedy,
            entry,
        )
    elif leader is None and not failing:
        yield problem(
            "no-leader",
            Severity.CRITICAL,
            "",
            f"No capture leads; the last one {end or f'was seen {span_of(age_s)} ago.'}",
            remedy,
            entry,
        )
    elif age_s > STALE_S and not failing:
        yield problem(
            "leader-silent",
            Severity.CRITICAL,
            "",
            f"{leader} leads, but has reported nothing for {span_of(age_s)}.",
            "Check that process and its log; a standby takes over if its lease expires.",
            "processes-hosts-and-disks",
        )
    for each in failing:
        yield problem(
            "capture-fails",
            Severity.CRITICAL,
            each["holder"],
            f"{each['holder']} can't capture: {each['trouble']}",
            "tidelog check CONFIG\nCapture retries by itself.",
            _entry_of(each["trouble"]),
        )
    for each in (each for each in reported if each not in failing):
        yield problem(
            "standby-fails",
            Severity.WARNING,
            each["holder"],
            f"{each['holder']} stands by, but could not capture: {each['trouble']}",
            "tidelog check CONFIG\nRun that on its host. It retries by itself.",
            _entry_of(each["trouble"]),
        )
    if (status.get("capture") or {}).get("held"):
        yield problem(
            "log-waits-for-dump",
            Severity.INFO,
            "",
            "The log waits for a blocking dump.",
            "It is read on by itself when the dump has ended.",
            "a-blocking-dump-holds-the-log-for-long",
        )


def engine_problems(engines: Sequence[EngineHealth], now_ms: int) -> Iterator[Problem]:
    """Yield the engines that have not run for a week, while the event log is kept for them."""
    for each in engines:
        idle_ms = now_ms - max(each.noted_ms, each.seen_ms or 0)
        if each.behind_records and idle_ms >= ABANDONED_S * 1000:
            yield problem(
                "engine-abandoned",
                Severity.WARNING,
                each.name,
                f"No engine {each.name} has run for {brief_span(idle_ms)}, and "
                f"{each.behind_records:,} records of the event log are kept for it.",
                f"Start it again, or give its records up:\n"
                f"tidelog forget-engine CONFIG {each.name}",
                "an-engine-has-not-run-for-long",
            )
