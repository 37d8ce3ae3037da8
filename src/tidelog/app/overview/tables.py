"""What an overview says of each captured table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidelog.app.overview.document import Table, TableCaptureState
from tidelog.app.overview.finished_dumps import dump_goes_on

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
