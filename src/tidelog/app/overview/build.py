"""Builds the overview from a status document of any version; missing fields become None.

It answers what an operator asks first, in a line each, and has the timeline of dump chunks, the
tables, the progress of dumps, and the health of source, pipelines and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import ceil
from typing import Any

from tidelog.app.overview.dump_problems import (
    as_blocked,
    block_reasons,
    blocked_problems,
    blocks_of,
    dump_problems,
    table_has_ended,
)
from tidelog.app.overview.output_problems import (
    copy_problems,
    output_problems,
    pipeline_pauses,
    verify_result,
)
from tidelog.app.overview.problems import is_dump_unfinished
from tidelog.app.overview.process_problems import (
    LOST,
    STALE_S,
    STARTING,
    engine_problems,
    process_problems,
)
from tidelog.app.overview.reader import engine_health
from tidelog.app.overview.source_problems import (
    channel_problems,
    check_problems,
    source_problems,
    table_problems,
)
from tidelog.capture.log_guard import RetainedLog
from tidelog.model.units import brief_span, counted, format_bytes
from tidelog.results import (
    VERSION,
    ChunkSpan,
    OperationDrop,
    OutputHealth,
    Overview,
    PipelineOverview,
    Problem,
    RunningDump,
    Severity,
    SourceHealth,
    SummaryLine,
    Table,
    TableCaptureState,
    TableInProgress,
    VerifyResult,
)

# Answers to what an operator asks first. The lags of source and outputs are elsewhere.

ITEMS_NAMED = 2
"""How many tables, copies and pauses an answer names."""
NAME_CHARACTERS = 48
"""The longest table name, in characters; tables of one kind differ at their end."""
REASON_CHARACTERS = 90
"""The longest reason, in characters; the problem has all of it."""
NEVER = "never"
_KINDS = {
    "log": ("log-nearly-lost", "log-room-small", "log-fills-disk"),
    "tables": ("table-refused", "inserts-only", "dump-failed", "rows-unread"),
    "dump": ("chunks-unanswered", "dump-waits", "dumps-held"),
    "paused": ("log-reading-paused", "pipeline-paused", "dump-paused", "dumps-held"),
    "verify": ("copy-differs", "copy-not-compared", "copy-repaired"),
}
"""The kinds of problems that an answer is about: the worst one decides its severity."""
_LABELS = {
    TableCaptureState.REFUSED: "not captured",
    TableCaptureState.INSERTS_ONLY: "captured in part",
    TableCaptureState.DUMP_FAILED: "its dump failed",
}
"""The states with a problem, the worst first."""
_FIRST_DUMP = (TableCaptureState.DUMPING, TableCaptureState.DUMP_WAITS)
"""The states of tables whose dump has not ended."""
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
        _log_answer(status, source, now_ms),
        _tables_answer(tables),
        _dump_answer(status, dumps, now_ms),
        _paused_answer(source, pipelines, dumps),
        _verify_answer(verified),
    ]
    for name, (brief, text, at_ms) in zip(_KINDS, answers, strict=True):
        if text:
            about = [each.severity for each in problems if each.kind in _KINDS[name]]
            well = Severity.INFO if brief == NEVER else Severity.OK
            yield SummaryLine(name, about[0] if about else well, brief, text, at_ms)


_Answer = tuple[str, str, int | None]
_NOTHING: _Answer = ("", "", None)


def _log_answer(status: Mapping[str, Any], source: SourceHealth, now_ms: int) -> _Answer:
    """Return when what capture needs is lost: at the current rate, or if capture stopped now."""
    if _is_lost(status):
        return "lost", "what capture needs next is lost: tidelog reset CONFIG", None
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


def _is_lost(status: Mapping[str, Any]) -> bool:
    """Did capture end because the source no longer has the log that it needs?"""
    ended = (status.get("ended") or {}).get("capture") or {}
    return ended.get("error") in LOST


def _tables_answer(tables: Sequence[Table]) -> _Answer:
    if not tables:
        return _NOTHING
    problematic = sorted(
        (each for each in tables if each.state in _LABELS),
        key=lambda each: list(_LABELS).index(each.state),
    )
    excluding = [each for each in tables if each.excluded_columns]
    if not problematic:
        text = f"{counted(len(tables), 'table')}, all captured whole"
        waiting = sum(each.state in _FIRST_DUMP and each.dumped_ms is None for each in tables)
        if waiting:
            text = f"{counted(len(tables), 'table')}, {waiting:,} of them not dumped yet"
        if excluding:
            named = [
                f"{_brief_name(each.table)} ({_list(each.excluded_columns, each.excluded_columns)})"
                for each in excluding[:ITEMS_NAMED]
            ]
            text = f"{counted(len(tables), 'table')}; excluded columns: {_list(named, excluding)}"
        return f"{len(tables):,}", text, None
    named = [
        f"{_brief_name(each.table)} ({_LABELS[each.state]}: {_cut(each.reason)})"
        for each in problematic[:ITEMS_NAMED]
    ]
    text = f"{len(problematic):,} of {len(tables):,} with a problem: {_list(named, problematic)}"
    return counted(len(problematic), "problem"), text, None


def _dump_answer(status: Mapping[str, Any], dumps: Sequence[RunningDump], now_ms: int) -> _Answer:
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


def _paused_answer(
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
        (f"dump {each.dump_id}{' blocked' if each.held else ''}", each.paused_by, each.paused_ms)
        for each in dumps
        if each.status == "paused"
    ]
    if not pauses:
        return _NOTHING
    named = [f"{what} by {by}" if by else what for what, by, _ in pauses]
    text, at_ms = _list(named[:ITEMS_NAMED], named), pauses[0][2] if len(pauses) == 1 else None
    brief = pauses[0][0] if len(pauses) == 1 else f"{len(pauses):,} things"
    return brief, f"{text} since" if at_ms is not None else text, at_ms


def _verify_answer(result: VerifyResult | None) -> _Answer:
    if result is None:
        return NEVER, "nothing was compared yet (tidelog verify CONFIG)", None
    copies = "1 copy" if result.compared == 1 else f"{result.compared:,} copies"
    if result.left_out:
        copies = f"{len(result.left_out):,} left out; {copies}"
    if not result.differ and result.repaired:
        named = _list(result.repaired[:ITEMS_NAMED], result.repaired)
        return "repaired", f"{named} repaired, and not compared since", result.at_ms
    if not result.differ and result.not_compared:
        missed = f"{len(result.not_compared):,} not compared"
        named = _list(result.not_compared[:ITEMS_NAMED], result.not_compared)
        return (
            missed,
            f"{missed}: {named}; {copies}, equal to the source, compared at",
            result.at_ms,
        )
    if not result.differ:
        return "equal", f"{copies}, equal to the source, compared at", result.at_ms
    named = _list(result.differ[:ITEMS_NAMED], result.differ)
    text = f"{len(result.differ):,} differed: {named}; {copies} compared at"
    return f"{len(result.differ):,} differed", text, result.at_ms


def _list(named: Sequence[str], of: Sequence[object]) -> str:
    more = f" and {len(of) - len(named):,} more" if len(of) > len(named) else ""
    return ", ".join(named) + more


def _brief_name(table: str) -> str:
    end = NAME_CHARACTERS // 2
    return (
        table
        if len(table) <= NAME_CHARACTERS
        else f"{table[: NAME_CHARACTERS - end - 1]}…{table[-end:]}"
    )


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


def _span(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:,.0f} days"
    return brief_span(max(1000, round(seconds * 1000)))


# The timeline of dump chunks: when their windows began, were read and ended.

WINDOW_ENDS = frozenset({"closed", "durable", "voided", "failed"})


def lanes_of(status: Mapping[str, Any]) -> list[ChunkSpan]:
    """Return the open windows and those that ended lately, by the time they began."""
    lanes: dict[str, ChunkSpan] = {}
    updated_ms = int(status.get("updated_ms", 0))
    for event in status.get("events") or ():
        chunk, kind, at_ms = str(event.get("chunk", "")), event.get("event"), event.get("at_ms", 0)
        if kind == "begun" and chunk:
            lanes[chunk] = ChunkSpan(chunk, str(event.get("table", "")), at_ms)
        elif chunk in lanes:
            lane = lanes[chunk]
            lane.rows = event.get("rows", lane.rows)
            lane.superseded = event.get("superseded", lane.superseded)
            if kind == "read":
                lane.read_ms = at_ms
            elif kind in WINDOW_ENDS and lane.ended_ms is None:
                lane.ended_ms, lane.end = at_ms, str(kind)
    for window in status.get("windows") or ():
        chunk = str(window.get("chunk", ""))
        if chunk and chunk not in lanes:  # begun before the oldest event that is kept
            begun_ms = updated_ms - int(window.get("age_ms", 0))
            lanes[chunk] = ChunkSpan(chunk, str(window.get("table", "")), begun_ms)
            if window.get("state") != "reading":
                lanes[chunk].read_ms = updated_ms
        if chunk:
            lanes[chunk].written = window.get("state") == "closing"
    is_open = {str(window.get("chunk", "")) for window in status.get("windows") or ()}
    shown = (lane for lane in lanes.values() if lane.ended_ms is not None or lane.chunk in is_open)
    return sorted(shown, key=lambda lane: lane.begun_ms)


# Tables, and their dumps.

_DUMPED = "done"
_READING = "running"


def tables_of(status: Mapping[str, Any]) -> Iterator[Table]:
    """Yield all known tables, by name."""
    activity: Mapping[str, Mapping[str, Any]] = status.get("activity") or {}
    excluded: Mapping[str, Sequence[str]] = status.get("excluded_columns") or {}
    table_problems = dict(_table_problems(status))
    states = _dumping_states(status)
    dumped = dumped_of(status)
    names = {*(status.get("captured") or dumped), *table_problems, *states}
    for name in sorted(names):
        state, reason, remedy = table_problems.get(name) or (
            states.get(name, TableCaptureState.CAPTURED),
            "",
            "",
        )
        counts, last = activity.get(name) or {}, dumped.get(name) or {}
        yield Table(
            table=name,
            state=state,
            reason=reason,
            remedy=remedy,
            records=counts.get("records", 0),
            last_record_ms=counts.get("last_ms"),
            dumped_ms=last.get("finished_ms"),
            dumped_rows=last.get("rows_read"),
            excluded_columns=tuple(excluded.get(name, ())),
        )


def _table_problems(
    status: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[TableCaptureState, str, str]]]:
    """Yield the problems of tables; for one table the last one counts, and is the worst."""
    for each in status.get("failed") or ():
        yield each["table"], (TableCaptureState.DUMP_FAILED, each["reason"], "")
    for each in status.get("to_repeat") or ():
        yield each["table"], (TableCaptureState.DUMP_FAILED, each["failed"], "")
    for kind, state in (
        ("inserts_only", TableCaptureState.INSERTS_ONLY),
        ("refused", TableCaptureState.REFUSED),
    ):
        for each in status.get(kind) or ():
            is_logged = each.get("only_dumps", False)
            shown = TableCaptureState.DUMP_FAILED if is_logged else state
            yield each["table"], (shown, each["reason"], each.get("remedy") or "")


def _dumping_states(status: Mapping[str, Any]) -> dict[str, TableCaptureState]:
    states: dict[str, TableCaptureState] = {}
    for dump in status.get("dumps") or ():
        if not is_dump_unfinished(dump):
            continue
        for table in dump.get("tables") or ():
            if table.get("status") == _READING:
                states[table["table"]] = TableCaptureState.DUMPING
            elif table.get("status") == "pending":
                states.setdefault(table["table"], TableCaptureState.DUMP_WAITS)
    return states


def dumped_of(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the newest dump of each whole table, by table."""
    newest: dict[str, Mapping[str, Any]] = {}
    for dump in status.get("dumps") or ():
        for table in dump.get("tables") or ():
            ended = table.get("finished_ms")
            part = table.get("where") is not None or table.get("key_set") is not None
            if table.get("status") != _DUMPED or not ended or part:
                continue
            if ended >= newest.get(table["table"], {}).get("finished_ms", 0):
                newest[table["table"]] = table
    return newest


# The overview.

LANES_SHOWN = 12
_WORST_FIRST = (Severity.CRITICAL, Severity.WARNING, Severity.INFO, Severity.OK)


def overview(status: Mapping[str, Any], now_ms: int) -> Overview:
    """Return the overview of ``status``, a document of `tidelog.app.status`. ``now_ms``: the time
    now, by the clock of the document's ``updated_ms``.
    """
    written_ms = status.get("updated_ms")
    age_s = None if written_ms is None else max(0.0, (now_ms - written_ms) / 1000)
    leader = status["leader"] if "leader" in status else status.get("holder")
    down = leader is None or (age_s or 0.0) > STALE_S
    source = _source(status, (age_s or 0.0) if down else 0.0)
    before = {name: row.get("rows_read", 0) for name, row in dumped_of(status).items()}
    delivered = {row["pipeline"] for row in status.get("pipelines") or () if row["leader"]}
    outputs = tuple(
        _output(row, led=row["pipeline"] in delivered) for row in status.get("outputs") or ()
    )
    dumps = tuple(
        dump_progress(dump, written_ms or now_ms, before)
        for each in status.get("dumps") or ()
        if (dump := as_blocked(each, blocks_of(each, status))) and is_dump_unfinished(dump)
    )
    engines = tuple(engine_health(status, now_ms))
    all_problems = [  # the first of the worst ones is the verdict
        *process_problems(status, outputs, dumps, age_s, now_ms),
        *source_problems(status, source, now_ms),
        *pipeline_pauses(status, outputs, now_ms),
        *blocked_problems(status, now_ms),
        *table_problems(status, now_ms),
        *output_problems(status, outputs, now_ms),
        *dump_problems(status, now_ms),
        *copy_problems(status),
        *channel_problems(status),
        *check_problems(status),
        *engine_problems(engines, now_ms),
    ]
    problems = tuple(sorted(all_problems, key=lambda each: _WORST_FIRST.index(each.severity)))
    severity = problems[0].severity if problems else Severity.OK
    pipelines, tables = tuple(_pipelines(status)), tuple(tables_of(status))
    verified = verify_result(status)
    starts = next((each.sentence for each in problems if each.kind == STARTING), "")
    answer_inputs = (source, pipelines, tables, dumps, verified, problems, now_ms)
    return Overview(
        version=VERSION,
        severity=severity,
        verdict=_verdict(
            problems[0].sentence if problems else "", starts, severity, source, outputs
        ),
        at_ms=written_ms,
        age_s=age_s,
        leader=leader,
        zone=status.get("zone") or "",
        epoch=status.get("epoch"),
        since_ms=status.get("since_ms"),
        standbys=tuple(each["holder"] for each in status.get("standbys") or ()),
        standby_zones=_zones(status.get("standbys") or ()),
        records=(status.get("capture") or {}).get("records", 0),
        tables_refused=len(status.get("refused") or ()),
        throttled=((status.get("throttle") or {}).get("decision") or {}).get("reason", ""),
        source=source,
        outputs=outputs,
        engines=engines,
        dumps=dumps,
        problems=problems,
        pipelines=pipelines,
        tables=tables,
        options=dict(status.get("dump_options") or {}),
        lanes=tuple(lanes_of(status)[-LANES_SHOWN:]),
        verified=verified,
        drops=tuple(_drop(each) for each in status.get("drops") or ()),
        answers=tuple(answers_of(status, *answer_inputs))
        if status.get("capture") is not None
        else (),
    )


def _verdict(
    worst: str,
    starts: str,
    severity: Severity,
    source: SourceHealth,
    outputs: tuple[OutputHealth, ...],
) -> str:
    if severity in (Severity.CRITICAL, Severity.WARNING):
        return worst
    if starts:
        return starts
    lags = [source.lag_s, *(output.lag_s for output in outputs)]
    late = max((lag for lag in lags if lag is not None), default=None)
    if late is None:
        return "All is well."
    return f"All is well: at most {brief_span(max(1, ceil(late)) * 1000)} behind the source."


def _drop(row: Mapping[str, Any]) -> OperationDrop:
    return OperationDrop(**{each.name: row[each.name] for each in fields(OperationDrop)})


def _source(status: Mapping[str, Any], silent_s: float) -> SourceHealth:
    """Return the source's health. ``silent_s``: how long capture is down; the source changes on."""
    source_fields = dict(status.get("source") or {})
    if _is_lost(status):  # no danger: it has happened
        source_fields |= dict.fromkeys(("kept_s", "lost_in_s", "lasts_s"))
    lost_in_s, lag_s = source_fields.get("lost_in_s"), source_fields.get("lag_s")
    if silent_s:
        if lost_in_s is None:  # without capture, the server keeps all its log for us
            lost_in_s = source_fields.get("lasts_s")
        source_fields["lag_s"] = None if lag_s is None else round(lag_s + silent_s, 1)
        source_fields["lost_in_s"] = (
            None if lost_in_s is None else round(max(0.0, lost_in_s - silent_s), 1)
        )
    retained = RetainedLog.from_status(source_fields)
    paused = status.get("log_paused") or {}
    return SourceHealth(
        position=source_fields.get("position"),
        lag_s=retained.lag_s,
        lag_bytes=status.get("lag_bytes"),
        retained_bytes=retained.retained_bytes,
        spare_bytes=retained.spare_bytes,
        lost_in_s=retained.lost_in_s,
        error=source_fields.get("error"),
        silent_s=silent_s,
        paused_by=paused.get("by", ""),
        paused_ms=paused.get("since_ms"),
        lasts_s=source_fields.get("lasts_s"),
    )


def _output(row: Mapping[str, Any], *, led: bool) -> OutputHealth:
    return OutputHealth(
        pipeline=row["pipeline"],
        output=row["output"],
        state=row["state"],
        offset=row["offset"],
        behind_records=row["behind_records"],
        lag_s=row.get("lag_s"),
        noted_ms=row["noted_ms"],
        error=row.get("error"),
        committed_ms=row.get("committed_ms"),
        batch_s=row.get("batch_s"),
        batch_records=row.get("batch_records"),
        records_per_s=row.get("records_per_s"),
        last_error=row.get("failed"),
        last_error_ms=row.get("failed_ms"),
        rejected=row.get("rejected") or 0,
        rejected_ms=row.get("rejected_ms"),
        refused=row.get("refused") or {},
        keyless=row.get("keyless") or {},
        unregistered=row.get("unregistered") or {},
        batches=row.get("batches") or 0,
        all_records=row.get("all_records") or 0,
        all_s=row.get("all_s") or 0.0,
        begun_ms=row.get("begun_ms") if led else None,
        begun_records=row.get("begun_records") or 0,
    )


def _pipelines(status: Mapping[str, Any]) -> Iterator[PipelineOverview]:
    """Yield the pipelines, also those that were paused before they ever ran."""
    rows = {row["pipeline"]: row for row in status.get("pipelines") or ()}
    yield from (_pipeline_overview(status, row) for row in rows.values())
    for name in sorted((status.get("paused_pipelines") or {}).keys() - rows.keys()):
        never = {"leader": None, "epoch": 0, "since_ms": 0, "standbys": ()}
        yield _pipeline_overview(status, {"pipeline": name, **never})


def _zones(standbys: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(each.get("zone") or "" for each in standbys)


def _pipeline_overview(status: Mapping[str, Any], row: Mapping[str, Any]) -> PipelineOverview:
    paused = (status.get("paused_pipelines") or {}).get(row["pipeline"]) or {}
    return PipelineOverview(
        pipeline=row["pipeline"],
        leader=row["leader"],
        zone=row.get("zone") or "",
        epoch=row["epoch"],
        since_ms=row["since_ms"],
        standbys=tuple(each["holder"] for each in row["standbys"]),
        standby_zones=_zones(row["standbys"]),
        paused_by=paused.get("by", ""),
        paused_ms=paused.get("since_ms"),
    )


_LEAST_SHARE, _LEAST_CHUNKS = 0.01, 20
"""How much of a dump was read before its rate so far says when it ends: the first chunks of a
process that has just started are slow.
"""


def dump_progress(
    dump: Mapping[str, Any], now_ms: int, before: Mapping[str, int] | None = None
) -> RunningDump:
    """Return the progress of a dump, from its summary in a status document. ``before``: the rows
    that the last dump of each table read.
    """
    before = before or {}
    tables = dump.get("tables") or ()
    done = 0
    rows = sum(table.get("rows_read", 0) for table in tables)
    sizes: list[int] = []
    left, unknown, size_unknown = 0.0, 0, False
    for table in tables:
        read = table.get("rows_read", 0)
        expected = _expected_rows(table, before)
        if table_has_ended(table):
            expected = read
            done += 1
        if expected is not None:
            sizes.append(max(read, expected))
            left += max(0, expected - read)
        elif read:
            size_unknown = True  # its size is unknown, and is no measure for the tables to come
        else:
            unknown += 1
    known = not unknown and not size_unknown
    left += unknown * (sum(sizes) / len(sizes) if sizes else 0)
    began = min((t["started_ms"] for t in tables if t.get("started_ms")), default=None)
    took_s = 0.0 if began is None else (now_ms - began) / 1000
    share: float | None = None
    left_s: float | None = None
    if rows and sizes and not size_unknown:
        share = round(rows / (rows + left), 4)
        chunks = sum(table.get("chunks", 0) for table in tables)
        if took_s > 0 and (share >= _LEAST_SHARE or chunks >= _LEAST_CHUNKS):
            left_s = round(left * took_s / rows, 1)
    return RunningDump(
        dump_id=dump["dump_id"],
        status=dump["status"],
        tables=len(tables),
        tables_done=done,
        rows=rows,
        estimated_rows=sum(sizes) if known else None,
        left_s=left_s,
        share=share,
        mode=dump.get("mode") or "",
        reason=dump.get("reason") or "",
        paused_by=dump.get("paused_by") or "",
        paused_ms=dump.get("paused_ms"),
        reading=tuple(
            TableInProgress(
                table["table"], table.get("rows_read", 0), _expected_rows(table, before)
            )
            for table in tables
            if table.get("status") == "running"
        ),
        failed=sum(table.get("status") == "failed" for table in tables),
        held=block_reasons(dump.get("held") or ()),
    )


def _expected_rows(table: Mapping[str, Any], before: Mapping[str, int]) -> int | None:
    """Return the rows that the dump will read of the table; None: unknown.

    ``before``: the rows that the last dump of each table read. It stands in for a missing estimate:
    of a table that has not begun, or that the server has no statistics of.
    """
    keys: int | None = table.get("key_count")
    if keys:
        return keys
    if table.get("where") is not None:
        return None  # the estimate is of the whole table
    estimated, last = table.get("estimated_rows"), before.get(table["table"])
    if not estimated and last == 0 and not table.get("rows_read"):
        return 0  # it was empty
    estimated = estimated or last
    # If more rows were read than estimated, nobody knows the end.
    return estimated if estimated and estimated >= table.get("rows_read", 0) else None
