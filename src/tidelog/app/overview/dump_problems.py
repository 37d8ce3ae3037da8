"""What holds dumps up, or made them fail."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.document import Problem, Severity, problem
from tidelog.capture.dumps.state_machine import FINISHED, UNFINISHED, DumpStatus
from tidelog.capture.generation import STATUS_KEY
from tidelog.ports import StateStore

HELD_BY: Final = "capture"


def holds_on(dump: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What holds the dump, of the status document's ``dumps_held``: each with ``why``, ``reason``
    (a sentence) and ``since_ms``. A blocking dump that has begun goes on.
    """
    waits = dump.get("status") == DumpStatus.QUEUED or (
        dump.get("status") == DumpStatus.RUNNING and dump.get("mode") != "blocking"
    )
    return list(status.get("dumps_held") or ()) if waits else []


def as_held(dump: Mapping[str, Any], holds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The dump as one that capture has paused, if there is anything that holds it."""
    if not holds:
        return dump
    since_ms = min(hold["since_ms"] for hold in holds)
    paused = {"status": DumpStatus.PAUSED, "paused_by": HELD_BY, "paused_ms": since_ms}
    return {**dump, **paused, "held": holds}


def told_holds(state: StateStore, dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`holds_on`, as the capture that leads, or led last, has told it."""
    document = state.get(STATUS_KEY)
    return [] if document is None else holds_on(dump, document.value)


def reasons(holds: Sequence[Mapping[str, Any]]) -> str:
    """Sentences, one behind the other; empty: nothing holds it."""
    return " ".join(str(hold["reason"]) for hold in holds)


def dump_goes_on(dump: Mapping[str, Any]) -> bool:
    """Is the dump queued, running or paused?"""
    return dump.get("status") in UNFINISHED


def table_has_ended(table: Mapping[str, Any]) -> bool:
    """Is the dump's table done, failed or cancelled?"""
    return table.get("status") in FINISHED


NO_KEY = "no primary key"
UNANSWERED_S = 10.0
"""A source that answers within so long is asked again without a word."""


def dump_problems(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    """Of dumps, and of the looks at the catalogue that ask for them."""
    yield from _unanswered(status, now_ms)
    yield from _dumps(status)


def _unanswered(status: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    dumping = any(dump.get("status") == "running" for dump in status.get("dumps") or ())
    for key, asked, said in (
        ("chunks_unanswered", dumping, "Dumps read nothing"),
        ("looks_unanswered", True, "The catalogue is not read: changed tables are seen late"),
    ):
        found = status.get(key)
        if asked and found and now_ms - found["since_ms"] >= UNANSWERED_S * 1000:
            yield problem(
                key.replace("_", "-"),
                Severity.WARNING,
                "",
                f"{said}: {found['error']}",
                "It is tried again by itself; tidelog check CONFIG tells more.",
                "the-source-refuses-more-connections",
            )


def _dumps(status: Mapping[str, Any]) -> Iterator[Problem]:
    for each in status.get("to_repeat") or ():
        yield problem(
            "dump-failed",
            Severity.WARNING,
            each["table"],
            f"The dump of {each['table']} failed: {each['failed']}",
            "It is tried again by itself.",
            "an-automatic-dump-failed",
        )
    for each in status.get("waiting") or ():
        yield problem(
            "dump-waits",
            Severity.INFO,
            str(each.get("table", "")),
            f"The dump of {each.get('table')} waits for an old transaction.",
            "Capture's log says which; it goes on when that ends.",
            "an-automatic-dump-waits-for-an-old-transaction",
        )
    told = {
        each["table"]
        for found in ("to_repeat", "refused", "inserts_only")
        for each in status.get(found) or ()
    }
    for failed in status.get("failed") or ():
        if failed["table"] not in told:
            yield problem(
                "dump-failed",
                Severity.WARNING,
                failed["table"],
                f"The dump of {failed['table']} failed: {failed['reason']}",
                ""  # which says what to do
                if NO_KEY in failed["reason"]
                else f"tidelog dump CONFIG --table {shlex.quote(failed['table'])}",
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
        for table in dump.get("tables") or () if dump_goes_on(dump) else ():
            if table.get("failed_ranges"):
                yield problem(
                    "rows-unread",
                    Severity.WARNING,
                    table["table"],
                    f"{table['failed_ranges']} key ranges of {table['table']} could not be read.",
                    "tidelog status CONFIG --ranges names them; dump the table again once they "
                    "can be.",
                    "a-key-range-could-not-be-read",
                )
