"""The constructor of problems, and what their rules share. Each rule reads the status document.

The rules are in the modules beside this one, by subject; `tidelog.app.overview.build` calls them. A
remedy is what a person would do next. The page is the entry of docs/failure-modes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.capture.dumps.state import UNFINISHED_DUMPS
from tidelog.model.units import brief_span
from tidelog.results import Problem, Severity

LATE_S = 300.0
PAUSED_ENTRY: Final = "something-is-paused-and-was-forgotten"


def problem(
    kind: str, severity: Severity, about: str, sentence: str, remedy: str, entry: str
) -> Problem:
    """Return a problem. ``entry``: the anchor in docs/failure-modes.md."""
    sentence = " ".join(sentence.split())  # a driver's message may have several lines
    return Problem(kind, severity, about, sentence, remedy, f"docs/failure-modes.md#{entry}")


def span_of(seconds: float) -> str:
    """Return the seconds as users read them."""
    return brief_span(int(seconds * 1000))


def paused_text(pause: Mapping[str, Any], now_ms: int) -> str:
    """Return for how long something is paused, and by whom."""
    by = f" by {pause['by']}" if pause.get("by") else ""
    return f"paused{by} for {brief_span(max(0, now_ms - pause['since_ms']))}"


def is_dump_unfinished(dump: Mapping[str, Any]) -> bool:
    """Return whether the dump is queued, running or paused."""
    return dump.get("status") in UNFINISHED_DUMPS


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
