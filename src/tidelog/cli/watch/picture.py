"""Draws the status again and again on a terminal, or prints plain lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live.keys import Keys
from tidelog.cli.live.live_area import LiveArea, can_be_redrawn
from tidelog.cli.live.stderr_lines import StderrLines
from tidelog.cli.status_lines import ChangedFacts
from tidelog.cli.watch.view import View

if TYPE_CHECKING:
    from rich.text import Text

Document = dict[str, Any]
Draw = Callable[[int, int, int], "list[Text]"]

KEEP = 120
"""How many documents to keep, for rates and the log's sparkline."""
CONFIRMS = "y"
"""The key that confirms `View.question`; any other one drops it."""
_ARROWS = {"left": ("dump", -1), "right": ("dump", 1), "up": ("scroll", -1), "down": ("scroll", 1)}


class StatusHistory:
    """The last documents, each once."""

    def __init__(self) -> None:
        self.documents: deque[Document] = deque(maxlen=KEEP)

    def add(self, document: Document) -> bool:
        """Add a document; return False if it is the same as the last one."""
        last = self.documents[-1] if self.documents else None
        if last is not None and last.get("updated_ms") == document.get("updated_ms"):
            self.documents[-1] = document  # the leader may have changed since
            return False
        self.documents.append(document)
        return True


class Picture:
    """The latest documents and the user's choices of what to show; `turn` draws them.

    Args:
        title: the start of each plain line.
        area: the area to draw in; None: there is no terminal.
        keys: the reader of keys; None: no keys are read.
        quiet: whether to show nothing at all.
        draw: returns the lines for ``(now_ms, width, height)``; default: `screen`.
    """

    def __init__(
        self,
        title: str,
        area: LiveArea | None,
        keys: Keys | None,
        *,
        quiet: bool = False,
        draw: Draw | None = None,
    ) -> None:
        self.history = StatusHistory()
        self.view = View()
        self._title = title
        self._area = area
        self._keys = keys
        self._quiet = quiet
        self._draw = draw or self._screen
        self._facts = ChangedFacts()
        self._line_at = float("-inf")
        self.line_every_s = terminal.PLAIN_INTERVAL_S
        """Seconds between plain lines, as `turn` writes them."""

    @property
    def redrawn(self) -> bool:
        """Whether it is drawn on a terminal."""
        return self._area is not None

    def turn(self, now_ms: int, timeout_s: float) -> list[str]:
        """Draw the current state, wait ``timeout_s`` for keys; return those not handled here."""
        if self._area is not None:
            self._area.draw(self._draw(now_ms, *self._area.size()))
        elif not self._quiet and time.monotonic() - self._line_at >= self.line_every_s:
            self.plain_lines(now_ms)
        if self._keys is None:
            time.sleep(timeout_s)
            return []
        pressed = self._keys.pressed(timeout_s)
        return [key for key in pressed if not self.changes_view(key)]

    def say(self, line: str) -> None:
        """Print a line that stays: above the picture, or among the plain lines."""
        if self._area is not None:
            self._area.above(line)
        elif not self._quiet:
            terminal.print_line(line)

    def _screen(self, now_ms: int, width: int, height: int) -> list[Text]:
        from tidelog.cli.watch.screen import screen

        return screen(list(self.history.documents), self.view, now_ms, width, height)

    def plain_lines(self, now_ms: int) -> None:
        """Print what has changed in the newest document, if one says how it is now."""
        if self._quiet or not self.history.documents or self.view.starting:
            return
        from tidelog.app.overview import overview

        self._line_at = time.monotonic()
        for fact in self._facts.of(overview(self.history.documents[-1], now_ms)):
            terminal.print_line(f"{self._title}: {fact}")

    def changes_view(self, key: str) -> bool:
        """Handle a key that changes what is shown; return False if it is another one."""
        self.view.note = ""
        if key == CONFIRMS and self.view.question:
            return False
        self.view.question = ""
        if key in _ARROWS:
            name, step = _ARROWS[key]
            setattr(self.view, name, max(0, getattr(self.view, name) + step))
        elif key == "?":
            self.view.words = not self.view.words
        elif key == "w":
            self.view.windows = not self.view.windows
        else:
            return False
        return True


@contextmanager
def picture(
    title: str, *, whole: bool, quiet: bool = False, draw: Draw | None = None
) -> Iterator[Picture]:
    """Open a picture on stdout, if that is a terminal: on all of it (``whole``) or its last lines.

    Lines of stderr are printed above it.
    """
    with ExitStack() as opened:
        area = keys = None
        if not quiet and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=whole))
            opened.enter_context(StderrLines(area.above))
            keys = opened.enter_context(Keys())
        shown = Picture(title, area, keys, quiet=quiet, draw=draw)
        shown.view.steers = keys is not None
        yield shown
