"""Reports downloads to listeners: the first start may wait minutes for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Download:
    """The progress of a download.

    Attributes:
        what: its name in messages, e.g. "Delta's jars".
        come: the bytes received.
        size: the bytes of the whole; None: not known.
        done: whether it is complete.
    """

    what: str
    come: int
    size: int | None
    done: bool

    @property
    def share(self) -> float | None:
        """The share received; None: not known."""
        if self.done:
            return 1.0
        return min(0.99, self.come / self.size) if self.size else None


OnFetch = Callable[[Download], None]

_listeners: list[OnFetch] = []


@contextmanager
def report_downloads(listener: OnFetch) -> Iterator[None]:
    """Call ``listener`` for downloads while this is open, from the downloading thread. An exception
    of the listener ends the download.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_progress(what: str, come: int | None, size: int | None) -> None:
    """Report progress. ``come``: the bytes received; None: all of it."""
    now = Download(what, size or 0 if come is None else come, size, come is None)
    for listener in tuple(_listeners):
        listener(now)
