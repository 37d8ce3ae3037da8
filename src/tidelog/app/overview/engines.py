"""Engines in programs: who runs them, by the state store, and which have not run for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.app.overview.document import EngineHealth, Problem, Severity
from tidelog.model.units import brief_span
from tidelog.ports import StateStore

GROUPS: Final = "engine-group/"
"""Before the names of the documents of `tidelog.app.async_engine.group_members`."""
RUNS_S: Final = 120.0
"""An engine says more often that it runs."""
ABANDONED_S: Final = 7 * 86_400.0


def process_of(holder: str) -> str:
    """The process of a holder of a name, which has a token behind it: host and number."""
    return holder.rpartition("-")[0]


def owners_of(state: StateStore) -> dict[str, dict[str, Any]]:
    """By engine: ``partitions``, how many its keys are divided into; ``owners``, who has any of
    them; ``seen_ms``, when one said last that it runs.
    """
    found = {}
    for key in state.keys(GROUPS):
        if (document := state.get(key)) is not None:
            owners = sorted(set(map(process_of, document.value["owners"].values())))
            told = {name: document.value.get(name) for name in ("partitions", "seen_ms")}
            found[key.removeprefix(GROUPS)] = {**told, "owners": owners}
    return found


def engine_health(status: Mapping[str, Any], now_ms: int) -> Iterator[EngineHealth]:
    """Of each row of ``engines`` in ``status``, with what `owners_of` says of it."""
    owners = status.get("engine_owners") or {}
    for row in status.get("engines") or ():
        of_name = owners.get(row["engine"]) or {}
        seen_ms = of_name.get("seen_ms")
        runs = seen_ms is not None and now_ms - seen_ms < RUNS_S * 1000
        yield EngineHealth(
            name=row["engine"],
            offset=row["offset"],
            behind_records=row["behind_records"],
            lag_s=row["lag_s"],
            noted_ms=row["noted_ms"],
            seen_ms=seen_ms,
            owners=tuple(of_name["owners"]) if runs else (),
            partitions=of_name.get("partitions"),
        )


def engine_problems(engines: Sequence[EngineHealth], now_ms: int) -> Iterator[Problem]:
    """Those that have not run for a week, while the event log is kept for them."""
    for each in engines:
        idle_ms = now_ms - max(each.noted_ms, each.seen_ms or 0)
        if each.behind_records and idle_ms >= ABANDONED_S * 1000:
            yield Problem(
                "engine-abandoned",
                Severity.WARNING,
                each.name,
                f"No engine {each.name} has run for {brief_span(idle_ms)}, and "
                f"{each.behind_records:,} records of the event log are kept for it.",
                f"Start it again, or: tidelog forget-engine CONFIG {each.name}",
                "docs/failure-modes.md#an-engine-has-not-run-for-long",
            )
