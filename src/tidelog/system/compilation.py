"""Counts and reports compilations of kernels: a kernel's first call may take seconds, which are no
query's.
"""

from __future__ import annotations

import logging
import threading
from functools import cache

from tidelog.errors import UsageError

logger = logging.getLogger(__name__)
_importing = threading.Lock()  # two threads that import Numba at a time find half of it


class _Compilations:
    begun = ended = 0


@cache
def _counted() -> _Compilations:
    """Return the counts from the first call on. Numba is imported here, because a command without
    a kernel does without it.
    """
    from numba.core import event

    found = _Compilations()

    class Listener(event.Listener):
        """Numba compiles one kernel at a time. One that it finds in its cache is no event."""

        def on_start(self, event: object) -> None:
            if not found.begun:
                logger.warning(
                    "compiles Tidelog's inner loops for this computer and keeps them: the first "
                    "start takes up to a minute longer"
                )
            found.begun += 1

        def on_end(self, event: object) -> None:
            if found.ended < found.begun:  # else it began before the first call
                found.ended += 1

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return found


def cache_error(text: str) -> UsageError | None:
    """Return the error to raise for one of Numba with this text, if it finds no cache."""
    if "no locator available" not in text:
        return None
    return UsageError(
        "compiled code can be kept nowhere: this user may write to neither Tidelog's folders nor "
        "~/.cache; set NUMBA_CACHE_DIR to a folder that it may write to"
    )


def compilations() -> int | None:
    """Return how many kernels this process has compiled; None: it compiles one now."""
    with _importing:
        counts = _counted()
    return counts.ended if counts.ended == counts.begun else None
