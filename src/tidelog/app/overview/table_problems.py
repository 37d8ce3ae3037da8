"""Finds problems of captured tables in the status document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.app.overview.problems import problem
from tidelog.model.units import and_more
from tidelog.results import Problem, Severity

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
