"""Redraws lines of a terminal in place, and prints other lines above them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tidelog.cli import exit_codes

if TYPE_CHECKING:
    from rich.text import Text

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
        exit_codes.before_exit.append(self._restore)
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
            exit_codes.before_exit.remove(self._restore)
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
