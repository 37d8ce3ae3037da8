"""Dumps that capture itself makes wait, though nobody paused them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.capture.dumps.state_machine import DumpStatus
from tidelog.capture.generation import STATUS_KEY
from tidelog.ports import StateStore

HELD_BY: Final = "capture"


def holds_on(dump: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What holds the dump, of the status document's ``dumps_held``: each with ``why``, ``reason``
    (a sentence) and ``since_ms``. A blocking dump that has begun goes on.
    """
    waits = dump.get("status") == DumpStatus.QUEUED or (
        dump.get("status") == DumpStatus.RUNNING and dump.get("mode") != "blocking"
    )
    return list(status.get("dumps_held") or ()) if waits else []


def as_held(dump: Mapping[str, Any], holds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The dump as one that capture has paused, if there is anything that holds it."""
    if not holds:
        return dump
    since_ms = min(hold["since_ms"] for hold in holds)
    paused = {"status": DumpStatus.PAUSED, "paused_by": HELD_BY, "paused_ms": since_ms}
    return {**dump, **paused, "held": holds}


def told_holds(state: StateStore, dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`holds_on`, as the capture that leads, or led last, has told it."""
    document = state.get(STATUS_KEY)
    return [] if document is None else holds_on(dump, document.value)


def reasons(holds: Sequence[Mapping[str, Any]]) -> str:
    """Sentences, one behind the other; empty: nothing holds it."""
    return " ".join(str(hold["reason"]) for hold in holds)
