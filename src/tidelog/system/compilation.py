"""Counts compilations of kernels: a kernel's first call may take seconds, which are no query's."""

from __future__ import annotations

from typing import Any

from numba.core import event


class _Compilations(event.Listener):
    """Numba's events; it compiles one kernel at a time. One that it finds in its cache is none."""

    begun = ended = 0

    def on_start(self, event: Any) -> None:
        self.begun += 1

    def on_end(self, event: Any) -> None:
        self.ended += 1


_compilations = _Compilations()
event.register("numba:compile", _compilations)  # type: ignore[no-untyped-call]


def compilations() -> tuple[int, int]:
    """Return how many kernels of this process were begun to compile, and how many are compiled."""
    return _compilations.begun, _compilations.ended
