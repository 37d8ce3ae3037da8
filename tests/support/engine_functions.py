"""Transforms and consumers for an engine's processes, which import this module and little else."""

from __future__ import annotations

import os
import time
from typing import Any

from tidelog.engine.events import Event
from tidelog.engine.ports import Message


def mark(event: Event) -> Event | None:
    """Leaves every fifth out, and tells where it ran."""
    assert event.after is not None
    if event.after["id"] % 5 == 4:
        return None
    return event.replace(after={**event.after, "note": f"by {os.getpid()}"})


def fail(event: Event) -> Event:
    raise ValueError("S3cret-value")


def die(event: Event) -> Event:
    os._exit(3)


def append(event: Any) -> None:
    """A consumer that runs in a process; the file's name is that of the event's table's log."""
    after = event.event.after if isinstance(event, Message) else event.after
    assert after is not None
    with open(os.environ["TIDELOG_TEST_FILE"], "a") as file:  # noqa: PTH123
        file.write(f"{after['id']} {os.getpid()}\n")


def hang(event: Event) -> Event:
    time.sleep(600)
    return event
