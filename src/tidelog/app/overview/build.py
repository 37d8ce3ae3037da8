"""An overview from a status document, whichever version of capture wrote it: what lacks is None."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tidelog.app.overview.chunk_timeline import lanes_of
from tidelog.app.overview.document import (
    VERSION,
    OperationDrop,
    OutputHealth,
    Overview,
    PipelineOverview,
    RunningDump,
    Severity,
    SourceHealth,
    Table,
    TableCaptureState,
    TableInProgress,
    VerifyResult,
)
from tidelog.app.overview.dump_problems import (
    as_held,
    dump_goes_on,
    holds_on,
    reasons,
    table_has_ended,
)
from tidelog.app.overview.engines import engine_health, engine_problems
from tidelog.app.overview.problems import STALE_S, problems_of
from tidelog.app.overview.summary import answers_of
from tidelog.capture.limits.log_guard import RetainedLog
from tidelog.model.units import brief_span

_DUMPED = "done"
_READING = "running"


def tables_of(status: Mapping[str, Any]) -> Iterator[Table]:
    """All that are known, by name."""
    activity: Mapping[str, Mapping[str, Any]] = status.get("activity") or {}
    troubles = dict(_troubles(status))
    dumping = _dumping(status)
    dumped = dumped_of(status)
    names = {*(status.get("captured") or ()), *troubles, *dumping, *dumped}
    for name in sorted(names):
        state, reason, remedy = troubles.get(name) or (
            dumping.get(name, TableCaptureState.CAPTURED),
            "",
            "",
        )
        seen, last = activity.get(name) or {}, dumped.get(name) or {}
        yield Table(
            table=name,
            state=state,
            reason=reason,
            remedy=remedy,
            records=seen.get("records", 0),
            last_record_ms=seen.get("last_ms"),
            dumped_ms=last.get("finished_ms"),
            dumped_rows=last.get("rows_read"),
        )


def _troubles(
    status: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[TableCaptureState, str, str]]]:
    """The worst comes last, and counts."""
    for each in status.get("failed") or ():
        yield each["table"], (TableCaptureState.DUMP_FAILED, each["reason"], "")
    for each in status.get("to_repeat") or ():
        yield each["table"], (TableCaptureState.DUMP_FAILED, each["failed"], "")
    for kind, state in (
        ("inserts_only", TableCaptureState.INSERTS_ONLY),
        ("refused", TableCaptureState.REFUSED),
    ):
        for each in status.get(kind) or ():
            yield each["table"], (state, each["reason"], each.get("remedy") or "")


def _dumping(status: Mapping[str, Any]) -> dict[str, TableCaptureState]:
    found: dict[str, TableCaptureState] = {}
    for dump in status.get("dumps") or ():
        if not dump_goes_on(dump):
            continue
        for table in dump.get("tables") or ():
            if table.get("status") == _READING:
                found[table["table"]] = TableCaptureState.DUMPING
            elif table.get("status") == "pending":
                found.setdefault(table["table"], TableCaptureState.DUMP_WAITS)
    return found


def dumped_of(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The newest dump of each whole table that is told of, by table."""
    found: dict[str, Mapping[str, Any]] = {}
    for dump in status.get("dumps") or ():
        for table in dump.get("tables") or ():
            ended = table.get("finished_ms")
            part = table.get("where") is not None or table.get("key_set") is not None
            if table.get("status") != _DUMPED or not ended or part:
                continue
            if ended >= found.get(table["table"], {}).get("finished_ms", 0):
                found[table["table"]] = table
    return found


LANES_SHOWN = 12
_WORST_FIRST = (Severity.CRITICAL, Severity.WARNING, Severity.INFO, Severity.OK)


def overview(status: Mapping[str, Any], now_ms: int) -> Overview:
    """The overview of ``status``, as `tidelog.app.status` gives it. ``now_ms``: now, by the clock
    of its ``updated_ms``.
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
        dumping(dump, written_ms or now_ms, before)
        for each in status.get("dumps") or ()
        if (dump := as_held(each, holds_on(each, status))) and dump_goes_on(dump)
    )
    engines = tuple(engine_health(status, now_ms))
    found = [
        *problems_of(status, source, outputs, age_s, now_ms),
        *engine_problems(engines, now_ms),
    ]
    problems = tuple(sorted(found, key=lambda each: _WORST_FIRST.index(each.severity)))
    severity = problems[0].severity if problems else Severity.OK
    pipelines, tables = tuple(_pipelines(status)), tuple(tables_of(status))
    verified = _verified(status)
    asked = (source, pipelines, tables, dumps, verified, problems, now_ms)
    return Overview(
        version=VERSION,
        severity=severity,
        verdict=_verdict(problems[0].sentence if problems else "", severity, source, outputs),
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
        answers=tuple(answers_of(status, *asked)) if status.get("capture") is not None else (),
    )


def _verdict(
    worst: str, severity: Severity, source: SourceHealth, outputs: tuple[OutputHealth, ...]
) -> str:
    if severity in (Severity.CRITICAL, Severity.WARNING):
        return worst
    lags = [source.lag_s, *(output.lag_s for output in outputs)]
    late = max((lag for lag in lags if lag is not None), default=None)
    if late is None:
        return "All is well."
    return f"All is well: nothing is later than {brief_span(max(1000, int(late * 1000)))}."


def _drop(row: Mapping[str, Any]) -> OperationDrop:
    return OperationDrop(**{each.name: row[each.name] for each in fields(OperationDrop)})


def _verified(status: Mapping[str, Any]) -> VerifyResult | None:
    found = status.get("verified")
    if found is None:
        return None
    return VerifyResult(found["at_ms"], found["compared"], tuple(found["differ"]))


def _source(status: Mapping[str, Any], silent_s: float) -> SourceHealth:
    """``silent_s``: seconds without news from capture; the source went on meanwhile."""
    told = dict(status.get("source") or {})
    lost_in_s, lag_s = told.get("lost_in_s"), told.get("lag_s")
    if silent_s:
        if lost_in_s is None:  # from now on nothing lets go of its log
            lost_in_s = told.get("lasts_s")
        told["lag_s"] = None if lag_s is None else round(lag_s + silent_s, 1)
        told["lost_in_s"] = None if lost_in_s is None else round(max(0.0, lost_in_s - silent_s), 1)
    kept = RetainedLog.from_status(told)
    paused = status.get("log_paused") or {}
    return SourceHealth(
        position=told.get("position"),
        lag_s=kept.lag_s,
        lag_bytes=status.get("lag_bytes"),
        retained_bytes=kept.retained_bytes,
        spare_bytes=kept.spare_bytes,
        lost_in_s=kept.lost_in_s,
        error=told.get("error"),
        silent_s=silent_s,
        paused_by=paused.get("by", ""),
        paused_ms=paused.get("since_ms"),
        lasts_s=told.get("lasts_s"),
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
        batches=row.get("batches") or 0,
        all_records=row.get("all_records") or 0,
        all_s=row.get("all_s") or 0.0,
        begun_ms=row.get("begun_ms") if led else None,
        begun_records=row.get("begun_records") or 0,
    )


def _pipelines(status: Mapping[str, Any]) -> Iterator[PipelineOverview]:
    """Also those that were paused before they ever ran."""
    rows = {row["pipeline"]: row for row in status.get("pipelines") or ()}
    yield from (_delivering(status, row) for row in rows.values())
    for name in sorted((status.get("paused_pipelines") or {}).keys() - rows.keys()):
        never = {"leader": None, "epoch": 0, "since_ms": 0, "standbys": ()}
        yield _delivering(status, {"pipeline": name, **never})


def _zones(standbys: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(each.get("zone") or "" for each in standbys)


def _delivering(status: Mapping[str, Any], row: Mapping[str, Any]) -> PipelineOverview:
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


def dumping(
    dump: Mapping[str, Any], now_ms: int, before: Mapping[str, int] | None = None
) -> RunningDump:
    """How far a dump is, from its summary in a status document. ``before``: rows that the last dump
    of each table read.
    """
    before = before or {}
    tables = dump.get("tables") or ()
    done = 0
    rows = sum(table.get("rows_read", 0) for table in tables)
    sizes: list[int] = []
    left, unknown, endless = 0.0, 0, False
    for table in tables:
        read = table.get("rows_read", 0)
        expected = _expected(table, before)
        if table_has_ended(table):
            expected = read
            done += 1
        if expected is not None:
            sizes.append(max(read, expected))
            left += max(0, expected - read)
        elif read:
            endless = True  # nobody knows how large it is, nor is it like those to come
        else:
            unknown += 1
    known = not unknown and not endless
    left += unknown * (sum(sizes) / len(sizes) if sizes else 0)
    began = min((t["started_ms"] for t in tables if t.get("started_ms")), default=None)
    took_s = 0.0 if began is None else (now_ms - began) / 1000
    share: float | None = None
    left_s: float | None = None
    if rows and sizes and not endless:
        share = round(rows / (rows + left), 4)
        left_s = round(left * took_s / rows, 1) if took_s > 0 else None
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
            TableInProgress(table["table"], table.get("rows_read", 0), _expected(table, before))
            for table in tables
            if table.get("status") == "running"
        ),
        failed=sum(table.get("status") == "failed" for table in tables),
        held=reasons(dump.get("held") or ()),
    )


def _expected(table: Mapping[str, Any], before: Mapping[str, int]) -> int | None:
    """Rows that the dump will read of the table. ``before``: what the last dump of each read: a
    table that has not begun, or that the server has no statistics of, has no estimate yet.
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
    # One that was read beyond its estimate has an end that nobody knows.
    return estimated if estimated and estimated >= table.get("rows_read", 0) else None
