"""Finds problems by rules: each reads the status document.

A remedy is what a person would do next. The page is the entry of docs/failure-modes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.table_problems import problem, table_problems
from tidelog.capture.dump_gate import DumpBlockCause
from tidelog.capture.dumps.state import FINISHED_TABLES, NO_KEY, UNFINISHED_DUMPS, DumpStatus
from tidelog.capture.log_guard import NEARLY_FULL, DangerKind, RetainedLog, danger_of
from tidelog.capture.session.start import STATUS_KEY
from tidelog.model.patterns import dump_command
from tidelog.model.schema import TableName
from tidelog.model.units import brief_span, counted, format_bytes
from tidelog.ports import StateStore
from tidelog.results import OutputHealth, Problem, RunningDump, Severity, SourceHealth, VerifyResult

# Dumps: what blocks them, or made them fail.

BLOCKED_BY: Final = "capture"


def blocks_of(dump: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what blocks the dump, from the status document's ``dumps_held``. Each has ``why``,
    ``reason`` (a sentence) and ``since_ms``. Nothing blocks a blocking dump that has begun.
    """
    waits = dump.get("status") == DumpStatus.QUEUED or (
        dump.get("status") == DumpStatus.RUNNING and dump.get("mode") != "blocking"
    )
    return list(status.get("dumps_held") or ()) if waits else []


def as_blocked(dump: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the dump as capture blocks it, if anything does: paused, with ``held``."""
    if not blocks:
        return dump
    since_ms = min(block["since_ms"] for block in blocks)
    paused = {"status": DumpStatus.PAUSED, "paused_by": BLOCKED_BY, "paused_ms": since_ms}
    return {**dump, **paused, "held": blocks}


def reported_blocks(state: StateStore, dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `blocks_of`, from the status of the current or last leader."""
    document = state.get(STATUS_KEY)
    return [] if document is None else blocks_of(dump, document.value)


def block_reasons(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return why a dump is blocked, as one text; empty if it is not."""
    return " ".join(str(block["reason"]) for block in blocks)


def is_dump_unfinished(dump: Mapping[str, Any]) -> bool:
    """Return whether the dump is queued, running or paused."""
    return dump.get("status") in UNFINISHED_DUMPS


def table_has_ended(table: Mapping[str, Any]) -> bool:
    """Return whether the dump's table is done, failed or cancelled."""
    return table.get("status") in FINISHED_TABLES


UNANSWERED_S = 10.0
"""A source that answers again within this time is no problem."""


def dump_problems(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    """Yield the problems of dumps, and of the catalogue polls that request them."""
    yield from _unanswered_problems(status, now_ms)
    yield from _dumps(status)


def _unanswered_problems(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    if "leader" in status and status["leader"] is None:
        return  # no capture asks
    dumping = any(dump.get("status") == "running" for dump in status.get("dumps") or ())
    for key, is_relevant, effect in (
        ("chunks_unanswered", dumping, "Dumps read nothing"),
        ("looks_unanswered", True, "The catalogue is not read: changed tables are seen late"),
    ):
        unanswered = status.get(key)
        if is_relevant and unanswered and now_ms - unanswered["since_ms"] >= UNANSWERED_S * 1000:
            yield problem(
                key.replace("_", "-"),
                Severity.WARNING,
                "",
                f"{effect}: {unanswered['error']}",
                "tidelog check CONFIG\nTidelog retries by itself.",
                "the-source-refuses-more-connections",
            )


def _dumps(status: Mapping[str, Any]) -> Iterator[Problem]:
    for each in status.get("to_repeat") or ():
        yield problem(
            "dump-failed",
            Severity.WARNING,
            each["table"],
            f"The dump of {each['table']} failed: {each['failed']}",
            f"{dump_command(TableName.parse(each['table']))}\n"
            "Once the cause is fixed. Tidelog also retries by itself, less and less often.",
            "an-automatic-dump-failed",
        )
    for each in status.get("waiting") or ():
        yield problem(
            "dump-waits",
            Severity.INFO,
            str(each.get("table", "")),
            f"The dump of {each.get('table')} waits for an old transaction.",
            "Capture's log says which; the dump starts when that ends.",
            "an-automatic-dump-waits-for-an-old-transaction",
        )
    reported = {
        each["table"]
        for section in ("to_repeat", "refused", "inserts_only")
        for each in status.get(section) or ()
    }
    for failed in status.get("failed") or ():
        if failed["table"] not in reported:
            keyless = failed["reason"] == NO_KEY  # which says what to do
            yield problem(
                "dump-failed",
                Severity.WARNING,
                failed["table"],
                f"{failed['table']} is not dumped, so copies lack rows that no change has touched "
                f"since: {failed['reason']}"
                if keyless
                else f"The dump of {failed['table']} failed: {failed['reason']}",
                "tidelog check CONFIG\nIt prints the line of source.keys."
                if keyless
                else dump_command(TableName.parse(failed["table"])),
                "a-table-of-the-dump-cant-be-dumped",
            )
    for dump in status.get("dumps") or ():
        if dump.get("status") == "paused":
            by = f" by {dump['paused_by']}" if dump.get("paused_by") else ""
            yield problem(
                "dump-paused",
                Severity.INFO,
                dump["dump_id"],
                f"Dump {dump['dump_id']} is paused{by}.",
                f"tidelog resume CONFIG {dump['dump_id']}",
                "a-paused-dump-was-forgotten",
            )
        for table in dump.get("tables") or () if is_dump_unfinished(dump) else ():
            if table.get("failed_ranges"):
                yield problem(
                    "rows-unread",
                    Severity.WARNING,
                    table["table"],
                    f"{table['failed_ranges']} key ranges of {table['table']} could not be read.",
                    "tidelog status CONFIG --ranges\n"
                    "It names them. Dump the table again once they can be read.",
                    "a-key-range-could-not-be-read",
                )


# Pauses.

WORTH_A_WARNING = 0.4
"""The share of the log the server may keep above which a pause is a warning.

Above `NEARLY_FULL` it is critical.
"""
_PAGE = "docs/failure-modes.md#something-is-paused-and-was-forgotten"
_GUARD_PAGE = "docs/failure-modes.md#the-sources-log-is-in-danger"


def paused_problems(
    status: Mapping[str, Any],
    source: SourceHealth,
    retained: RetainedLog,
    outputs: Sequence[OutputHealth],
    now_ms: int,
) -> Iterator[Problem]:
    """Yield what is paused, by whom and since when, and what waits because of it."""
    yield from _log_pause(status, source, retained, now_ms)
    yield from _pipeline_pauses(status, outputs, now_ms)
    yield from _blocked_dumps(status, now_ms)


def _log_pause(
    status: Mapping[str, Any], source: SourceHealth, retained: RetainedLog, now_ms: int
) -> Iterator[Problem]:
    """Yield the pause of the log; its severity grows with the log that the server keeps."""
    pause = status.get("log_paused")
    if pause is None:
        return
    severity = Severity.INFO
    if retained.share >= NEARLY_FULL or (
        retained.spare_bytes is not None and retained.spare_bytes <= 0
    ):
        severity = Severity.CRITICAL
    elif retained.share >= WORTH_A_WARNING or (source.lag_s or 0.0) >= LATE_S:
        severity = Severity.WARNING
    parts = [f"The log is {_paused_text(pause, now_ms)}"]
    if source.lag_s:
        parts.append(f"capture is {brief_span(source.lag_s * 1000)} behind")
    if source.retained_bytes is not None:
        keeps = f"the server keeps {format_bytes(source.retained_bytes)} of log for it"
        if source.spare_bytes is not None:
            keeps += f", with room for {format_bytes(max(0, source.spare_bytes))} more"
        parts.append(keeps)
    elif retained.kept_s is not None:
        parts.append(f"the server removes its log after {brief_span(retained.kept_s * 1000)}")
    yield Problem(
        "log-reading-paused",
        severity,
        "",
        "; ".join(parts) + ".",
        "tidelog resume CONFIG --log",
        _PAGE,
    )


def _pipeline_pauses(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    for name, pause in sorted((status.get("paused_pipelines") or {}).items()):
        lags = [each.lag_s or 0.0 for each in outputs if each.pipeline == name]
        behind = max((each.behind_records for each in outputs if each.pipeline == name), default=0)
        severity = Severity.WARNING if max(lags, default=0.0) >= LATE_S else Severity.INFO
        text = f"Pipeline {name} is {_paused_text(pause, now_ms)}"
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


def _blocked_dumps(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    if not any(is_dump_unfinished(each) for each in status.get("dumps") or ()):
        return
    for block in status.get("dumps_held") or ():
        span = brief_span(max(0, now_ms - block["since_ms"]))
        of_log = block["why"] == DumpBlockCause.LOG_PAUSED
        yield Problem(
            "dumps-held",
            Severity.INFO,
            block["why"],
            f"Capture has blocked all dumps for {span}: {block['reason']}",
            "They resume when the log does."
            if of_log
            else "They resume by themselves when that is over (source.when_log_in_danger).",
            _PAGE if of_log else _GUARD_PAGE,
        )


def _paused_text(pause: Mapping[str, Any], now_ms: int) -> str:
    by = f" by {pause['by']}" if pause.get("by") else ""
    return f"paused{by} for {brief_span(max(0, now_ms - pause['since_ms']))}"


# All problems.

STALE_S = 60.0
"""Seconds after which a status is stale: a leader writes one a second, on an object store one in
half a minute.
"""
LATE_S = 300.0
SILENT_S = 120.0
"""A pipeline that is behind and has reported nothing for this time does not run, or hangs."""
REJECTED_S = 86_400.0
"""How long new dead letters are reported."""


def problems_of(
    status: Mapping[str, Any],
    source: SourceHealth,
    outputs: Sequence[OutputHealth],
    dumps: Sequence[RunningDump],
    age_s: float | None,
    now_ms: int,
) -> Iterator[Problem]:
    """Yield all problems, in no order."""
    yield from _starting(status, dumps, age_s)
    yield from _leadership(status, age_s, now_ms)
    yield from _ended_pipelines(status, outputs, now_ms)
    retained = _retained_log(status, source)
    yield from _of_source(status, source)
    yield from _retention(source, retained)
    yield from paused_problems(status, source, retained, outputs, now_ms)
    yield from table_problems(status, now_ms)
    yield from _outputs(status, outputs, now_ms)
    yield from dump_problems(status, now_ms)
    yield from _copies(status)
    yield from _channels(status)
    yield from _check_errors(status)


STARTING = "starting"
NEVER = "No capture has begun here."


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
        parts.append("nothing is delivered yet")
    yield problem(
        STARTING,
        Severity.INFO,
        "",
        f"Starting: {', '.join(parts)}.",
        "",
        "processes-hosts-and-disks",
    )


def _time_left(dumps: Sequence[RunningDump]) -> str:
    """Return the time that the dumps still take at the rates so far; empty: not known."""
    times = [dump.left_s for dump in dumps if dump.status == DumpStatus.RUNNING]
    known = [each for each in times if each]
    if not known or len(known) < len(dumps):
        return ""
    return f" (about {_span(max(known))} left)"


def _span(seconds: float) -> str:
    return brief_span(int(seconds * 1000))


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


AFTER_ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "GapError": (
        "tidelog reset CONFIG\nIt shows what is lost and asks; then start again.",
        "gaperror",
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
            f"No capture leads; the last one {end or f'was seen {_span(age_s)} ago.'}",
            remedy,
            entry,
        )
    elif age_s > STALE_S and not failing:
        yield problem(
            "leader-silent",
            Severity.CRITICAL,
            "",
            f"{leader} leads, but has reported nothing for {_span(age_s)}.",
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
            "connectionlosterror",
        )
    for each in (each for each in reported if each not in failing):
        yield problem(
            "standby-fails",
            Severity.WARNING,
            each["holder"],
            f"{each['holder']} stands by, but could not capture: {each['trouble']}",
            "tidelog check CONFIG\nRun that on its host. It retries by itself.",
            "connectionlosterror",
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


def _retained_log(status: Mapping[str, Any], source: SourceHealth) -> RetainedLog:
    """Return the log that the server keeps; ``source`` adds the time since the status."""
    return RetainedLog(
        source.retained_bytes,
        source.spare_bytes,
        (status.get("source") or {}).get("kept_s"),
        source.lag_s,
        source.lost_in_s,
        (status.get("log_guard") or {}).get("much_bytes"),
    )


def _of_source(status: Mapping[str, Any], source: SourceHealth) -> Iterator[Problem]:
    if source.error is not None:
        yield problem(
            "source-away",
            Severity.CRITICAL,
            "",
            f"The database does not answer: {source.error}",
            "tidelog check CONFIG\nCapture resumes by itself once the database answers.",
            "connectionlosterror",
        )
    elif (
        source.lag_s is not None
        and source.lag_s >= LATE_S
        and not source.silent_s
        and status.get("log_paused") is None  # the pause's problem says how late
    ):
        behind = "" if source.lag_bytes is None else f" ({format_bytes(source.lag_bytes)})"
        yield problem(
            "capture-late",
            Severity.WARNING,
            "",
            f"Capture is {_span(source.lag_s)}{behind} behind the database.",
            "Running dumps share the database with it, and can be slowed down:\n"
            "tidelog set CONFIG rows_per_second=1000",
            "a-dump-is-throttled-for-long",
        )


def _retention(source: SourceHealth, retained: RetainedLog) -> Iterator[Problem]:
    """Yield a problem before the server removes what capture needs, or its disk fills."""
    danger = danger_of(retained)
    if danger is None:
        return
    first = "Start capture" if source.silent_s else "Bring capture up to date"
    remedy = (
        f"{first}, or let the server keep more (PostgreSQL: "
        "max_slot_wal_keep_size; MySQL, MariaDB: binlog_expire_logs_seconds)."
    )
    if danger.kind is DangerKind.FILLS_DISK:
        remedy = f"{first}; max_slot_wal_keep_size bounds it."
    up_to_date = (source.lag_s or 0.0) < LATE_S and not source.silent_s
    if retained.retained_bytes is not None and up_to_date:
        remedy = (
            "Capture is up to date: an old transaction holds the slot (pg_stat_activity, "
            "pg_prepared_xacts). End it, or raise max_slot_wal_keep_size."
        )
    yield problem(
        danger.kind,
        Severity.CRITICAL if danger.kind is DangerKind.NEARLY_LOST else Severity.WARNING,
        "",
        danger.sentence,
        remedy,
        "gaperror" if retained.retained_bytes is None else "the-sources-log-is-in-danger",
    )


def _outputs(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    for name in status.get("damaged_consumers") or ():
        yield problem(
            "consumer-damaged",
            Severity.CRITICAL,
            name,
            f"The event log's file consumers/{name}.json is damaged: the position of {name} is "
            "not known, so retention deletes nothing.",
            "Delete the file. A pipeline then continues from the copy in its checkpoint; an engine "
            "begins as if it were new.",
            "consumerfilecorrupterror",
        )
    led = {row["pipeline"]: row["leader"] for row in status.get("pipelines") or ()}
    begun = {f"{each.pipeline}/{each.output}" for each in outputs}
    paused = status.get("paused_pipelines") or {}
    for name in status.get("configured_outputs") or ():
        if name not in begun and not pipeline_begins(status, name):
            yield problem(
                "output-never-ran",
                Severity.WARNING,
                name,
                f"Nothing was ever delivered to output {name}.",
                "tidelog pipeline CONFIG",
                "the-pipeline-and-its-outputs",
            )
    for each in outputs:
        name = f"{each.pipeline}/{each.output}"
        silent_s = (now_ms - each.noted_ms) / 1000
        late = each.lag_s is not None and each.lag_s >= LATE_S
        # It reports only if there is something to deliver.
        silent = silent_s >= SILENT_S and (each.lag_s is None or each.lag_s >= SILENT_S)
        if each.error is not None:
            yield problem(
                "output-stopped",
                Severity.CRITICAL,
                name,
                f"Output {name} has stopped: {each.error}",
                _retried(led.get(each.pipeline)),
                "outputrefusederror",
            )
        elif each.pipeline in paused:
            pass  # the pause's problem says how late
        elif each.behind_records and silent and not pipeline_begins(status, name):
            yield problem(
                "pipeline-silent",
                Severity.CRITICAL,
                name,
                f"Output {name} lacks {each.behind_records:,} records, and its pipeline has "
                f"reported nothing for {_span(silent_s)}.",
                "tidelog pipeline CONFIG",
                "the-pipeline-and-its-outputs",
            )
        elif each.fails:
            yield problem(
                "output-fails",
                Severity.WARNING,
                name,
                f"Output {name} fails: {each.last_error}",
                _retried(led.get(each.pipeline)),
                "outputerror",
            )
        elif late and each.lag_s is not None:
            yield problem(
                "output-late",
                Severity.WARNING,
                name,
                f"Output {name} is {_span(each.lag_s)} behind ({each.behind_records:,} records).",
                "If that grows, give Spark more cores (pipeline.master), or the output a "
                "pipeline of its own.",
                "the-pipeline-and-its-outputs",
            )
        if each.rejected_ms is not None and now_ms - each.rejected_ms < REJECTED_S * 1000:
            records = "record is" if each.rejected == 1 else "records are"
            yield problem(
                "output-rejects",
                Severity.WARNING,
                name,
                f"The destination of output {name} rejects records: {each.rejected:,} {records} in "
                "its dead letters.",
                "Read the files below the output's dead_letter, and fix the destination.",
                "a-destination-rejects-records",
            )
        for tables, why in by_cause(each.refused):
            more = f" and {counted(len(tables) - 1, 'more table')}" if len(tables) > 1 else ""
            what = f"Output {name} lacks rows of {tables[0]}{more}: {why}"
            remedy = "The other tables are delivered."
            found = ("output-lacks-table", Severity.WARNING, name, what, remedy)
            yield problem(*found, "tableleftouterror")
        if missing := sorted(each.unregistered.items()):
            (table, why), others = missing[0], len(missing) - 1
            more = f" and {counted(others, 'more table')}" if others else ""
            yield problem(
                "output-unregistered",
                Severity.WARNING,
                name,
                f"Output {name} has not registered {table}{more}: {why}",
                "The table is written as before.",
                "a-table-is-not-in-the-catalog",
            )


def by_cause(messages: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return tables of one cause together, with the message of the first of them. ``messages``: by
    table; those of one cause begin with sentences that differ in the table's name.
    """
    found: dict[str, tuple[list[str], str]] = {}
    for table, message in sorted(messages.items()):
        cause = message.replace(table, "").partition(". ")[0]
        found.setdefault(cause, ([], message))[0].append(table)
    return list(found.values())


def _retried(leader: str | None) -> str:
    """Return what to do about an output that fails; ``leader``: the process that delivers."""
    if leader is None:  # it ended, as all its outputs had stopped
        return "Fix that, then start the pipeline again; no process delivers now."
    return "Tidelog retries by itself once that is fixed."


def verify_result(status: Mapping[str, Any]) -> VerifyResult | None:
    """Return the last result of verify, without copies that are gone: their table is captured no
    more, or their output is not configured any more.
    """
    result = status.get("verified")
    if result is None:
        return None
    tables = status.get("captured")
    outputs = {name.rpartition("/")[2] for name in status.get("configured_outputs") or ()}

    def there(copies: Sequence[str]) -> tuple[str, ...]:
        named = ((copy, *copy.rpartition(" in ")[::2]) for copy in copies)
        return tuple(
            copy
            for copy, table, output in named
            if (not tables or table in tables) and (not outputs or output in outputs)
        )

    differ, repaired = there(result["differ"]), there(result.get("repaired") or ())
    left_out = there(result.get("left_out") or ())
    return VerifyResult(result["at_ms"], result["compared"], differ, repaired, left_out)


def _copies(status: Mapping[str, Any]) -> Iterator[Problem]:
    result = verify_result(status)
    if result is None:
        return
    page = "a-copy-differs-from-the-source"
    if differ := result.differ:
        yield problem(
            "copy-differs",
            Severity.CRITICAL,
            differ[0],
            f"Verify found that {_with_others(differ)} differed from the source.",
            "tidelog verify CONFIG --repair",
            page,
        )
    if repaired := result.repaired:
        yield problem(
            "copy-repaired",
            Severity.INFO,
            repaired[0],
            f"Verify has repaired {_with_others(repaired)}; not compared again yet.",
            "tidelog verify CONFIG",
            page,
        )


def _with_others(copies: Sequence[str]) -> str:
    more = len(copies) - 1
    return copies[0] + (f" and {more} more {'copy' if more == 1 else 'copies'}" if more else "")


def _channels(status: Mapping[str, Any]) -> Iterator[Problem]:
    for each in status.get("channels") or ():
        yield problem(
            "channel-fails",
            Severity.WARNING,
            each["channel"],
            f"{each['reason']}.",
            each["remedy"],
            "kafka-does-not-answer-a-channel",
        )


def _check_errors(status: Mapping[str, Any]) -> Iterator[Problem]:
    tables = [*(status.get("refused") or ()), *(status.get("inserts_only") or ())]
    reported = {f"table {each['table']}" for each in tables}
    for each in status.get("check_errors") or ():
        if each["check"] not in reported:
            yield problem(
                "check-error",
                Severity.WARNING,
                each["check"],
                f"tidelog check finds an error in {each['check']}: {each['message']}",
                each["fix"] or "tidelog check CONFIG",
                "check-finds-an-error-while-capture-runs",
            )


# Which processes capture and deliver, or are about to.

SILENT_LEADER_S = 10.0
"""After how long without a report a leader that never reported counts as one that starts."""


def capture_starts(status: Mapping[str, Any], age_s: float | None) -> bool:
    """Return whether a process is about to capture: it has the lease and has reported nothing yet,
    or it is about to take the lease for the first time.
    """
    leader = status["leader"] if "leader" in status else status.get("holder")
    if leader is None:
        return bool(status.get("starting") or (age_s is None and status.get("standbys")))
    silent = age_s is None or age_s > SILENT_LEADER_S
    return silent and (age_s is None or status.get("holder") not in (None, leader))


def pipeline_begins(status: Mapping[str, Any], output: str) -> bool:
    """Return whether a process delivers to ``output`` (``pipeline/output``), or starts to."""
    pipeline = output.partition("/")[0]
    led = any(
        row["pipeline"] == pipeline and row["leader"] for row in status.get("pipelines") or ()
    )
    return led or bool(status.get("starting_pipeline"))


def start_command(status: Mapping[str, Any]) -> str:
    """Return what starts capture, or what is about to."""
    if standbys := status.get("standbys"):
        return f"{standbys[0]['holder']} stands by: it takes over once the lease has expired."
    delivered = any(row["leader"] for row in status.get("pipelines") or ())
    run = status.get("configured_outputs") and not delivered
    return "tidelog run CONFIG" if run else "tidelog capture CONFIG"
