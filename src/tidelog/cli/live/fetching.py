"""Shows downloads: a bar on a terminal, else a line at the start and one at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tidelog.model.units import format_bytes
from tidelog.system.download_progress import Download, OnFetch

_CELLS = 20


def start_line(now: Download) -> str:
    """Return the line for the start of a download."""
    return f"fetches {now.what}" + (f", {format_bytes(now.size)}" if now.size else "")


def progress(now: Download) -> str:
    """Return the size so far, and the whole size if it is known."""
    come = format_bytes(now.come)
    return f"{come} of {format_bytes(now.size)}" if now.size else come


def with_bar(now: Download) -> str:
    """Return the name and the progress on one line."""
    if now.share is None:
        return f"fetches {now.what}: {progress(now)}"
    from tidelog.cli.watch.dumps import bar

    return f"fetches {now.what}: {bar(now.share, _CELLS).plain} {progress(now)}"


class DownloadLines:
    """Prints a line at the start and one at the end of each download, by ``print_line``."""

    def __init__(self, title: str, print_line: Callable[[str], None]) -> None:
        self._title = title
        self._say = print_line
        self._started: set[str] = set()

    def __call__(self, now: Download) -> None:
        if not now.done and now.what not in self._started:
            self._started.add(now.what)
            self._say(f"{self._title}: {start_line(now)}")
        elif now.done and now.what in self._started:
            self._started.discard(now.what)
            self._say(f"{self._title}: has {now.what}")


def to_stderr(title: str) -> OnFetch:
    """Return a callback that prints downloads to stderr, for commands whose stdout is a report."""

    def print_line(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    return DownloadLines(title, print_line)
