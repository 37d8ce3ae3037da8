"""Fits rows into a terminal of any size, redraws its lines in place with Rich, prints other lines
above them, and reads keys.

Lines of stderr appear above, too. They come from this process, and from Spark's Java and Python
workers, which write to the file descriptor and not to ``sys.stderr``.
"""

from __future__ import annotations

import io
import os
import select
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from tidelog.cli import terminal
from tidelog.cli.status_lines import MORE, NAME_COLUMNS, REMEDY, ScreenRow
from tidelog.cli.terminal import SIGNS
from tidelog.model.units import format_bytes, printable
from tidelog.system.download_progress import Download, OnFetch

if TYPE_CHECKING:
    from rich.text import Text

CELLS = 20
"""The cells of a bar."""
_FULL, _EMPTY = "█", "░"
_SPARKS = " ▁▂▃▄▅▆▇█"
_SIGNS = {sign for _, sign in SIGNS.values()}
_CONSOLE = Console(width=80, highlight=False)
_NARROWEST = 20


def fit_rows(rows: Sequence[ScreenRow], width: int, height: int, config: str = "") -> list[Text]:
    """Return the lines of the rows in their order, at most ``height``; the lowest ranks first.

    ``config``: where something is left out, the last line names `tidelog status` with this
    configuration; empty: it does not.
    """
    drawn = [draw_row(row, width) for row in rows]
    total = sum(map(len, drawn))
    room = height - bool(config and total > height)
    by_rank = sorted(range(len(rows)), key=lambda at: rows[at].rank)
    given = [0] * len(rows)
    for wishes in ([row.least for row in rows], [height] * len(rows)):
        for at in by_rank:
            more = max(0, min(room, wishes[at], len(drawn[at]) - given[at]))
            given[at] += more
            room -= more
    shown: list[Text] = []
    for lines, count in zip(drawn, given, strict=True):
        shown += lines[:count]
        if 0 < count < len(lines):
            shown[-1].truncate(width - 1, overflow="crop")
            shown[-1].append("…")
    if config and total > height:
        left = total - len(shown)
        shown.append(Text(f"  … {left} more lines: tidelog status {config}", style="dim"))
    return shown[:height]


def print_rows(rows: Sequence[ScreenRow], config: str) -> None:
    """Print the rows on a terminal; those that do not fit are left out."""
    console = terminal.console()
    for line in fit_rows(rows, console.width, console.height - 1, f"{config} | more"):
        console.print(line, soft_wrap=True)


def draw_row(row: ScreenRow, width: int, columns: int = NAME_COLUMNS) -> list[Text]:
    """Return the lines of a row; ``columns``: of its name. Further lines are indented likewise."""
    indent, first = columns, Text(f"{row.name:<{columns}}", style="dim")
    if row.name in _SIGNS:
        indent, first = 2, Text(f"{row.name} ", style=row.style)
    elif row.name in (REMEDY, MORE):
        indent, first = 4, Text(f"  {row.name} ", style="dim")
    text = row.text if isinstance(row.text, Text) else Text(printable(row.text), row.style)
    if row.share is not None:
        text = text.copy().append("  ").append_text(bar(row.share))
    room = width - indent - (len(row.beside) + 2 if row.beside else 0)
    lines = list(text.wrap(_CONSOLE, max(_NARROWEST, room)))
    drawn = [
        Text.assemble(" " * indent if at else first, line, no_wrap=True, overflow="ellipsis")
        for at, line in enumerate(lines)
    ]
    if row.beside:
        space = width - drawn[0].cell_len - len(row.beside)
        drawn[0].append(" " * space).append(row.beside, "dim")
    return drawn


def unwrapped(text: str | Text, style: str = "") -> Text:
    """Return a text that is cut off at the end of its line."""
    return Text("", style=style, no_wrap=True, overflow="ellipsis").append(text)


def rendered_lines(picture: RenderableType, width: int) -> list[Text]:
    """Return the lines of a Rich renderable, such as a table."""
    lines = _CONSOLE.render_lines(picture, _CONSOLE.options.update(width=width), pad=False)
    return [
        unwrapped(Text.assemble(*((part.text, part.style or "") for part in line)))
        for line in lines
    ]


def bar(share: float, cells: int = CELLS, style: str = "cyan") -> Text:
    """Return a bar of ``cells`` cells, filled by ``share``; full only at the end."""
    full = cells if share >= 1 else min(cells - 1, int(share * cells))
    return Text(_FULL * full, style=style).append(_EMPTY * (cells - full), style="dim")


def sparks(values: Sequence[float], style: str) -> Text:
    """Return a character for each value, as high as its share of the greatest one."""
    most = max(values, default=0.0)
    bars = (_SPARKS[round(value / most * 8)] if most else _SPARKS[0] for value in values)
    return Text("".join(bars), style=style)


_KEPT_LINES = 200


def can_be_redrawn(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can do more than print."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class LiveArea:
    """The lines of a terminal that are redrawn until it is closed; thread-safe.

    Args:
        stream: a terminal (`can_be_redrawn`).
        whole: whether to use the whole terminal, and restore it at the end; else its last lines.
    """

    def __init__(self, stream: TextIO, *, whole: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # it may have no signs for bars
        self._console = Console(file=stream, highlight=False, force_terminal=True)
        self._live = Live(
            console=self._console,
            screen=whole,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._whole = whole
        self._lock = threading.RLock()
        self._drawn_size = (0, 0)
        self._drawn: Text | None = None
        self._above: deque[str] = deque(maxlen=_KEPT_LINES)
        self._terminal_lost = False
        with self._writing():
            self._live.start()

    def size(self) -> tuple[int, int]:
        """Return the number of columns, and of lines that may be drawn."""
        columns, lines = self._console.size
        return columns, lines if self._whole else max(1, lines - 1)

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the lines by these, cut off at the terminal's edges."""
        from rich.text import Text

        columns, room = self.size()
        picture = Text("\n", no_wrap=True, overflow="ellipsis").join(lines[:room])
        with self._writing():
            if not self._live.is_started or self._terminal_lost:
                return
            if picture == self._drawn and self._drawn_size == (columns, room):
                return
            if columns < self._drawn_size[0] or room < self._drawn_size[1]:
                self._console.clear()  # it has wrapped lines: where they start is unknown
            self._drawn, self._drawn_size = picture, (columns, room)
            self._live.update(picture, refresh=True)

    def above(self, line: str) -> None:
        """Print a line that stays; with ``whole``, when the area is closed."""
        from rich.text import Text

        with self._writing():
            if self._whole and self._live.is_started:
                self._above.append(line)
            elif not self._terminal_lost:
                self._console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back, without the lines."""
        with self._writing():
            self._live.update("")  # else Rich draws it once more, as high as it is
            if self._whole and self._live.is_started:
                self._console.clear()
            self._live.stop()
            while self._above:
                self.above(self._above.popleft())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock; the process must not end because its terminal is gone."""
        with self._lock:
            try:
                yield
            except OSError:
                self._terminal_lost = True


@contextmanager
def live_area(*, whole: bool = False, wanted: bool = True) -> Iterator[LiveArea | None]:
    """Open a `LiveArea` on stdout, with lines of stderr above it; None: that can't be redrawn."""
    if not wanted or not can_be_redrawn(sys.stdout):
        yield None
        return
    area = LiveArea(sys.stdout, whole=whole)
    with terminal.restored_at_exit(area.close), _stderr_lines(area.above):
        yield area


_STDERR = 2
_END = b"\0tidelog-end\n"
_PATIENCE_S = 1.0


@contextmanager
def _stderr_lines(print_line: Callable[[str], None]) -> Iterator[None]:
    """Pass lines of stderr to ``print_line`` while it is open, if stderr is a terminal."""
    if not os.isatty(_STDERR):
        yield
        return
    ended = threading.Event()
    sys.stderr.flush()
    original = os.dup(_STDERR)
    read, write = os.pipe()
    os.dup2(write, _STDERR)
    os.close(write)

    def forward() -> None:
        """Forward lines until the last process that has this stderr has ended."""
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                text, end, _ = line.partition(_END)
                if text and ended.is_set():
                    os.write(original, text)
                elif text:
                    print_line(text.decode("utf-8", "replace").rstrip("\r\n"))
                if end:
                    ended.set()

    threading.Thread(target=forward, daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.write(_STDERR, _END)
        os.dup2(original, _STDERR)
        ended.wait(_PATIENCE_S)


# Single keys, without Enter. Rich reads none.

_NAMED: Final = {
    "\033[A": "up", "\033[B": "down", "\033[C": "right", "\033[D": "left",
    "\033OA": "up", "\033OB": "down", "\033OC": "right", "\033OD": "left",
}  # fmt: skip


class KeyPresses:
    """Reads keys from the terminal while in the foreground; Ctrl-C stays a signal."""

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._saved_mode: list[Any] | None = None

    def pressed(self, timeout_s: float) -> list[str]:
        """Return the keys that were pressed: characters, or ``up``, ``left``, …

        Waits at most ``timeout_s`` for the first one.
        """
        if not self._take_terminal():
            time.sleep(timeout_s)
            return []
        ready, _, _ = select.select([self._terminal], [], [], timeout_s)
        if not ready:
            return []
        try:
            read = os.read(self._terminal, 64)
        except OSError:
            read = b""
        if not read:  # the terminal is gone
            self._terminal = -1
        return list(_split_keys(read.decode("utf-8", "replace")))

    def _take_terminal(self) -> bool:
        """Return whether keys may be read, and have the terminal pass them one by one.

        A process that reads from the background would be stopped. A shell that brings a process
        back to the foreground has changed the terminal's mode.
        """
        try:
            if self._terminal < 0 or os.tcgetpgrp(self._terminal) != os.getpgrp():
                return False
            mode = termios.tcgetattr(self._terminal)
            if mode[3] & termios.ICANON:
                self._saved_mode = mode
                tty.setcbreak(self._terminal, termios.TCSANOW)
        except (OSError, termios.error):
            self._terminal = -1
            return False
        return True

    def close(self) -> None:
        """Give the terminal back."""
        mode, self._saved_mode = self._saved_mode, None
        try:
            if mode is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, mode)
        except (OSError, termios.error):
            pass  # the terminal is gone


def _split_keys(text: str) -> Iterator[str]:
    while text:
        code = next((code for code in _NAMED if text.startswith(code)), None)
        yield _NAMED[code] if code else text[0]
        text = text[len(code or text[0]) :]


CONFIRM_KEY = "y"
"""The key that confirms `View.question`; any other one drops it."""
_ARROWS: Final = {
    "left": ("dump", -1), "right": ("dump", 1), "up": ("scroll", -1), "down": ("scroll", 1),
}  # fmt: skip


@dataclass(slots=True)
class View:
    """The user's choices of what to show, changed by keys.

    Attributes:
        config: the configuration's file, for commands to type.
        has_keys: whether keys do something.
        dump: the index of the unfinished dump that is shown with its tables.
        scroll: how many of its tables are skipped.
        windows, words: whether they are shown.
        note: the result of the last key.
        question: what `y` confirms; empty: nothing waits for it.
        quits: whether `q` ends the process: it shows the view, and does nothing else.
        here: what this process does besides capturing and delivering, by part.
        starting: whether it has just started.
    """

    config: str = "CONFIG"
    has_keys: bool = True
    dump: int = 0
    scroll: int = 0
    windows: bool = False
    words: bool = False
    note: str = ""
    question: str = ""
    quits: bool = True
    here: dict[str, str] = field(default_factory=dict)
    starting: bool = False

    def press(self, key: str) -> bool:
        """Handle a key that changes what is shown; return False if it is another one."""
        self.note = ""
        if key == CONFIRM_KEY and self.question:
            return False
        self.question = ""
        if key in _ARROWS:
            name, step = _ARROWS[key]
            setattr(self, name, max(0, getattr(self, name) + step))
        elif key == "?":
            self.words = not self.words
        elif key == "w":
            self.windows = not self.windows
        else:
            return False
        return True


# Downloads: a bar on a terminal, else a line at the start and one at the end.


def progress_text(now: Download) -> str:
    """Return the size so far, and the whole size if it is known."""
    come = format_bytes(now.come)
    return f"{come} of {format_bytes(now.size)}" if now.size else come


def download_bar(now: Download) -> str:
    """Return the name and the progress on one line."""
    cells = "" if now.share is None else f"{bar(now.share).plain} "
    return f"fetches {now.what}: {cells}{progress_text(now)}"


class DownloadLines:
    """Prints a line at the start and one at the end of each download, by ``print_line``."""

    def __init__(self, title: str, print_line: Callable[[str], None]) -> None:
        self._title = title
        self._say = print_line
        self._started: set[str] = set()

    def __call__(self, now: Download) -> None:
        if not now.done and now.what not in self._started:
            self._started.add(now.what)
            size = f", {format_bytes(now.size)}" if now.size else ""
            self._say(f"{self._title}: fetches {now.what}{size}")
        elif now.done and now.what in self._started:
            self._started.discard(now.what)
            self._say(f"{self._title}: has {now.what}")


def downloads_to_stderr(title: str) -> OnFetch:
    """Return a callback that prints downloads to stderr, for commands whose stdout is a report."""
    return DownloadLines(title, lambda line: terminal.print_line(line, error=True))


# The progress of a command.


class ProgressView:
    """Shows how far a command is: redrawn in place, as plain lines, or as JSON.

    Args:
        area: where to draw; None: there is no terminal.
        as_json: whether to print documents as lines of JSON, where their state has changed.
        error: whether plain lines go to stderr: stdout has the report alone.
    """

    def __init__(self, area: LiveArea | None, *, as_json: bool = False, error: bool = False):
        self._area = area
        self._as_json = as_json
        self._error = error
        self._due = 0.0
        self._last: object = None

    def show(
        self,
        document: Mapping[str, Any],
        line: str,
        rows: Callable[[int, int], Iterable[ScreenRow]],
        *,
        state: object = None,
        at_once: object = None,
    ) -> None:
        """Show a document.

        Args:
            document: for JSON.
            line: the plain line, which is printed now and then.
            rows: returns the rows for a terminal of so many columns and lines.
            state: what must have changed so that a line of JSON is printed.
            at_once: what must have changed so that a plain line is printed at once.
        """
        if self._as_json:
            if state != self._last:
                self._last = state
                terminal.emit(document)
        elif self._area is not None:
            size = self._area.size()
            self._area.draw(fit_rows(list(rows(*size)), *size))
        elif time.monotonic() >= self._due or at_once != self._last:
            self._due, self._last = time.monotonic() + terminal.PLAIN_INTERVAL_S, at_once
            terminal.print_line(printable(line), error=self._error)
