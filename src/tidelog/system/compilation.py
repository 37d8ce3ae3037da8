"""Counts compilations of kernels: a kernel's first call may take seconds, which are no query's."""

from __future__ import annotations

from functools import cache


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
            found.begun += 1

        def on_end(self, event: object) -> None:
            if found.ended < found.begun:  # else it began before the first call
                found.ended += 1

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return found


def compilations() -> int | None:
    """Return how many kernels this process has compiled; None: it compiles one now."""
    counts = _counted()
    return counts.ended if counts.ended == counts.begun else None
