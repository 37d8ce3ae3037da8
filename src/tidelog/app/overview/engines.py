"""Finds engines in programs: which processes run them, and which have not run for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.document import EngineHealth, Problem, Severity
from tidelog.model.units import brief_span
from tidelog.ports import StateStore

GROUPS: Final = "engine-group/"
"""The key prefix of the documents of `tidelog.app.async_engine.group_members`."""
RUNS_S: Final = 120.0
"""A running engine reports more often than this."""
ABANDONED_S: Final = 7 * 86_400.0


def process_of(holder: str) -> str:
    """Return the process, host and number, of a holder's name, without its token."""
    return holder.rpartition("-")[0]


def owners_of(state: StateStore) -> dict[str, dict[str, Any]]:
    """Return ``partitions``, ``owners`` and ``seen_ms``, by engine.

    ``partitions``: the number of partitions of its keys; ``owners``: the processes that have any of
    them; ``seen_ms``: when one last reported that it runs.
    """
    result = {}
    for key in state.keys(GROUPS):
        if (document := state.get(key)) is not None:
            owners = sorted(set(map(process_of, document.value["owners"].values())))
            fields = {name: document.value.get(name) for name in ("partitions", "seen_ms")}
            result[key.removeprefix(GROUPS)] = {**fields, "owners": owners}
    return result


def engine_health(status: Mapping[str, Any], now_ms: int) -> Iterator[EngineHealth]:
    """Yield the health of each row of ``engines`` in ``status``, with its owners (`owners_of`)."""
    owners = status.get("engine_owners") or {}
    for row in status.get("engines") or ():
        engine_owners = owners.get(row["engine"]) or {}
        seen_ms = engine_owners.get("seen_ms")
        runs = seen_ms is not None and now_ms - seen_ms < RUNS_S * 1000
        yield EngineHealth(
            name=row["engine"],
            offset=row["offset"],
            behind_records=row["behind_records"],
            lag_s=row["lag_s"],
            noted_ms=row["noted_ms"],
            seen_ms=seen_ms,
            owners=tuple(engine_owners["owners"]) if runs else (),
            partitions=engine_owners.get("partitions"),
        )


def engine_problems(engines: Sequence[EngineHealth], now_ms: int) -> Iterator[Problem]:
    """Yield the engines that have not run for a week, while the event log is kept for them."""
    for each in engines:
        idle_ms = now_ms - max(each.noted_ms, each.seen_ms or 0)
        if each.behind_records and idle_ms >= ABANDONED_S * 1000:
            yield Problem(
                "engine-abandoned",
                Severity.WARNING,
                each.name,
                f"No engine {each.name} has run for {brief_span(idle_ms)}, and "
                f"{each.behind_records:,} records of the event log are kept for it.",
                f"Start it again, or give its records up:\n"
                f"tidelog forget-engine CONFIG {each.name}",
                "docs/failure-modes.md#an-engine-has-not-run-for-long",
            )
