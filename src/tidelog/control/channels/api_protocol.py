"""The interface between HTTP routes and the leading capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.control.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """What the leading capture provides to its HTTP interface. Thread-safe.

    Attributes:
        mailbox: takes commands.
        status: returns the status document, from memory.
        summary: returns `DumpCoordinator.summary` of all stored dumps.
        notifications: returns at most so many notifications after a number.
    """

    mailbox: Mailbox
    status: Callable[[], dict[str, Any]]
    summary: Callable[[], dict[str, Any]]
    notifications: Callable[[int, int], list[dict[str, Any]]]
