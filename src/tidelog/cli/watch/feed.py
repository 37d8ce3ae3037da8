"""`tidelog watch`: status documents as they come, drawn, recorded, or played again."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.errors import UsageError
from tidelog.system.private_files import append_text

if TYPE_CHECKING:
    from rich.console import Console, Group

DRAWS_PER_S = 4
ASK_EVERY_S = 0.5  # capture publishes about once a second
KEEP = 120  # documents, for rates and the line of the log's motion
LONGEST_GAP_S = 5.0  # a pause of a recorded run is shortened to this
FIXED_LINES = 20  # what a frame takes beside lanes and events

Document = dict[str, Any]


class StatusHistory:
    """The last documents, each once."""

    def __init__(self) -> None:
        self.documents: deque[Document] = deque(maxlen=KEEP)

    def add(self, document: Document) -> bool:
        """False if it is the one that came last."""
        last = self.documents[-1] if self.documents else None
        if last is not None and last.get("updated_ms") == document.get("updated_ms"):
            self.documents[-1] = document  # the leader may have gone since
            return False
        self.documents.append(document)
        return True


def recorded(path: Path) -> Iterator[Document]:
    """The documents of a recorded run, in order.

    Raises:
        UsageError: it can't be read, or isn't a recording; names the line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    document = json.loads(line)
                except ValueError:
                    # a recording that was cut off in the middle of its last line
                    if not line.endswith("\n") and number > 1:
                        return
                    raise UsageError(f"{path}:{number}: not a JSON document") from None
                if not isinstance(document, dict) or "updated_ms" not in document:
                    raise UsageError(f"{path}:{number}: not a status that watch --record wrote")
                yield document
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None


def replay(path: Path, stop: threading.Event, *, speed: float, once: bool) -> None:
    """Play a recorded run; ``once`` draws its last frame alone."""
    history = StatusHistory()
    if once:
        for document in recorded(path):
            history.add(document)
        _print_frame(history, path)
        return
    with _Screen() as screen:
        for document in recorded(path):
            last = history.documents[-1] if history.documents else None
            if last is not None:
                gap_s = max(0.0, (document["updated_ms"] - last["updated_ms"]) / 1000)
                _wait(screen, history, stop, min(gap_s, LONGEST_GAP_S) / speed, speed)
            if stop.is_set():
                return
            history.add(document)
            screen.draw(history, document["updated_ms"])
        if not history.documents:
            raise UsageError(f"{path} holds no status")


def watch(
    ask: Callable[[], Document | None],
    stop: threading.Event,
    *,
    record: Path | None,
    once: bool,
    as_json: bool,
) -> None:
    """Draw what ``ask`` tells until ``stop``.

    Args:
        ask: the status now; None: no capture has run yet.
        stop: ends it.
        record: each new document becomes a line of this file, after what is in there.
        once: one frame, and end.
        as_json: the documents as lines of stdout, instead of a picture.
    """
    history = StatusHistory()
    file = None if record is None else _append_to(record)
    try:
        if once:
            _note(history, ask(), file, as_json)
            if not as_json:
                _print_frame(history, None)
            return
        with _Screen(quiet=as_json) as screen:
            due = 0.0
            while not stop.is_set():
                now = time.monotonic()
                if now >= due:
                    due = now + ASK_EVERY_S
                    _note(history, ask(), file, as_json)
                screen.draw(history, int(time.time() * 1000))
                stop.wait(1 / DRAWS_PER_S)
    finally:
        if file is not None:
            file.close()


def _note(
    history: StatusHistory, document: Document | None, file: IO[str] | None, as_json: bool
) -> None:
    if document is None or not history.add(document):
        return
    if file is not None:
        file.write(terminal.to_json(document) + "\n")
        file.flush()
    if as_json:
        terminal.emit(document)


def _append_to(path: Path) -> IO[str]:
    try:
        return append_text(path)
    except OSError as error:
        raise UsageError(f"--record: {path} can't be written: {error.strerror}") from None


def _wait(
    screen: _Screen, history: StatusHistory, stop: threading.Event, seconds: float, speed: float
) -> None:
    """Let the time between two documents pass, drawn."""
    begun = time.monotonic()
    at_ms = history.documents[-1]["updated_ms"]
    while (passed := time.monotonic() - begun) < seconds and not stop.is_set():
        screen.draw(history, int(at_ms + passed * speed * 1000))
        stop.wait(min(1 / DRAWS_PER_S, seconds - passed))


def _print_frame(history: StatusHistory, path: Path | None) -> None:
    from rich.console import Console

    if not history.documents:
        if path is not None:
            raise UsageError(f"{path} holds no status")
        terminal.say("no capture has run yet")
        return
    console = Console(highlight=False)
    now_ms = history.documents[-1].get("updated_ms", 0)
    console.print(_frame(history, now_ms, console.width, 200))


def _frame(history: StatusHistory, now_ms: int, width: int, height: int) -> Group:
    from tidelog.cli.watch.view import frame

    room = max(6, height - FIXED_LINES)
    lanes = min(16, max(3, room * 2 // 3))
    events = min(8, max(2, room - lanes))
    return frame(list(history.documents), now_ms, lanes=lanes, events=events, width=width)


class _Screen:
    """A terminal that is redrawn; where there is none, a plain line now and then."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console: Console | None = None
        self._quiet = quiet
        self._line_at = float("-inf")

    def __enter__(self) -> _Screen:
        if not self._quiet and sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            self._console = Console(highlight=False)
            self._live = Live(console=self._console, auto_refresh=False, screen=True)
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._console is not None:
            self._live.stop()

    def draw(self, history: StatusHistory, now_ms: int) -> None:
        if self._console is not None:
            from rich.text import Text

            width, height = self._console.size
            picture: Group | Text = Text("no capture has run yet")
            if history.documents:
                picture = _frame(history, now_ms, width, height)
            self._live.update(picture, refresh=True)
        elif not self._quiet and history.documents:
            now = time.monotonic()
            if now - self._line_at >= terminal.PLAIN_INTERVAL_S:
                self._line_at = now
                terminal.say(f"watch: {terminal.plain_line(history.documents[-1])}")
