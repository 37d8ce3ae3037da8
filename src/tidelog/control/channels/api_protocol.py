"""What the capture that leads shows to programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.control.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """What a capture that leads shows. All of it thread-safe.

    Attributes:
        mailbox: where commands are put.
        status: the status document, from memory.
        summary: `DumpCoordinator.summary` of all dumps that are kept.
        notifications: those after a number, so many at most.
    """

    mailbox: Mailbox
    status: Callable[[], dict[str, Any]]
    summary: Callable[[], dict[str, Any]]
    notifications: Callable[[int, int], list[dict[str, Any]]]
