"""Which processes capture and deliver, or are about to, by the status document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
