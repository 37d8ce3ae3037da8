"""Looks at the catalogue that others' locks keep waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tidelog.errors import SourceBusyError
from tidelog.sources.postgres.errors import translated

BUSY_S = 30.0
TURN_S = 0.05

_Found = TypeVar("_Found")


def when_free(doing: str, look: Callable[[], _Found], *, meanwhile: Callable[[], None]) -> _Found:
    """What ``look`` finds. A lock that others hold is waited for in short turns, with ``meanwhile``
    between them: our sessions give way before a deadlock is noticed.

    Raises SourceBusyError if it lasts.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            with translated(doing):
                return look()
        except SourceBusyError:
            if time.monotonic() > deadline:
                raise
            meanwhile()
            time.sleep(TURN_S)
