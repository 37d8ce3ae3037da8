"""Keeps the last results of verify for the status: it may run at night."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import StateStore

KEY: Final = "verified"
NAMED: Final = 100
"""How many of the differing copies are named."""
_COUNTS: Final = ("rows", "missing", "surplus", "different", "unsettled")
KEPT: Final = 1000
"""How many results are kept: of the copies that differ, then of the newest."""


def store_results(state: StateStore, reports: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
    """Store when which copies were compared, and which differed.

    A copy that differed stays stored until it is compared again, or all are (``whole``); if verify
    has dumped all its differing keys, it is ``repaired``. A state store that fails is no failure of
    verify. ``copies``: when each was compared, whether it was
    equal, how many rows it had, how many differed, and remarks; no keys and no values.
    """
    reports, now_ms = list(reports), int(time.time() * 1000)
    compared = {f"{report['table']} in {report['output']}": report for report in reports}
    with suppress(StateError, StateConflictError):
        before = state.get(KEY)
        kept = {} if before is None or whole else before.value
        differ = set(kept.get("differ") or ()) - compared.keys()
        repaired = set(kept.get("repaired") or ()) - compared.keys()
        for name, report in compared.items():
            if not report["equal"]:
                (repaired if _is_repaired(report) else differ).add(name)
        copies = {} if before is None or whole else _copies(before.value)
        copies |= {
            f"{each['table']} in {each['output']}": _result(each, now_ms) for each in reports
        }
        newest = sorted(copies.items(), key=lambda item: (item[1]["equal"], -item[1]["at_ms"]))
        value = {
            "at_ms": now_ms,
            "compared": len(compared),
            "differ": sorted(differ)[:NAMED],
            "repaired": sorted(repaired)[:NAMED],
            "copies": [{"copy": name, **result} for name, result in newest[:KEPT]],
        }
        state.put(KEY, value, None)


def _is_repaired(report: Mapping[str, Any]) -> bool:
    """Return whether a dump of all keys that differ was accepted."""
    repair = report.get("repair") or {}
    accepted = repair.get("dump_id") and repair["error"] is None and not repair["left_out"]
    differing = sum(report.get(name) or 0 for name in ("missing", "surplus", "different"))
    return bool(accepted) and len(report["keys"]) >= differing


def _result(report: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    counts = {name: report.get(name) or 0 for name in _COUNTS}
    return {
        "at_ms": now_ms,
        "equal": report["equal"],
        **counts,
        "note": report.get("note") or "",
    }


def _copies(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stored results."""
    copies = {}
    for each in value.get("copies", ()):
        copies[each["copy"]] = {name: kept for name, kept in each.items() if name != "copy"}
    return copies
