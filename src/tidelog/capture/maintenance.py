"""The work that a capture session does besides reading the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.capture.activity.log import Activity


@dataclass(slots=True)
class SessionMaintenance:
    """Work besides reading the log, and its parameters.

    Attributes:
        commands: receives signals and executes waiting commands; called in a thread of its own.
        maintain: runs rollup, retention and quarantine.
        on_status: called with the status document from time to time.
        activity: counts what is appended.
        troubles: returns parts of that document: what does not work besides the log.
        look_every_s: see `tidelog.ports.StateBackend`.
    """

    commands: Callable[[], None]
    maintain: Callable[[], None]
    on_status: Callable[[dict[str, Any]], None]
    activity: Activity
    troubles: Callable[[], dict[str, Any]]
    look_every_s: float = 0.0
