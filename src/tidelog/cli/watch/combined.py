"""Shows the status of capture, the pipeline, or both, while this process runs them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live import DownloadLines, download_bar
from tidelog.cli.status_lines import ChangedFacts
from tidelog.cli.watch.feed import TURN_S
from tidelog.cli.watch.picture import KeyCommands, Picture, StatusHistory, picture
from tidelog.errors import TidelogError
from tidelog.system.download_progress import Download, report_downloads

if TYPE_CHECKING:
    from tidelog.app import StatusFeed
    from tidelog.config import Config

OnStatus = Callable[[dict[str, Any]], None]
_JOIN_S = 5.0
PAID_LINES_S = 300.0
"""Seconds between plain lines, where requests to the state store cost money: ten each time."""
FIRST_LINE_S = 40.0
"""Seconds within which the first line must be shown."""


@contextmanager
def show_beside(
    config: Config, file: Path, title: str, parts: tuple[str, ...], *, as_json: bool
) -> Iterator[OnStatus]:
    """Show the status while the parts run; yield a function to call with their statuses.

    The view shows the status documents of all processes.

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
    from tidelog.config.loading import databases_of

    view_class = _MultiView if databases_of(config) else _SingleView
    with ExitStack() as opened:
        view = view_class(config, file, title, parts, opened)
        thread = threading.Thread(target=view.run, name="tidelog-view", daemon=True)
        thread.start()
        try:
            with report_downloads(view.show_download):
                yield view.update
        finally:
            view.ended.set()
            thread.join(_JOIN_S)
    if (sentence := view.last_sentence()) and not thread.is_alive():
        terminal.print_sentence(sentence)


class _StatusView:
    """A view in its own thread, so that capture waits neither for terminal nor for stores."""

    def __init__(self, title: str, shown: Picture) -> None:
        self.ended = threading.Event()
        self._title = title
        self._shown = shown
        self._resources = ExitStack()

    def run(self) -> None:
        """Draw until ``ended`` is set."""
        with ExitStack() as self._resources:
            due = time.monotonic()
            while not self.ended.is_set():
                self.act(self._shown.turn(int(time.time() * 1000), TURN_S))
                now = time.monotonic()
                if now >= due:
                    due = now + self.read_status()
            self.read_status(last=True)  # the final state

    def read_status(self, *, last: bool = False) -> float:
        """Read the status; return the seconds until the next read. ``last``: this process ends."""
        raise NotImplementedError

    def act(self, keys: list[str]) -> None:
        """Act on keys that do not change the view."""

    def update(self, status: dict[str, Any]) -> None:
        """Show the status of a part that runs here."""

    def show_download(self, now: Download) -> None:
        """Show a download."""

    def last_sentence(self) -> str:
        """Return the last sentence to print."""
        return ""


class _SingleView(_StatusView):
    """Shows the status of one database."""

    def __init__(
        self, config: Config, file: Path, title: str, parts: tuple[str, ...], opened: ExitStack
    ) -> None:
        super().__init__(title, opened.enter_context(picture(title, whole=False)))
        from tidelog import app

        self._key_commands = KeyCommands(config, str(file))
        self._shown.view.config = str(file)
        self._shown.view.quits = False
        self._parts = parts
        self._shown.view.starting = "capture" in parts
        self._make: Callable[[], StatusFeed] = lambda: app.StatusFeed(config)
        self._feed: StatusFeed | None = None
        self._printed: dict[str, str] = {}
        self._reads = 0
        self._fetched = DownloadLines(title, self._shown.say)

    def read_status(self, *, last: bool = False) -> float:
        try:
            if self._feed is None:
                self._feed = self._resources.enter_context(self._make())
            self._shown.history.add(self._feed.latest(last=last))
        except (TidelogError, OSError) as error:
            self._shown.view.here["view"] = f"what is going on can't be read: {error}"
            return 1.0
        self._shown.view.here.pop("view", None)
        if self._shown.redrawn or not self._feed.pays_per_request:
            return self._feed.poll_interval_s
        self._shown.line_every_s = math.inf  # only those of each read of the status
        self._reads += 1
        if self._reads == 1:  # the state that former processes left
            return FIRST_LINE_S
        self._shown.plain_lines(int(time.time() * 1000))
        return PAID_LINES_S

    def act(self, keys: list[str]) -> None:
        self._key_commands.act(keys, self._shown)

    def update(self, status: dict[str, Any]) -> None:
        parts = {self._parts[0]: status} if len(self._parts) == 1 else status
        for part, its in parts.items():
            self._update_part(part, its)

    def _update_part(self, part: str, its: Mapping[str, Any]) -> None:
        role, here = its.get("role"), self._shown.view.here
        if role in (None, "leading"):
            here.pop(part, None)
            if part == "capture" and role is None:
                self._shown.view.starting = False
            return
        leads = f"; {its['leader']} leads" if its.get("leader") else ""
        text = f"{part} {_ROLES.get(role, role)}{leads}"
        text += f": {its['reason']}" if its.get("reason") else ""
        here[part] = text
        if role != "starting":
            self._shown.view.starting = False
        if not self._shown.redrawn and self._printed.get(part) != text:
            self._printed[part] = text
            self._shown.say(f"{self._title}: {text}")

    def show_download(self, now: Download) -> None:
        if not self._shown.redrawn:
            self._fetched(now)
        elif now.done:
            self._shown.view.here.pop("fetching", None)
        else:
            self._shown.view.here["fetching"] = download_bar(now)

    def last_sentence(self) -> str:
        documents = self._shown.history.documents
        if not documents or "updated_ms" not in documents[-1]:
            return ""
        from tidelog.app.overview import overview
        from tidelog.cli.status_lines import closing

        return closing(overview(documents[-1], int(time.time() * 1000)))


_ROLES = {"standby": "stands by", "retrying": "tries again", "starting": "starts"}


class _MultiView(_StatusView):
    """Shows a verdict for each database."""

    def __init__(
        self, config: Config, file: Path, title: str, parts: tuple[str, ...], opened: ExitStack
    ) -> None:
        from tidelog.config.loading import of_each_database

        self._configs = of_each_database(config)
        self._histories = {name: StatusHistory() for name in self._configs}
        self._facts = {name: ChangedFacts() for name in self._configs}
        self._feeds: dict[str, StatusFeed] = {}
        self._line_at = float("-inf")
        super().__init__(title, opened.enter_context(picture(title, whole=False, draw=self._draw)))

    def read_status(self, *, last: bool = False) -> float:
        from tidelog import app

        wait_s, failed = 1.0, False
        for name, config in self._configs.items():
            try:
                if name not in self._feeds:
                    self._feeds[name] = self._resources.enter_context(app.StatusFeed(config))
                self._histories[name].add(self._feeds[name].latest(last=last))
                feed = self._feeds[name]
                paid_plain = feed.pays_per_request and not self._shown.redrawn
                wait_s = max(wait_s, PAID_LINES_S if paid_plain else feed.poll_interval_s)
            except (TidelogError, OSError):
                failed = True  # the last status stays on the screen
                continue
        if not self._shown.redrawn:
            self._plain_lines()
        return min(wait_s, FIRST_LINE_S) if failed else wait_s

    def _draw(self, now_ms: int, width: int, height: int) -> list[Any]:
        from tidelog.cli.watch.screen import several

        shown = {name: list(each.documents) for name, each in self._histories.items()}
        return several(shown, now_ms, width)[:height]

    def _plain_lines(self) -> None:
        from tidelog.app.overview import overview

        if time.monotonic() - self._line_at < terminal.PLAIN_INTERVAL_S:
            return
        self._line_at = time.monotonic()
        for name, history in self._histories.items():
            if history.documents:
                current = overview(history.documents[-1], int(time.time() * 1000))
                for fact in self._facts[name].of(current):
                    terminal.print_line(f"{self._title}: {name}: {fact}")
