"""A dump that somebody waits for: a bar a table, the total, and the time left."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live.live_area import LiveArea, can_be_redrawn
from tidelog.cli.live.stderr_lines import StderrLines
from tidelog.model.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

_DRAW_EVERY_S = 0.25
_KEPT = 40
"""Summaries, for rates over some seconds."""


class DumpBars:
    """Shows summaries of one dump as they come: redrawn, a plain line now and then, or JSON."""

    def __init__(self, area: LiveArea | None, *, as_json: bool) -> None:
        self._area = area
        self._as_json = as_json
        self._history: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._due = 0.0

    def update(self, dump: Mapping[str, Any]) -> None:
        """``dump``: as it is listed in a status."""
        if self._as_json:
            terminal.emit(dump)
            return
        now = time.monotonic()
        if now < self._due:
            return
        self._history.append({"updated_ms": int(time.time() * 1000), "dumps": [dict(dump)]})
        if self._area is None:
            self._due = now + terminal.PLAIN_INTERVAL_S
            terminal.say(sentence(dump))
        else:
            self._due = now + _DRAW_EVERY_S
            self._area.draw(self._lines(*self._area.size()))

    def delivery(self, found: Mapping[str, Any]) -> None:
        """What is known of its way into the outputs."""
        if self._as_json:
            terminal.emit(found)
            return
        now = time.monotonic()
        if now < self._due:
            return
        text = delivery_sentence(found)
        if self._area is None:
            self._due = now + terminal.PLAIN_INTERVAL_S
            terminal.say(text)
            return
        from tidelog.cli.watch.lines import fact

        self._due = now + _DRAW_EVERY_S
        self._area.draw(fact("outputs", text, self._area.size()[0]))

    def _lines(self, width: int, height: int) -> list[Text]:
        from tidelog.cli.watch.dumps import table_lines, total_line
        from tidelog.cli.watch.lines import fact, fitted, section

        history = list(self._history)
        dump = history[-1]["dumps"][0]
        head = [*fact("dump", sentence(dump), width), total_line(history, dump, width)]
        tables, folded = table_lines(history, dump, width, 0)
        parts = (section(0, head, 3), section(2, tables, 1, "tables"), section(1, [folded], 1))
        return fitted(parts, height)


def show_dump(report: Mapping[str, Any], *, as_json: bool) -> None:
    """A dump that has ended, in a sentence, with why tables failed; the keys that it did not find
    as a JSON list a line.
    """
    if as_json:
        terminal.emit(report)
        return
    terminal.print_sentence(sentence(report))
    for table in report.get("tables", ()):
        if table["status"] != "done":
            terminal.print_sentence(
                printable(f"{table['table']} {table['status']}: {table['reason']}")
            )
    for each in report.get("rejected", ()):
        terminal.print_sentence(printable(f"not dumped: {each['table']}: {each['reason']}"))
    for key in report.get("missing_keys", ()):
        terminal.say(f"missing: {terminal.to_json(key)}")


def sentence(dump: Mapping[str, Any]) -> str:
    """How far it is, as `tidelog status` says it, and why it stands still if capture holds it."""
    from tidelog.app.overview import dumping
    from tidelog.app.overview.dump_problems import as_held
    from tidelog.cli.status_lines import of_dump

    found = dumping(as_held(dump, dump.get("held") or ()), int(time.time() * 1000))
    return f"{of_dump(found)}. {found.held}" if found.held else of_dump(found)


def delivery_sentence(found: Mapping[str, Any]) -> str:
    """How many of a dump's tables the outputs hold."""
    taken = [table for table in found.get("tables", ()) if table["taken"]]
    held = sum(table["delivered"] for table in taken)
    dump = f"{found['dump_id']} is {found['status']}"
    said = f"{dump}; the outputs hold {held} of {len(taken)} tables completely"
    return f"{said}. {found['stands']}" if found.get("stands") else said


@contextmanager
def dump_bars(*, as_json: bool, quiet: bool = False) -> Iterator[DumpBars]:
    """On stdout's last lines, if that is a terminal."""
    with ExitStack() as opened:
        area = None
        if not as_json and not quiet and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        yield DumpBars(area, as_json=as_json)
