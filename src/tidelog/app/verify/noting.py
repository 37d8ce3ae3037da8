"""What verify found last, for status: it may have been at night."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import StateStore

KEY: Final = "verified"
NAMED: Final = 100
"""Copies that differ, of which this many are named."""


def note(state: StateStore, reports: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
    """Note when which copies were compared and differed. One that differed before stays noted until
    it is compared again, or all are (``whole``). A store that is away makes verify no failure.
    """
    compared = {f"{report['table']} in {report['output']}": report["equal"] for report in reports}
    with suppress(StateError, StateConflictError):
        before = state.get(KEY)
        differ = {} if before is None or whole else dict.fromkeys(before.value["differ"])
        for name, equal in compared.items():
            differ.pop(name, None)
            if not equal:
                differ[name] = None
        value = {
            "at_ms": int(time.time() * 1000),
            "compared": len(compared),
            "differ": sorted(differ)[:NAMED],
        }
        state.put(KEY, value, None)
