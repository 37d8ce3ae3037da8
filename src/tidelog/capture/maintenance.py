"""What a session of capture does beside the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.capture.activity.log import Activity


@dataclass(slots=True)
class SessionMaintenance:
    """What is done beside the log.

    Attributes:
        commands: take signals in and act on commands that wait; on a thread of their own.
        maintain: roll up, retain, quarantine.
        on_status: told the status document now and then.
        activity: counts what is appended.
        troubles: parts of that document: what does not work beside the log.
        look_every_s: see `tidelog.ports.StateBackend`.
    """

    commands: Callable[[], None]
    maintain: Callable[[], None]
    on_status: Callable[[dict[str, Any]], None]
    activity: Activity
    troubles: Callable[[], dict[str, Any]]
    look_every_s: float = 0.0
