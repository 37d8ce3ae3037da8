"""Answers what an operator asks first, in a line each.

The lags of source and outputs are elsewhere in the overview.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.app.overview.document import (
    PipelineOverview,
    Problem,
    RunningDump,
    Severity,
    SourceHealth,
    SummaryLine,
    Table,
    TableCaptureState,
    VerifyResult,
)
from tidelog.capture.dumps.state import NO_KEY
from tidelog.model.units import brief_span, counted, format_bytes

NAMED = 2
"""How many tables, copies and pauses an answer names."""
NAME = 48
"""The longest table name, in characters; tables of one kind differ at their end."""
REASON = 90
"""The longest reason, in characters; the problem has all of it."""
NEVER = "never"
_KINDS = {
    "log": ("log-nearly-lost", "log-room-small", "log-fills-disk"),
    "tables": ("table-refused", "only-inserts", "dump-failed", "rows-unread"),
    "dump": ("chunks-unanswered", "dump-waits", "dumps-held"),
    "paused": ("log-reading-paused", "pipeline-paused", "dump-paused", "dumps-held"),
    "verify": ("copy-differs", "copy-repaired"),
}
"""The kinds of problems that an answer is about: the worst one decides its severity."""
_LABELS = {
    TableCaptureState.REFUSED: "not captured",
    TableCaptureState.INSERTS_ONLY: "captured in part",
    TableCaptureState.DUMP_FAILED: "its dump failed",
}
"""The states with a problem, the worst first."""
_DAY_S, _MINUTE_MS = 86_400.0, 60_000


def answers_of(
    status: Mapping[str, Any],
    source: SourceHealth,
    pipelines: Sequence[PipelineOverview],
    tables: Sequence[Table],
    dumps: Sequence[RunningDump],
    verified: VerifyResult | None,
    problems: Sequence[Problem],
    now_ms: int,
) -> Iterator[SummaryLine]:
    """Yield the answers in the order of a first screen; without data there is no answer."""
    answers = [
        _log(status, source, now_ms),
        _tables(tables),
        _dump(status, dumps, now_ms),
        _paused(source, pipelines, dumps),
        _verify(verified),
    ]
    for name, (brief, text, at_ms) in zip(_KINDS, answers, strict=True):
        if text:
            about = [each.severity for each in problems if each.kind in _KINDS[name]]
            well = Severity.INFO if brief == NEVER else Severity.OK
            yield SummaryLine(name, about[0] if about else well, brief, text, at_ms)


_Answer = tuple[str, str, int | None]
_NOTHING: _Answer = ("", "", None)


def _log(status: Mapping[str, Any], source: SourceHealth, now_ms: int) -> _Answer:
    """Return when what capture needs is lost: at the current rate, or if capture stopped now."""
    kept_s = (status.get("source") or {}).get("kept_s")
    lost_ms = None if source.lost_in_s is None else now_ms + source.lost_in_s * 1000
    at_ms = None if lost_ms is None else round(lost_ms / _MINUTE_MS) * _MINUTE_MS
    lost = "" if source.lost_in_s is None else _span(source.lost_in_s)
    if source.retained_bytes is None:
        if kept_s is None:
            return _NOTHING
        if at_ms is None:
            return "safe", f"the server removes its log after {_span(kept_s)}", None
        lasts = f"the server removes its log after {_span(kept_s)}: without capture"
        return lost, f"{lasts}, what it needs next is lost in {lost}, at", at_ms
    keeps = "kept" if source.silent_s else "keeps"  # when capture last reported
    keeps = f"the slot {keeps} {format_bytes(source.retained_bytes)}"
    if source.spare_bytes is None:
        return "no limit", f"{keeps}, and the server sets no limit: it is never lost", None
    if source.spare_bytes <= 0:
        return "now", f"{keeps}, all that the server may keep: it is lost at any moment", None
    keeps += f", with {format_bytes(source.spare_bytes)} to spare"
    if at_ms is not None:
        why = "while capture is down" if source.silent_s else "at this rate"
        return lost, f"{keeps}; {why} it is lost in {lost}, at", at_ms
    if source.lasts_s is not None:
        return "safe", f"{keeps}: enough for about {_span(source.lasts_s)} without capture", None
    return "safe", keeps, None


def _tables(tables: Sequence[Table]) -> _Answer:
    if not tables:
        return _NOTHING
    keyless = [each for each in tables if _lacks_key(each)]
    problematic = sorted(
        (each for each in tables if each.state in _LABELS and not _lacks_key(each)),
        key=lambda each: list(_LABELS).index(each.state),
    )
    excluding = [each for each in tables if each.excluded_columns]
    if not problematic:
        text = f"{counted(len(tables), 'table')}, all captured whole"
        if excluding:
            named = [
                f"{_brief_name(each.table)} ({_list(each.excluded_columns, each.excluded_columns)})"
                for each in excluding[:NAMED]
            ]
            text = f"{counted(len(tables), 'table')}; excluded columns: {_list(named, excluding)}"
        if keyless:
            named = [_brief_name(each.table) for each in keyless[:NAMED]]
            text += f"; not dumped, as it has no primary key: {_list(named, keyless)}"
        return f"{len(tables):,}", text, None
    named = [
        f"{_brief_name(each.table)} ({_LABELS[each.state]}: {_cut(each.reason)})"
        for each in problematic[:NAMED]
    ]
    text = f"{len(problematic):,} of {len(tables):,} with a problem: {_list(named, problematic)}"
    return counted(len(problematic), "problem"), text, None


def _lacks_key(table: Table) -> bool:
    """Return whether the table is captured, and not dumped because it has no primary key."""
    return table.state == TableCaptureState.DUMP_FAILED and table.reason == NO_KEY


def _dump(status: Mapping[str, Any], dumps: Sequence[RunningDump], now_ms: int) -> _Answer:
    """Return what the first running dump still needs."""
    if not dumps:
        return ("none", "none runs", None) if status.get("capture") is not None else _NOTHING
    dump = next((each for each in dumps if each.status == "running"), dumps[0])
    more = f" (and {counted(len(dumps) - 1, 'more dump')})" if len(dumps) > 1 else ""
    to_go = f"{dump.dump_id}{more}: {dump.tables - dump.tables_done:,} of {dump.tables:,} tables"
    to_go += " to go"
    if dump.status != "running":
        return dump.status, f"{to_go}; it is {dump.status}", None
    if dump.left_s is None:
        return "runs", f"{to_go}; how long is not known yet", None
    at_ms = round((now_ms + dump.left_s * 1000) / _MINUTE_MS) * _MINUTE_MS
    left = _span(dump.left_s)
    return f"{left} left", f"{to_go}, about {left}, until", at_ms


def _paused(
    source: SourceHealth, pipelines: Sequence[PipelineOverview], dumps: Sequence[RunningDump]
) -> _Answer:
    pauses: list[tuple[str, str, int | None]] = []
    if source.paused_ms:
        pauses.append(("the log", source.paused_by, source.paused_ms))
    pauses += [
        (f"pipeline {each.pipeline}", each.paused_by, each.paused_ms)
        for each in pipelines
        if each.paused_ms
    ]
    pauses += [
        (f"dump {each.dump_id}", each.paused_by, each.paused_ms)
        for each in dumps
        if each.status == "paused"
    ]
    if not pauses:
        return _NOTHING
    named = [f"{what} by {by}" if by else what for what, by, _ in pauses]
    text, at_ms = _list(named[:NAMED], named), pauses[0][2] if len(pauses) == 1 else None
    brief = pauses[0][0] if len(pauses) == 1 else f"{len(pauses):,} things"
    return brief, f"{text} since" if at_ms is not None else text, at_ms


def _verify(result: VerifyResult | None) -> _Answer:
    if result is None:
        return NEVER, "nothing was compared yet (tidelog verify CONFIG)", None
    copies = "1 copy" if result.compared == 1 else f"{result.compared:,} copies"
    if not result.differ and result.repaired:
        text = f"{_list(result.repaired[:NAMED], result.repaired)} repaired, and not compared since"
        return "repaired", text, result.at_ms
    if not result.differ:
        return "equal", f"{copies}, equal to the source, compared at", result.at_ms
    named = _list(result.differ[:NAMED], result.differ)
    text = f"{len(result.differ):,} differed: {named}; {copies} compared at"
    return f"{len(result.differ):,} differed", text, result.at_ms


def _list(named: Sequence[str], of: Sequence[object]) -> str:
    more = f" and {len(of) - len(named):,} more" if len(of) > len(named) else ""
    return ", ".join(named) + more


def _brief_name(table: str) -> str:
    end = NAME // 2
    return table if len(table) <= NAME else f"{table[: NAME - end - 1]}…{table[-end:]}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON else f"{line[: REASON - 1]}…"


def _span(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:,.0f} days"
    return brief_span(max(1000, round(seconds * 1000)))
