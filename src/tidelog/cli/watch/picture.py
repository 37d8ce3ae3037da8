"""Draws the status again and again on a terminal, or prints plain lines; keys send commands."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli import terminal
from tidelog.cli.live import LiveArea, StderrLines, can_be_redrawn
from tidelog.cli.status_lines import ChangedFacts
from tidelog.cli.watch.view import View
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from rich.text import Text

    from tidelog.config import Config
    from tidelog.control.commands import Command


# Single keys, without Enter.

_NAMED: Final = {
    "\033[A": "up", "\033[B": "down", "\033[C": "right", "\033[D": "left",
    "\033OA": "up", "\033OB": "down", "\033OC": "right", "\033OD": "left",
}  # fmt: skip


class Keys:
    """Reads keys from the terminal while this process is in the foreground. A context manager.

    Ctrl-C stays a signal.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._saved_mode: list[object] | None = None

    def __enter__(self) -> Keys:
        terminal.before_exit.append(self._restore)
        self._set_mode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
        terminal.before_exit.remove(self._restore)

    def pressed(self, timeout_s: float) -> list[str]:
        """Return the keys that were pressed: characters, or ``up``, ``left``, …

        Waits at most ``timeout_s`` for the first one.
        """
        if not self._set_mode():
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
        return list(_keys(read.decode("utf-8", "replace")))

    def _set_mode(self) -> bool:
        """Take the terminal; return whether keys may be read.

        A process that reads from the background would be stopped. A shell that brings a process
        back to the foreground has changed the terminal's mode.
        """
        if self._terminal < 0:
            return False
        try:
            if os.tcgetpgrp(self._terminal) != os.getpgrp():
                return False
            now = termios.tcgetattr(self._terminal)
            if now[3] & termios.ICANON:
                self._saved_mode = now
                tty.setcbreak(self._terminal, termios.TCSANOW)
        except (OSError, termios.error):
            self._terminal = -1
            return False
        return True

    def _restore(self) -> None:
        before, self._saved_mode = self._saved_mode, None
        if before is None:
            return
        try:
            if os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, before)  # type: ignore[arg-type]
        except (OSError, termios.error):
            pass  # the terminal is gone


def _keys(text: str) -> Iterator[str]:
    while text:
        code_seen = next((code for code in _NAMED if text.startswith(code)), None)
        yield _NAMED[code_seen] if code_seen else text[0]
        text = text[len(code_seen or text[0]) :]


# The picture.

Document = dict[str, Any]
Draw = Callable[[int, int, int], "list[Text]"]

DOCUMENTS_KEPT = 120
"""How many documents to keep, for rates and the log's sparkline."""
CONFIRM_KEY = "y"
"""The key that confirms `View.question`; any other one drops it."""
_ARROWS = {"left": ("dump", -1), "right": ("dump", 1), "up": ("scroll", -1), "down": ("scroll", 1)}


class StatusHistory:
    """The last documents, each once."""

    def __init__(self) -> None:
        self.documents: deque[Document] = deque(maxlen=DOCUMENTS_KEPT)

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
        if key == CONFIRM_KEY and self.view.question:
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


# Commands to the leading capture, by keys.

_TIMEOUT_S: Final = 5.0
_MOST_READERS: Final = 64


class KeyCommands:
    """Sends commands in a thread beside the view; one at a time, each after a confirmation."""

    def __init__(self, config: Config, config_file: str) -> None:
        self.config_file = config_file
        self._config = config
        self._sending: threading.Thread | None = None
        self._pending: tuple[Command, str] | None = None
        """What `View.question` is about: the command, and what to show when it is done."""

    def act(self, keys: Sequence[str], shown: Picture) -> None:
        """Act on pressed keys; ``shown`` has the selected dump, and shows question and result."""
        for key in keys:
            if self._sending is not None and self._sending.is_alive():
                return
            if key == CONFIRM_KEY and shown.view.question and self._pending is not None:
                shown.view.question = ""
                self._send(shown, *self._pending)
            elif key == "p":
                self._pause(shown)
            elif key in ("+", "-"):
                self._change_speed(shown, 2.0 if key == "+" else 0.5)

    def _pause(self, shown: Picture) -> None:
        from tidelog.cli.watch.lines import unfinished_dumps
        from tidelog.control.commands import PauseSnapshot, ResumeSnapshot

        dumps = unfinished_dumps(shown.history.documents[-1]) if shown.history.documents else []
        if not dumps:
            shown.view.note = "no dump runs that could be paused"
            return
        dump = dumps[min(shown.view.dump, len(dumps) - 1)]
        name = dump["dump_id"]
        if dump["status"] == "paused":
            resume = ResumeSnapshot(dump_id=name)
            self._ask(shown, f"Resume dump {name}?", resume, f"dump {name} is resumed")
        else:
            pause = PauseSnapshot(dump_id=name)
            self._ask(shown, f"Pause dump {name}?", pause, f"dump {name} is paused")

    def _change_speed(self, shown: Picture, factor: float) -> None:
        from tidelog.control.commands import SetDumpOptions

        status = shown.history.documents[-1] if shown.history.documents else {}
        now = (status.get("dump_options") or {}).get("parallelism")
        if now is None:
            return
        wanted = max(1, min(_MOST_READERS, int(now * factor)))
        if wanted == now:
            shown.view.note = (
                f"parallelism is {now}, and can't be {'more' if factor > 1 else 'less'}"
            )
            return
        question = f"Set parallelism from {now} to {wanted}?"
        command = SetDumpOptions(parallelism=wanted)
        self._ask(shown, question, command, f"parallelism is {wanted} now")

    def _ask(self, shown: Picture, question: str, command: Command, done: str) -> None:
        self._pending = command, done
        shown.view.question = f"{question}  y: yes  any other key: no"

    def _send(self, shown: Picture, command: Command, done: str) -> None:
        def send() -> None:
            from tidelog import app

            try:
                result = app.send_command(self._config, command, timeout_s=_TIMEOUT_S)
            except TidelogError as error:
                shown.view.note = str(error)
                return
            waiting = "no capture has handled it yet; the next leader will"
            outcome = waiting if result["state"] == "waiting" else done
            shown.view.note = result["error"] or outcome

        shown.view.note = "sent…"
        self._sending = threading.Thread(target=send, daemon=True)
        self._sending.start()
