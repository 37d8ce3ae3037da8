"""What is being fetched: a bar on a terminal, else a line at its beginning and one at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tidelog.model.units import format_bytes
from tidelog.system.download_progress import Download, OnFetch

_CELLS = 20


def beginning(now: Download) -> str:
    """What is said once."""
    return f"fetches {now.what}" + (f", {format_bytes(now.size)}" if now.size else "")


def progress(now: Download) -> str:
    """What changes all the while."""
    come = format_bytes(now.come)
    return f"{come} of {format_bytes(now.size)}" if now.size else come


def with_bar(now: Download) -> str:
    """Both on one line."""
    if now.share is None:
        return f"fetches {now.what}: {progress(now)}"
    from tidelog.cli.watch.dumps import bar

    return f"fetches {now.what}: {bar(now.share, _CELLS).plain} {progress(now)}"


class Lines:
    """A line at the beginning and one at the end, by ``say``."""

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title = title
        self._say = say
        self._said: set[str] = set()

    def __call__(self, now: Download) -> None:
        if not now.done and now.what not in self._said:
            self._said.add(now.what)
            self._say(f"{self._title}: {beginning(now)}")
        elif now.done and now.what in self._said:
            self._said.discard(now.what)
            self._say(f"{self._title}: has {now.what}")


def to_stderr(title: str) -> OnFetch:
    """For a command whose stdout is its report alone."""

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    return Lines(title, say)
