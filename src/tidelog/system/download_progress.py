"""What is being fetched, for whoever shows it. The first start may wait minutes for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Download:
    """Something that comes over the network.

    Attributes:
        what: its name in messages, e.g. "Delta's jars".
        come: bytes that are here.
        size: bytes of all of it; None: not known.
        done: it is here.
    """

    what: str
    come: int
    size: int | None
    done: bool

    @property
    def share(self) -> float | None:
        """How much of it is here; None: not known."""
        if self.done:
            return 1.0
        return min(0.99, self.come / self.size) if self.size else None


OnFetch = Callable[[Download], None]

_listeners: list[OnFetch] = []


@contextmanager
def report_downloads(listener: OnFetch) -> Iterator[None]:
    """While this is open, ``listener`` is told, by whatever thread fetches. What it raises ends the
    fetching.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, come: int | None, size: int | None) -> None:
    """``come``: None: all of it is here."""
    now = Download(what, size or 0 if come is None else come, size, come is None)
    for listener in tuple(_listeners):
        listener(now)
