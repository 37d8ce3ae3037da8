"""What people paused, and what capture holds by itself: what that leads to, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.app.overview.document import OutputHealth, Problem, Severity, SourceHealth
from tidelog.app.overview.finished_dumps import dump_goes_on
from tidelog.capture.limits.dump_gate import DumpBlocks
from tidelog.capture.limits.log_retention import NEARLY_FULL, RetainedLog
from tidelog.model.units import brief_span, format_bytes

WORTH_A_WARNING = 0.4
"""A pause is a warning above this share of the log that the server may keep, and critical above
`NEARLY_FULL`.
"""
LATE_S = 300.0
_PAGE = "docs/failure-modes.md#something-is-paused-and-was-forgotten"
_GUARD_PAGE = "docs/failure-modes.md#the-sources-log-is-in-danger"


def paused_problems(
    status: Mapping[str, Any],
    source: SourceHealth,
    kept: RetainedLog,
    outputs: Sequence[OutputHealth],
    now_ms: int,
) -> Iterator[Problem]:
    """Who paused what, and since when; what waits because of it."""
    yield from _log(status, source, kept, now_ms)
    yield from _pipelines(status, outputs, now_ms)
    yield from _held_dumps(status, now_ms)


def _log(
    status: Mapping[str, Any], source: SourceHealth, kept: RetainedLog, now_ms: int
) -> Iterator[Problem]:
    """It grows worse as the server keeps more and more of its log."""
    pause = status.get("log_paused")
    if pause is None:
        return
    severity = Severity.INFO
    if kept.share >= NEARLY_FULL or (kept.spare_bytes is not None and kept.spare_bytes <= 0):
        severity = Severity.CRITICAL
    elif kept.share >= WORTH_A_WARNING or (source.lag_s or 0.0) >= LATE_S:
        severity = Severity.WARNING
    parts = [f"The log is {_said(pause, now_ms)}"]
    if source.lag_s:
        parts.append(f"capture is {brief_span(source.lag_s * 1000)} behind")
    if source.retained_bytes is not None:
        keeps = f"the server keeps {format_bytes(source.retained_bytes)} of log for it"
        if source.spare_bytes is not None:
            keeps += f", with room for {format_bytes(max(0, source.spare_bytes))} more"
        parts.append(keeps)
    elif kept.kept_s is not None:
        parts.append(f"the server removes its log after {brief_span(kept.kept_s * 1000)}")
    yield Problem(
        "log-reading-paused",
        severity,
        "",
        "; ".join(parts) + ".",
        "tidelog resume CONFIG --log",
        _PAGE,
    )


def _pipelines(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    for name, pause in sorted((status.get("paused_pipelines") or {}).items()):
        lags = [each.lag_s or 0.0 for each in outputs if each.pipeline == name]
        behind = max((each.behind_records for each in outputs if each.pipeline == name), default=0)
        severity = Severity.WARNING if max(lags, default=0.0) >= LATE_S else Severity.INFO
        text = f"Pipeline {name} is {_said(pause, now_ms)}"
        if behind:
            text += f"; its outputs are up to {brief_span(max(lags) * 1000)} behind ({behind:,} "
            text += "records, which the event log keeps)"
        yield Problem(
            "pipeline-paused",
            severity,
            name,
            f"{text}.",
            "tidelog resume CONFIG --pipeline",
            _PAGE,
        )


def _held_dumps(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    if not any(dump_goes_on(each) for each in status.get("dumps") or ()):
        return
    for hold in status.get("dumps_held") or ():
        span = brief_span(max(0, now_ms - hold["since_ms"]))
        of_log = hold["why"] == DumpBlocks.LOG_PAUSED
        yield Problem(
            "dumps-held",
            Severity.INFO,
            hold["why"],
            f"Capture has held all dumps for {span}: {hold['reason']}",
            "They go on when the log does."
            if of_log
            else "They go on by themselves when that is over (source.when_log_in_danger).",
            _PAGE if of_log else _GUARD_PAGE,
        )


def _said(pause: Mapping[str, Any], now_ms: int) -> str:
    by = f" by {pause['by']}" if pause.get("by") else ""
    return f"paused{by} for {brief_span(max(0, now_ms - pause['since_ms']))}"
