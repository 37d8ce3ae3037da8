"""The picture beside what this process runs itself: capture, the pipeline, or both."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live.fetching import Lines, with_bar
from tidelog.cli.status_lines import ChangedFacts
from tidelog.cli.watch.commands import KeyCommands
from tidelog.cli.watch.feed import TURN_S
from tidelog.cli.watch.picture import Picture, StatusHistory, picture
from tidelog.errors import TidelogError
from tidelog.system.download_progress import Download, report_downloads

if TYPE_CHECKING:
    from tidelog.app import StatusFeed
    from tidelog.config import Config

OnStatus = Callable[[dict[str, Any]], None]
_JOIN_S = 5.0
PAID_LINES_S = 300.0
"""Between plain lines, where each request to the state store is paid for: one look makes ten."""
BEGUN_S = 40.0
"""When the first line must be shown."""


@contextmanager
def beside(
    config: Config, file: Path, title: str, parts: tuple[str, ...], *, as_json: bool
) -> Iterator[OnStatus]:
    """What to tell statuses to while it runs; shown is what all processes noted.

    Args:
        config: what runs; several databases have a verdict each.
        file: of the configuration, for commands to type.
        title: begins plain lines.
        parts: what runs here: ``capture``, ``pipeline``.
        as_json: what is told becomes lines of JSON, and no more is shown.
    """
    if as_json:
        yield terminal.emit
        return
    from tidelog.config.databases import databases_of

    view = _Several if databases_of(config) else _One
    with ExitStack() as opened:
        showing = view(config, file, title, parts, opened)
        thread = threading.Thread(target=showing.run, name="tidelog-view", daemon=True)
        thread.start()
        try:
            with report_downloads(showing.fetching):
                yield showing.told
        finally:
            showing.ended.set()
            thread.join(_JOIN_S)
    if (sentence := showing.closing()) and not thread.is_alive():
        terminal.print_sentence(sentence)


class _Showing:
    """A picture on a thread of its own: what runs waits neither for the terminal nor for stores."""

    def __init__(self, title: str, shown: Picture) -> None:
        self.ended = threading.Event()
        self._title = title
        self._shown = shown
        self._opened = ExitStack()

    def run(self) -> None:
        """Until ``ended``."""
        with ExitStack() as self._opened:
            due = time.monotonic()
            while not self.ended.is_set():
                self.act(self._shown.turn(int(time.time() * 1000), TURN_S))
                now = time.monotonic()
                if now >= due:
                    due = now + self.look()
            self.look(last=True)  # how it ended

    def look(self, *, last: bool = False) -> float:
        """See how it is; for how many seconds that will do. ``last``: this process ends."""
        raise NotImplementedError

    def act(self, keys: list[str]) -> None:
        """On keys that are not about the view."""

    def told(self, status: dict[str, Any]) -> None:
        """What runs here tells of itself."""

    def fetching(self, now: Download) -> None:
        """What comes over the network first."""

    def closing(self) -> str:
        """What is said last."""
        return ""


class _One(_Showing):
    def __init__(
        self, config: Config, file: Path, title: str, parts: tuple[str, ...], opened: ExitStack
    ) -> None:
        super().__init__(title, opened.enter_context(picture(title, whole=False)))
        from tidelog import app

        self._steering = KeyCommands(config, str(file))
        self._shown.view.config = str(file)
        self._parts = parts
        self._shown.view.starting = "capture" in parts
        self._make: Callable[[], StatusFeed] = lambda: app.StatusFeed(config)
        self._feed: StatusFeed | None = None
        self._said: dict[str, str] = {}
        self._looks = 0
        self._fetched = Lines(title, self._shown.say)

    def look(self, *, last: bool = False) -> float:
        try:
            if self._feed is None:
                self._feed = self._opened.enter_context(self._make())
            self._shown.history.add(self._feed.latest(last=last))
        except (TidelogError, OSError) as error:
            self._shown.view.here["view"] = f"what is going on can't be read: {error}"
            return 1.0
        self._shown.view.here.pop("view", None)
        if self._shown.redrawn or not self._feed.is_paid:
            return self._feed.ask_every_s
        self._shown.line_every_s = math.inf  # but for one at each look
        self._looks += 1
        if self._looks == 1:  # what others left
            return BEGUN_S
        self._shown.plain_lines(int(time.time() * 1000))
        return PAID_LINES_S

    def act(self, keys: list[str]) -> None:
        self._steering.act(keys, self._shown)

    def told(self, status: dict[str, Any]) -> None:
        parts = {self._parts[0]: status} if len(self._parts) == 1 else status
        for part, its in parts.items():
            self._told_of(part, its)

    def _told_of(self, part: str, its: Mapping[str, Any]) -> None:
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
        if not self._shown.redrawn and self._said.get(part) != text:
            self._said[part] = text
            self._shown.say(f"{self._title}: {text}")

    def fetching(self, now: Download) -> None:
        if not self._shown.redrawn:
            self._fetched(now)
        elif now.done:
            self._shown.view.here.pop("fetching", None)
        else:
            self._shown.view.here["fetching"] = with_bar(now)

    def closing(self) -> str:
        documents = self._shown.history.documents
        if not documents or "updated_ms" not in documents[-1]:
            return ""
        from tidelog.app.overview import overview
        from tidelog.cli.status_lines import closing

        return closing(overview(documents[-1], int(time.time() * 1000)))


_ROLES = {"standby": "stands by", "retrying": "tries again", "starting": "starts"}


class _Several(_Showing):
    """A verdict for each database."""

    def __init__(
        self, config: Config, file: Path, title: str, parts: tuple[str, ...], opened: ExitStack
    ) -> None:
        from tidelog.config.databases import of_each_database

        self._configs = of_each_database(config)
        self._histories = {name: StatusHistory() for name in self._configs}
        self._facts = {name: ChangedFacts() for name in self._configs}
        self._feeds: dict[str, StatusFeed] = {}
        self._line_at = float("-inf")
        super().__init__(title, opened.enter_context(picture(title, whole=False, draw=self._draw)))

    def look(self, *, last: bool = False) -> float:
        from tidelog import app

        wait_s, failed = 1.0, False
        for name, config in self._configs.items():
            try:
                if name not in self._feeds:
                    self._feeds[name] = self._opened.enter_context(app.StatusFeed(config))
                self._histories[name].add(self._feeds[name].latest(last=last))
                feed = self._feeds[name]
                paid_plain = feed.is_paid and not self._shown.redrawn
                wait_s = max(wait_s, PAID_LINES_S if paid_plain else feed.ask_every_s)
            except (TidelogError, OSError):
                failed = True  # shown as it was
                continue
        if not self._shown.redrawn:
            self._plain_lines()
        return min(wait_s, BEGUN_S) if failed else wait_s

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
                found = overview(history.documents[-1], int(time.time() * 1000))
                for fact in self._facts[name].of(found):
                    terminal.say(f"{self._title}: {name}: {fact}")
