"""`tidelog watch`: draws, records and replays status documents."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tidelog.cli import terminal
from tidelog.cli.watch.picture import Document, KeyCommands, Picture, StatusHistory, picture
from tidelog.errors import UsageError
from tidelog.model.units import brief_span
from tidelog.system.private_files import append_text

LONGEST_GAP_S = 5.0  # seconds; longer pauses of a recorded run are shortened to this
TURN_S = 0.25
_ALL_LINES = 200


def read_recording(path: Path) -> Iterator[Document]:
    """Yield the documents of a recorded run, in order.

    Raises:
        UsageError: the file can't be read, or isn't a recording; names the line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    document = json.loads(line)
                except ValueError:
                    # a recording that was cut off in its last line
                    if not line.endswith("\n") and number > 1:
                        return
                    raise UsageError(f"{path}:{number}: not a JSON document") from None
                if not isinstance(document, dict) or "updated_ms" not in document:
                    raise UsageError(f"{path}:{number}: not a status that watch --record wrote")
                yield document
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None


def replay(path: Path, stop: threading.Event, *, speed: float, once: bool) -> None:
    """Replay a recorded run; ``once`` draws its last frame alone."""
    if once:
        history = StatusHistory()
        for document in read_recording(path):
            history.add(document)
        _print_frame(history, path)
        return
    with picture("watch", whole=True) as shown:
        shown.view.config = ""
        pace = _Pace(shown, speed, stop)
        for document in read_recording(path):
            if shown.history.documents:
                last_ms = shown.history.documents[-1]["updated_ms"]
                gap_s = max(0.0, (document["updated_ms"] - last_ms) / 1000)
                pace.play(min(gap_s, LONGEST_GAP_S), stop)
            if stop.is_set():
                return
            shown.history.add(document)
            pace.turn(document["updated_ms"], 0)
        if not shown.history.documents:
            raise UsageError(f"{path} holds no status")


class _Pace:
    """The time of a recorded run; keys change its speed and pause it."""

    def __init__(self, shown: Picture, speed: float, quit_: threading.Event) -> None:
        self._shown = shown
        self._quit = quit_
        self._speed = speed
        self._paused = False

    def play(self, seconds: float, stop: threading.Event) -> None:
        """Draw until the time between two documents has passed."""
        at_ms = self._shown.history.documents[-1]["updated_ms"]
        passed_s = 0.0
        while passed_s < seconds and not stop.is_set():
            began = time.monotonic()
            left_s = (seconds - passed_s) / self._speed
            self.turn(int(at_ms + passed_s * 1000), TURN_S if self._paused else min(TURN_S, left_s))
            if not self._paused:
                passed_s += (time.monotonic() - began) * self._speed

    def turn(self, now_ms: int, timeout_s: float) -> None:
        for key in self._shown.turn(now_ms, timeout_s):
            if key == "q":
                self._quit.set()
            elif key == "p":
                self._paused = not self._paused
            elif key in ("+", "-"):
                self._speed = min(64.0, max(1 / 64, self._speed * (2 if key == "+" else 0.5)))
            self._shown.view.note = f"{'stands' if self._paused else 'plays'} · {self._speed:g} ×"


def watch(
    read_status: Callable[[], Document | None],
    stop: threading.Event,
    *,
    record: Path | None = None,
    once: bool = False,
    as_json: bool = False,
    every_s: float = 0.5,
    key_commands: KeyCommands | None = None,
) -> None:
    """Draw the status that ``read_status`` returns until ``stop`` is set.

    Args:
        read_status: returns the status now; None: no capture has run yet.
        stop: ends the view when set.
        record: a file to which each new document is appended as a line.
        once: whether to draw one frame and return.
        as_json: whether to print the documents as lines, instead of a picture.
        every_s: seconds between two calls of ``read_status``.
        key_commands: acts on keys; None: keys do nothing.
    """
    file = None if record is None else _open_for_append(record)
    try:
        if once:
            history = StatusHistory()
            _add_document(history, read_status(), file, as_json)
            if not as_json:
                _print_frame(history, None)
            return
        began = time.monotonic()
        with picture("watch", whole=True, quiet=as_json) as shown:
            shown.view.config = "CONFIG" if key_commands is None else key_commands.config_file
            due = 0.0
            while not stop.is_set():
                now = time.monotonic()
                if now >= due:
                    due = now + every_s
                    _add_document(shown.history, read_status(), file, as_json)
                keys = shown.turn(int(time.time() * 1000), TURN_S)
                if "q" in keys:
                    break
                if key_commands is not None:
                    key_commands.act(keys, shown)
        if shown.redrawn:
            span = brief_span((time.monotonic() - began) * 1000)
            terminal.print_line(f"watched for {span}; nothing was stopped")
    finally:
        if file is not None:
            file.close()


def _add_document(
    history: StatusHistory, document: Document | None, file: IO[str] | None, as_json: bool
) -> None:
    if document is None or not history.add(document) or "updated_ms" not in document:
        return
    if file is not None:
        file.write(terminal.to_json(document) + "\n")
        file.flush()
    if as_json:
        terminal.emit(document)


def _open_for_append(path: Path) -> IO[str]:
    try:
        return append_text(path)
    except OSError as error:
        raise UsageError(f"--record: {path} can't be written: {error.strerror}") from None


def _print_frame(history: StatusHistory, path: Path | None) -> None:
    from rich.console import Console

    from tidelog.cli.watch.screen import screen
    from tidelog.cli.watch.view import View

    if not history.documents:
        if path is not None:
            raise UsageError(f"{path} holds no status")
        terminal.print_line("no capture has run yet")
        return
    console = Console(highlight=False)
    now_ms = history.documents[-1].get("updated_ms", int(time.time() * 1000))
    view = View(steers=False, windows=True)
    for line in screen(list(history.documents), view, now_ms, console.width, _ALL_LINES):
        console.print(line, soft_wrap=True)
