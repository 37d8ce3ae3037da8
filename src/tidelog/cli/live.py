"""Redraws lines of a terminal in place: changing facts, and downloads.

Lines of stderr appear above them. They come from this process, and from Spark's Java and Python
workers, which write to the file descriptor and not to ``sys.stderr``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from tidelog.cli import terminal
from tidelog.model.units import format_bytes
from tidelog.system.download_progress import Download, OnFetch

if TYPE_CHECKING:
    from rich.text import Text


# Downloads: a bar on a terminal, else a line at the start and one at the end.

_CELLS = 20


def download_start(now: Download) -> str:
    """Return the line for the start of a download."""
    return f"fetches {now.what}" + (f", {format_bytes(now.size)}" if now.size else "")


def progress_text(now: Download) -> str:
    """Return the size so far, and the whole size if it is known."""
    come = format_bytes(now.come)
    return f"{come} of {format_bytes(now.size)}" if now.size else come


def download_bar(now: Download) -> str:
    """Return the name and the progress on one line."""
    if now.share is None:
        return f"fetches {now.what}: {progress_text(now)}"
    from tidelog.cli.watch.lines import bar

    return f"fetches {now.what}: {bar(now.share, _CELLS).plain} {progress_text(now)}"


class DownloadLines:
    """Prints a line at the start and one at the end of each download, by ``print_line``."""

    def __init__(self, title: str, print_line: Callable[[str], None]) -> None:
        self._title = title
        self._say = print_line
        self._started: set[str] = set()

    def __call__(self, now: Download) -> None:
        if not now.done and now.what not in self._started:
            self._started.add(now.what)
            self._say(f"{self._title}: {download_start(now)}")
        elif now.done and now.what in self._started:
            self._started.discard(now.what)
            self._say(f"{self._title}: has {now.what}")


def downloads_to_stderr(title: str) -> OnFetch:
    """Return a callback that prints downloads to stderr, for commands whose stdout is a report."""

    def print_line(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    return DownloadLines(title, print_line)


# Lines that are redrawn, and other lines above them.

_HIDE, _SHOW = "\033[?25l", "\033[?25h"
_OTHER_SCREEN, _BACK = "\033[?1049h", "\033[?1049l"
_CLEAR, _HOME, _CLEAR_LINE, _CLEAR_REST = "\033[2J", "\033[H", "\033[2K", "\033[J"
_KEPT_LINES = 200


def can_be_redrawn(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can do more than print."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class LiveArea:
    """The lines of a terminal that are redrawn. A context manager; thread-safe.

    Args:
        stream: a terminal (`can_be_redrawn`).
        whole: whether to use the whole terminal, and restore it at the end; else its last lines.
    """

    def __init__(self, stream: TextIO, *, whole: bool) -> None:
        from rich.console import Console

        self._stream = stream
        self._whole = whole
        self._console = Console(file=stream, highlight=False, force_terminal=True)
        self._lock = threading.RLock()
        self._shown: list[str] = []
        self._drawn_size = (0, 0)
        self._above: deque[str] = deque(maxlen=_KEPT_LINES)
        self._open = self._terminal_lost = False

    def size(self) -> tuple[int, int]:
        """Return the number of columns, and of lines that may be drawn."""
        columns, lines = self._console.size
        return columns, lines if self._whole else max(1, lines - 1)

    def __enter__(self) -> LiveArea:
        self._open = True
        terminal.before_exit.append(self._restore)
        self._write(f"{_OTHER_SCREEN if self._whole else ''}{_HIDE}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            if not self._open:
                return
            self._restore()
            terminal.before_exit.remove(self._restore)
            self._open = False
            for line in self._above:
                self._write(f"{line}\r\n")

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the lines by these, cut off at the terminal's edges."""
        columns, room = self.size()
        texts = [self._render_line(line, columns) for line in lines[:room]]
        with self._lock:
            if not self._open:
                return
            before = self._drawn_size
            # A terminal that became narrower has wrapped the longer lines: where they start is
            # unknown.
            renewed = self._shown and (columns < before[0] or room < before[1])
            start = f"{_CLEAR}{_HOME}" if renewed else self._to_start()
            self._drawn_size, self._shown = (columns, room), texts
            self._write(start + self._picture())

    def above(self, line: str) -> None:
        """Print a line that stays; with ``whole``, when the area is closed."""
        with self._lock:
            if not self._open:
                self._write(f"{line}\r\n")
            elif self._whole:
                self._above.append(line)
            else:
                self._write(f"{self._to_start()}{_CLEAR_REST}{line}\r\n{self._picture()}")

    def _to_start(self) -> str:
        if self._whole:
            return _HOME
        up = len(self._shown)
        return f"\r\033[{up}A" if up else "\r"

    def _picture(self) -> str:
        """Return the lines, each cleared first: after the last column, clearing would remove it,
        too.
        """
        # the end of the last line would scroll the whole screen
        end = "" if self._whole else "\r\n"
        lines = "\r\n".join(f"{_CLEAR_LINE}{text}" for text in self._shown)
        return f"{lines}{end if self._shown else ''}{_CLEAR_REST}"

    def _render_line(self, line: Text, columns: int) -> str:
        line = line.copy()
        line.truncate(columns, overflow="ellipsis")
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _restore(self) -> None:
        self._write(f"{self._to_start()}{_CLEAR_REST}{_BACK if self._whole else ''}{_SHOW}")
        self._shown = []

    def _write(self, text: str) -> None:
        if self._terminal_lost:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._terminal_lost = True  # the process must not end because the terminal is gone


# Lines of stderr.

_STDERR = 2
_END = b"\0tidelog-end\n"
_PATIENCE_S = 1.0


class StderrLines:
    """Passes lines of stderr to ``say`` while it is open, if stderr is a terminal.

    A context manager.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._original: int | None = None
        self._ended = threading.Event()

    def __enter__(self) -> StderrLines:
        if os.isatty(_STDERR):
            sys.stderr.flush()
            self._original = os.dup(_STDERR)
            read, write = os.pipe()
            os.dup2(write, _STDERR)
            os.close(write)
            threading.Thread(target=self._forward, args=(read,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._original is None:
            return
        sys.stderr.flush()
        os.write(_STDERR, _END)
        os.dup2(self._original, _STDERR)
        self._ended.wait(_PATIENCE_S)

    def _forward(self, read: int) -> None:
        """Forward lines until the last process that has this stderr has ended."""
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                if line.endswith(_END):
                    line, _, _ = line.partition(_END)
                    self._ended.set()
                    if not line:
                        continue
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if not self._ended.is_set():
                    self._say(text)
                elif self._original is not None:
                    os.write(self._original, f"{text}\n".encode())


# Facts: redrawn in place, as plain lines, or as JSON.

Facts = Callable[[Mapping[str, Any]], list[tuple[str, str, float | None]]]
"""Returns the facts of a document: name, text, and the share done, where a bar shall show it."""


@contextmanager
def live_facts(
    title: str, facts: Facts, *, as_json: bool, quiet: bool = False, error: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that shows the documents that it is called with.

    Args:
        title: the start of each plain line.
        facts: returns the facts of a document; when the first one changes, a plain line is printed
            at once.
        as_json: whether to print whole documents as lines of JSON.
        quiet: whether to print nothing.
        error: whether plain lines go to stderr: stdout has the report alone.
    """
    with ExitStack() as opened:
        area = None
        if not (as_json or quiet) and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        due, first = 0.0, ""

        def show(document: Mapping[str, Any]) -> None:
            nonlocal due, first
            if quiet:
                return
            if as_json:
                terminal.emit(document)
                return
            shown = facts(document)
            if area is not None:
                area.draw(fact_lines(shown, area.size()[0]))
            elif time.monotonic() >= due or shown[0][1] != first:
                due, first = time.monotonic() + terminal.PLAIN_INTERVAL_S, shown[0][1]
                line = f"{title}: {'; '.join(text for _, text, _ in shown)}"
                terminal.print_line(line, error=error)

        yield show


def fact_lines(shown: list[tuple[str, str, float | None]], width: int) -> list[Text]:
    """Return the facts as lines of ``width`` columns."""
    from tidelog.cli.watch.lines import bar, fact

    lines = []
    for name, text, share in shown:
        its = fact(name, text, width)
        if share is not None and its[-1].cell_len + _CELLS + 2 <= width:
            its[-1].append("  ").append_text(bar(share, _CELLS))
        lines += its
    return lines
