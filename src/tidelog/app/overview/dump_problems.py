"""Finds problems of dumps in the status document, and what blocks a dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.problems import (
    PAUSED_ENTRY,
    is_dump_unfinished,
    problem,
)
from tidelog.capture.dump_gate import DumpBlockCause
from tidelog.capture.dumps.state import FINISHED_TABLES, DumpStatus
from tidelog.capture.session.start import STATUS_KEY
from tidelog.model.patterns import dump_command
from tidelog.model.schema import TableName
from tidelog.model.units import brief_span
from tidelog.ports import StateStore
from tidelog.results import Problem, Severity

BLOCKED_BY: Final = "capture"
UNANSWERED_S = 10.0
"""A source that answers again within this time is no problem."""


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


def table_has_ended(table: Mapping[str, Any]) -> bool:
    """Return whether the dump's table is done, failed or cancelled."""
    return table.get("status") in FINISHED_TABLES


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
            yield problem(
                "dump-failed",
                Severity.WARNING,
                failed["table"],
                f"The dump of {failed['table']} failed: {failed['reason']}",
                dump_command(TableName.parse(failed["table"])),
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


def blocked_problems(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    """Yield what blocks all dumps."""
    if not any(is_dump_unfinished(each) for each in status.get("dumps") or ()):
        return
    for block in status.get("dumps_held") or ():
        span = brief_span(max(0, now_ms - block["since_ms"]))
        of_log = block["why"] == DumpBlockCause.LOG_PAUSED
        yield problem(
            "dumps-held",
            Severity.INFO,
            block["why"],
            f"Capture has blocked all dumps for {span}: {block['reason']}",
            "They resume when the log does."
            if of_log
            else "They resume by themselves when that is over (source.when_log_in_danger).",
            PAUSED_ENTRY if of_log else "the-sources-log-is-in-danger",
        )
