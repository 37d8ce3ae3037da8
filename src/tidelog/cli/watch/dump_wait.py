"""Shows a dump while a command waits for it: a bar for each table, the total, the time left."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live import LiveArea, StderrLines, can_be_redrawn
from tidelog.model.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

_DRAW_EVERY_S = 0.25
_KEPT = 40
"""How many summaries to keep, for rates over some seconds."""


class DumpBars:
    """Shows summaries of one dump: redrawn, as plain lines, or as JSON."""

    def __init__(self, area: LiveArea | None, *, as_json: bool) -> None:
        self._area = area
        self._as_json = as_json
        self._history: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._next_at = 0.0
        self._emitted: object = None

    def update(self, dump: Mapping[str, Any]) -> None:
        """Show a summary. ``dump``: as in the list of a status."""
        if self._as_json:
            tables = [(each["table"], each["status"]) for each in dump.get("tables", ())]
            blocks = [each["why"] for each in dump.get("held", ())]
            self._emit_change(dump, (dump["status"], tables, blocks))
            return
        now = time.monotonic()
        if now < self._next_at:
            return
        self._history.append({"updated_ms": int(time.time() * 1000), "dumps": [dict(dump)]})
        if self._area is None:
            self._next_at = now + terminal.PLAIN_INTERVAL_S
            terminal.print_line(sentence(dump))
        else:
            self._next_at = now + _DRAW_EVERY_S
            self._area.draw(self._lines(*self._area.size()))

    def delivery(self, state: Mapping[str, Any]) -> None:
        """Show how far the dump is delivered to the outputs."""
        if self._as_json:
            tables = [
                (each["table"], each["taken"], each["delivered"])
                for each in state.get("tables", ())
            ]
            self._emit_change(state, (state["status"], tables, state.get("stands")))
            return
        now = time.monotonic()
        if now < self._next_at:
            return
        text = delivery_sentence(state)
        if self._area is None:
            self._next_at = now + terminal.PLAIN_INTERVAL_S
            terminal.print_line(text)
            return
        from tidelog.cli.watch.lines import fact

        self._next_at = now + _DRAW_EVERY_S
        self._area.draw(fact("outputs", text, self._area.size()[0]))

    def _emit_change(self, document: Mapping[str, Any], state: object) -> None:
        """Write the document as a line, unless ``state`` is as in the last one."""
        if state != self._emitted:
            self._emitted = state
            terminal.emit(document)

    def _lines(self, width: int, height: int) -> list[Text]:
        from tidelog.cli.watch.lines import fact, fit_sections, section, table_lines, total_line

        history = list(self._history)
        dump = history[-1]["dumps"][0]
        head = [*fact("dump", sentence(dump), width), total_line(history, dump, width)]
        tables, folded = table_lines(history, dump, width, 0)
        parts = (section(0, head, 3), section(2, tables, 1, "tables"), section(1, [folded], 1))
        return fit_sections(parts, height)


def show_dump(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a finished dump: a sentence, and why tables failed.

    The keys that were not in the table follow as a JSON list a line.
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
        terminal.print_line(f"missing: {terminal.to_json(key)}")


def sentence(dump: Mapping[str, Any]) -> str:
    """Describe the progress as `tidelog status` does, and what blocks the dump."""
    from tidelog.app.overview import dump_progress
    from tidelog.app.overview.problems import as_blocked
    from tidelog.cli.status_lines import of_dump

    progress = dump_progress(as_blocked(dump, dump.get("held") or ()), int(time.time() * 1000))
    return f"{of_dump(progress)}. {progress.held}" if progress.held else of_dump(progress)


def delivery_sentence(state: Mapping[str, Any]) -> str:
    """Describe how many of the dump's tables the outputs have."""
    taken = [table for table in state.get("tables", ()) if table["taken"]]
    complete = sum(table["delivered"] for table in taken)
    dump = f"{state['dump_id']} is {state['status']}"
    text = f"{dump}; the outputs hold {complete} of {len(taken)} tables completely"
    text += "".join(f"; {each['table']}: {each['reason']}" for each in taken if each["reason"])
    return f"{text}. {state['stands']}" if state.get("stands") else text


@contextmanager
def dump_bars(*, as_json: bool, quiet: bool = False) -> Iterator[DumpBars]:
    """Open `DumpBars` on the last lines of stdout, if that is a terminal."""
    with ExitStack() as opened:
        area = None
        if not as_json and not quiet and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        yield DumpBars(area, as_json=as_json)
