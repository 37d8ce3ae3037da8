"""Finds problems of the source, its log and its captured tables in the status document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.app.overview.problems import (
    LATE_S,
    PAUSED_ENTRY,
    paused_text,
    problem,
    span_of,
)
from tidelog.capture.log_guard import NEARLY_FULL, DangerKind, RetainedLog, danger_of
from tidelog.model.units import and_more, brief_span, format_bytes
from tidelog.results import Problem, Severity, SourceHealth

LEFT_OUT_S = 86_400.0
"""How long tables that are no longer captured, or were renamed, are reported."""
UNLOGGED_S = 3_600.0
"""How long changes without row events are reported."""
COLUMNS_NAMED = 5
"""Number of left out columns that are named, of many."""


def table_problems(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    """Yield the problems of tables that are not, or not wholly, captured."""
    all_left = status.get("left_out") or ()
    left = [each for each in all_left if now_ms - each["since_ms"] < LEFT_OUT_S * 1000]
    if left:
        more = and_more(len(left) - 1, "table")
        yield problem(
            "no-longer-captured",
            Severity.INFO,
            left[0]["table"],
            f"{left[0]['table']}{more} {'are' if more else 'is'} no longer captured.",
            "If that is wrong, select it in source.tables again: it is dumped then.",
            "a-table-is-no-longer-captured",
        )
    for each in status.get("renamed") or ():
        if now_ms - each["at_ms"] < LEFT_OUT_S * 1000:
            old, now = each["table"], each["now"]
            sentence = f"{old} was renamed to {now}: its copies get no more changes"
            remedy = f"Read the copies of {now}, and delete those of {old}."
            if not each.get("captured", True):
                sentence += f", and {now} is not captured"
                remedy = f"If {now} is to be copied, select it in source.tables: it is dumped then."
            yield problem(
                "table-renamed", Severity.INFO, old, f"{sentence}.", remedy, "a-table-was-renamed"
            )
    yield from _left_out_columns(status.get("left_out_columns") or ())
    yield from _unlogged(status.get("unlogged") or (), now_ms)
    for kind, section in (("table-refused", "refused"), ("inserts-only", "inserts_only")):
        alike: dict[tuple[bool, str, str], list[str]] = {}
        for each in status.get(section) or ():
            cause = bool(each.get("only_dumps")), each["reason"], each.get("remedy") or ""
            alike.setdefault(cause, []).append(each["table"])
        for (only_dumps, reason, remedy), (name, *others) in alike.items():
            effect = "not captured" if kind == "table-refused" else "captured in part"
            if only_dumps:
                effect = "captured, but not dumped"
            more = and_more(len(others), "table")
            yield problem(
                kind,
                Severity.WARNING,
                name,
                f"{name}{more} {'are' if more else 'is'} {effect}: {reason}",
                remedy,
                "a-table-is-refused",
            )


def _unlogged(tables: Sequence[Mapping[str, Any]], now_ms: int) -> Iterator[Problem]:
    """One problem for all tables, as a statement without a known table concerns all."""
    differing = [each for each in tables if not each["dumped"]]
    recent = [each for each in tables if now_ms - each["at_ms"] < UNLOGGED_S * 1000]
    if not differing and not recent:
        return
    first, *more = differing or recent
    who = first["table"] + and_more(len(more), "table")
    effect = "may differ from the source until the dump that is due has been delivered"
    if not differing:
        effect = "had changes that outputs of changes will never get; the rows were dumped again"
    yield problem(
        "rows-unlogged",
        Severity.WARNING if differing else Severity.INFO,
        first["table"],
        f"{who} {effect}: {first['reason']}",
        first["remedy"],
        "rows-changed-without-a-trace-in-the-log",
    )


def _left_out_columns(tables: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    if not tables:
        return
    first, columns = tables[0]["table"], tables[0]["columns"]
    named = ", ".join(columns[:COLUMNS_NAMED]) + (", …" if len(columns) > COLUMNS_NAMED else "")
    more = and_more(len(tables) - 1, "table")
    who = f"{first}{more} {'are' if more else 'is'}"
    if more:
        named = f"{first}: {named}"
    remedy = tables[0]["remedy"]
    yield problem(
        "columns-left-out",
        Severity.INFO,
        first,
        f"{who} captured without generated columns ({named}): {tables[0]['reason']}.",
        remedy[:1].upper() + remedy[1:],
        "generated-columns-are-left-out",
    )


WORTH_A_WARNING = 0.4
"""The share of the log the server may keep above which a pause is a warning.

Above `NEARLY_FULL` it is critical.
"""


def source_problems(
    status: Mapping[str, Any], source: SourceHealth, now_ms: int
) -> Iterator[Problem]:
    """Yield the problems of the source: how late it is, what the server keeps, and its pause."""
    retained = _retained_log(status, source)
    yield from _of_source(status, source)
    yield from _retention(source, retained)
    yield from _log_pause(status, source, retained, now_ms)


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
    parts = [f"The log is {paused_text(pause, now_ms)}"]
    if source.lag_s:
        parts.append(f"capture is {brief_span(source.lag_s * 1000)} behind")
    if source.retained_bytes is not None:
        keeps = f"the server keeps {format_bytes(source.retained_bytes)} of log for it"
        if source.spare_bytes is not None:
            keeps += f", with room for {format_bytes(max(0, source.spare_bytes))} more"
        parts.append(keeps)
    elif retained.kept_s is not None:
        parts.append(f"the server removes its log after {brief_span(retained.kept_s * 1000)}")
    yield problem(
        "log-reading-paused",
        severity,
        "",
        "; ".join(parts) + ".",
        "tidelog resume CONFIG --log",
        PAUSED_ENTRY,
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
            f"Capture is {span_of(source.lag_s)}{behind} behind the database.",
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


def channel_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the channels of commands and notifications that fail."""
    for each in status.get("channels") or ():
        yield problem(
            "channel-fails",
            Severity.WARNING,
            each["channel"],
            f"{each['reason']}.",
            each["remedy"],
            "a-channel-fails",
        )


def check_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the errors of capture's own check that no other problem is about."""
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
