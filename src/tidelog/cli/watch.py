"""Shows the status live: `tidelog watch`, and beside capture and pipeline while they run."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli import arguments, terminal
from tidelog.cli.arguments import ConfigFile, Json
from tidelog.cli.live import (
    CONFIRM_KEY,
    DownloadLines,
    KeyPresses,
    LiveArea,
    View,
    download_bar,
    live_area,
)
from tidelog.cli.status_lines import ChangedFacts, closing
from tidelog.cli.terminal import stop_on_signals
from tidelog.errors import TidelogError
from tidelog.model.units import brief_span
from tidelog.system.download_progress import Download, report_downloads
from tidelog.system.processes import unix_ms

if TYPE_CHECKING:
    from tidelog.app import StatusFeed
    from tidelog.config import Config
    from tidelog.control.commands import Command

Document = dict[str, Any]
OnStatus = Callable[[Document], None]

TURN_S = 0.25
"""Seconds between two pictures."""
PAID_LINES_S = 300.0
"""Seconds between plain lines, where requests to the state store cost money: ten each time."""
FIRST_LINE_S = 40.0
"""Seconds within which the first line must be shown."""
DOCUMENTS_KEPT = 120
"""How many documents to keep, for rates and the log's sparkline."""
_JOIN_S = 5.0
_ONCE_LINES = 200
_ROLES = {"standby": "stands by", "retrying": "tries again", "starting": "starts"}


def show_status(
    config: Config, file: str, stop: threading.Event, *, once: bool = False, as_json: bool = False
) -> None:
    """Show the status until ``stop`` is set or `q` is pressed.

    Args:
        config: the configuration.
        file: its file, for commands to type.
        stop: ends the view when set.
        once: whether to draw one picture and return.
        as_json: whether to print each status as a line of JSON, instead of a picture.
    """
    from tidelog import app

    if as_json or once:
        with app.StatusFeed(config) as feed:
            if not as_json:
                _print_picture(feed.latest(), file)
                return
            history = StatusHistory()
            while not stop.is_set():
                document = feed.latest()
                if history.add(document) and "updated_ms" in document:
                    terminal.emit(document)
                if once or stop.wait(feed.poll_interval_s):
                    return
        return
    began = time.monotonic()
    with open_view({"": config}, file, "watch", ()) as view:
        view.run(stop)
    if view.redrawn:
        span = brief_span((time.monotonic() - began) * 1000)
        terminal.print_line(f"watched for {span}; nothing was stopped")


def _print_picture(document: Document, file: str) -> None:
    from tidelog.cli.screen import screen

    console = terminal.console()
    now_ms = document.get("updated_ms", unix_ms())
    view = View(file, has_keys=False, windows=True)
    for line in screen([document], view, now_ms, console.width, _ONCE_LINES):
        console.print(line, soft_wrap=True)


@contextmanager
def show_beside(
    config: Config, file: Path, title: str, parts: tuple[str, ...], *, as_json: bool
) -> Iterator[OnStatus]:
    """Show the status of all processes while the parts run; yield a function for their statuses.

    Args:
        config: the configuration; several databases have a verdict each.
        file: the file of the configuration, for commands to type.
        title: the start of each plain line.
        parts: the parts that run here: ``capture``, ``pipeline``.
        as_json: whether to print the statuses as lines of JSON, and nothing else.
    """
    if as_json:
        yield terminal.emit
        return
    from tidelog.config.loading import config_by_database, databases_of

    configs = config_by_database(config) if databases_of(config) else {"": config}
    with open_view(configs, str(file), title, parts) as view:
        ended = threading.Event()
        # in its own thread: capture waits neither for the terminal nor for stores
        thread = threading.Thread(target=view.run, args=(ended,), name="tidelog-view", daemon=True)
        thread.start()
        try:
            with report_downloads(view.show_download):
                yield view.update
        finally:
            ended.set()
            thread.join(_JOIN_S)
    if (sentence := view.last_sentence()) and not thread.is_alive():
        terminal.print_sentence(sentence)


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


@contextmanager
def open_view(
    configs: Mapping[str, Config], file: str, title: str, parts: tuple[str, ...]
) -> Iterator[StatusView]:
    """Open a view on stdout: on the whole terminal, or beside ``parts`` on its last lines."""
    with live_area(whole=not parts) as area:
        if area is None:
            yield StatusView(configs, file, title, parts, None, None)
            return
        keys = KeyPresses()
        with terminal.restored_at_exit(keys.close):
            yield StatusView(configs, file, title, parts, area, keys)


class StatusView:
    """Shows the status of one database or several, redrawn or as plain lines; keys send commands.

    Args:
        configs: the configuration of each database, by its name; empty: there is one.
        file: the file of the configuration, for commands to type.
        title: the start of each plain line.
        parts: the parts that run in this process; none: it is only watched.
        area: where to draw; None: there is no terminal.
        keys: reads keys; None: no keys are read.
    """

    def __init__(
        self,
        configs: Mapping[str, Config],
        file: str,
        title: str,
        parts: tuple[str, ...],
        area: LiveArea | None,
        keys: KeyPresses | None,
    ) -> None:
        self._configs = configs
        self._parts = parts
        self._title = title
        self._area = area
        self._keys = keys
        self._one = next(iter(configs.values())) if len(configs) == 1 else None
        starting = self._one is not None and "capture" in parts
        self._view = View(file, keys is not None, quits=not parts, starting=starting)
        self._commands = None if self._one is None else KeyCommands(self._one)
        self._feeds: dict[str, StatusFeed] = {}
        self._histories = {name: StatusHistory() for name in configs}
        self._facts = {name: ChangedFacts() for name in configs}
        self._fetched = DownloadLines(title, self._print_line)
        self._printed: dict[str, str] = {}
        self._line_at = -math.inf
        self._line_every_s = terminal.PLAIN_INTERVAL_S
        self._reads = 0

    @property
    def redrawn(self) -> bool:
        """Whether it is drawn on a terminal."""
        return self._area is not None

    def run(self, stop: threading.Event) -> None:
        """Draw until ``stop`` is set, or `q` is pressed where nothing runs here."""
        with ExitStack() as opened:
            due = time.monotonic()
            while not stop.is_set():
                if time.monotonic() >= due:
                    due = time.monotonic() + self._read_status(opened)
                self._draw()
                if self._keys is None:
                    stop.wait(TURN_S)
                    continue
                for key in self._keys.pressed(TURN_S):
                    if key == "q" and not self._parts:
                        return
                    self._press(key)
            if self._parts:
                self._read_status(opened, last=True)  # the final state

    def update(self, status: Document) -> None:
        """Show the status of a part that runs here."""
        if self._one is not None:
            parts = {self._parts[0]: status} if len(self._parts) == 1 else status
            for part, its in parts.items():
                self._update_part(part, its)

    def show_download(self, now: Download) -> None:
        """Show a download."""
        if not self.redrawn:
            self._fetched(now)
        elif now.done:
            self._view.here.pop("fetching", None)
        else:
            self._view.here["fetching"] = download_bar(now)

    def last_sentence(self) -> str:
        """Return the sentence to print at the end, if anything is known."""
        documents = self._histories[""].documents if self._one is not None else ()
        if not documents or "updated_ms" not in documents[-1]:
            return ""
        from tidelog.app.overview.build import overview

        return closing(overview(documents[-1], unix_ms()))

    def _read_status(self, opened: ExitStack, *, last: bool = False) -> float:
        """Read the status; return the seconds until the next read. ``last``: this process ends."""
        from tidelog import app

        wait_s, paid = 0.0, False
        for name, config in self._configs.items():
            try:
                if name not in self._feeds:
                    self._feeds[name] = opened.enter_context(app.StatusFeed(config))
                feed, history = self._feeds[name], self._histories[name]
                history.add(feed.latest(last=last))
            except (TidelogError, OSError) as error:
                if not self._parts and not self._histories[name].documents:
                    raise
                self._view.here["view"] = f"what is going on can't be read: {error}"
                return 1.0
            wait_s, paid = max(wait_s, feed.poll_interval_s), paid or feed.pays_per_request
        self._view.here.pop("view", None)
        if self.redrawn or not paid:
            return wait_s
        self._line_every_s = math.inf  # only those of each read
        self._reads += 1
        if self._reads == 1:  # the state that former processes left
            return FIRST_LINE_S
        self._plain_lines()
        return PAID_LINES_S

    def _draw(self) -> None:
        if self._area is None:
            if time.monotonic() - self._line_at >= self._line_every_s:
                self._plain_lines()
            return
        from tidelog.cli.screen import screen, several

        now_ms, size = unix_ms(), self._area.size()
        shown = {name: list(each.documents) for name, each in self._histories.items()}
        if self._one is not None:
            self._area.draw(screen(shown[""], self._view, now_ms, *size))
        else:
            self._area.draw(several(shown, now_ms, *size))

    def _plain_lines(self) -> None:
        """Print what has changed in the newest documents, if they are of now."""
        if self._view.starting:
            return
        from tidelog.app.overview.build import overview

        for name, history in self._histories.items():
            if history.documents:
                self._line_at = time.monotonic()
                current = overview(history.documents[-1], unix_ms())
                for fact in self._facts[name].of(current):
                    line = terminal.name_config(fact, self._view.config, name or None)
                    terminal.print_line(": ".join(filter(None, (self._title, name, line))))

    def _print_line(self, line: str) -> None:
        if self._area is None:
            terminal.print_line(line)
        else:
            self._area.above(line)

    def _press(self, key: str) -> None:
        if self._commands is not None and not self._view.press(key):
            documents = self._histories[""].documents
            self._commands.press(key, self._view, documents[-1] if documents else {})

    def _update_part(self, part: str, its: Mapping[str, Any]) -> None:
        role, here = its.get("role"), self._view.here
        if role in (None, "leading"):
            here.pop(part, None)
            if part == "capture" and role is None:
                self._view.starting = False
            return
        leads = f"; {its['leader']} leads" if its.get("leader") else ""
        text = f"{part} {_ROLES.get(role, role)}{leads}"
        text += f": {its['reason']}" if its.get("reason") else ""
        here[part] = text
        if role != "starting":
            self._view.starting = False
        if not self.redrawn and self._printed.get(part) != text:
            self._printed[part] = text
            self._print_line(f"{self._title}: {text}")


# Commands to the leading capture, by keys.

_TIMEOUT_S: Final = 5.0
_MOST_READERS: Final = 64


class KeyCommands:
    """Sends commands in a thread beside the view; one at a time, each after a confirmation."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sending: threading.Thread | None = None
        self._pending: tuple[Command, str] | None = None
        """What `View.question` is about: the command, and what to show when it is done."""

    def press(self, key: str, view: View, status: Mapping[str, Any]) -> None:
        """Act on a key; ``view`` has the selected dump, and shows question and result."""
        if self._sending is not None and self._sending.is_alive():
            return
        if key == CONFIRM_KEY and view.question and self._pending is not None:
            view.question = ""
            self._send(view, *self._pending)
        elif key == "p":
            self._pause(view, status)
        elif key in ("+", "-"):
            self._change_speed(view, status, 2.0 if key == "+" else 0.5)

    def _pause(self, view: View, status: Mapping[str, Any]) -> None:
        from tidelog.app.overview.problems import is_dump_unfinished
        from tidelog.control.commands import PauseDump, ResumeDump

        dumps = [each for each in status.get("dumps") or () if is_dump_unfinished(each)]
        if not dumps:
            view.note = "no dump runs that could be paused"
            return
        dump = dumps[min(view.dump, len(dumps) - 1)]
        name = dump["dump_id"]
        if dump["status"] == "paused":
            resume = ResumeDump(dump_id=name)
            self._ask(view, f"Resume dump {name}?", resume, f"dump {name} is resumed")
        else:
            pause = PauseDump(dump_id=name)
            self._ask(view, f"Pause dump {name}?", pause, f"dump {name} is paused")

    def _change_speed(self, view: View, status: Mapping[str, Any], factor: float) -> None:
        from tidelog.control.commands import SetDumpOptions

        now = (status.get("dump_options") or {}).get("parallelism")
        if now is None:
            return
        wanted = max(1, min(_MOST_READERS, int(now * factor)))
        if wanted == now:
            view.note = f"parallelism is {now}, and can't be {'more' if factor > 1 else 'less'}"
            return
        question = f"Set parallelism from {now} to {wanted}?"
        command = SetDumpOptions(parallelism=wanted)
        self._ask(view, question, command, f"parallelism is {wanted} now")

    def _ask(self, view: View, question: str, command: Command, done: str) -> None:
        self._pending = command, done
        view.question = f"{question}  y: yes  any other key: no"

    def _send(self, view: View, command: Command, done: str) -> None:
        def send() -> None:
            from tidelog import app

            try:
                result = app.send_command(self._config, command, timeout_s=_TIMEOUT_S)
            except TidelogError as error:
                view.note = str(error)
                return
            waiting = "no capture has handled it yet; the next leader will"
            outcome = waiting if result.state == "waiting" else done
            view.note = result.error or outcome

        view.note = "sent…"
        self._sending = threading.Thread(target=send, daemon=True)
        self._sending.start()


def watch(
    config: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Show one picture and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show live whether all is well, how far behind it is, and running dumps; keys control them."""
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    with stop_on_signals() as stop:
        show_status(loaded, str(config), stop, once=once, as_json=as_json)
