"""Shows a dump while a command waits for it: a bar for each table, the total, the time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live import ProgressView, live_area
from tidelog.cli.status_lines import ScreenRow, of_dump
from tidelog.model.printable import printable

if TYPE_CHECKING:
    from tidelog.app.overview import RunningDump

_KEPT = 40
"""How many summaries to keep, for rates over some seconds."""


class DumpBars:
    """Shows summaries of one dump."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._history: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def update(self, dump: Mapping[str, Any]) -> None:
        """Show a summary. ``dump``: as in the list of a status."""
        tables = [(each["table"], each["status"]) for each in dump.get("tables", ())]
        blocks = [each["why"] for each in dump.get("held", ())]
        self._history.append({"updated_ms": int(time.time() * 1000), "dumps": [dict(dump)]})

        def rows(width: int, height: int) -> Iterator[ScreenRow]:
            from tidelog.cli.screen import progress_rows

            history = list(self._history)
            return progress_rows(history, dump, _progress(dump), width, height)

        self._view.show(dump, sentence(dump), rows, state=(dump["status"], tables, blocks))

    def delivery(self, state: Mapping[str, Any]) -> None:
        """Show how far the dump is delivered to the outputs."""
        tables = [
            (each["table"], each["taken"], each["delivered"]) for each in state.get("tables", ())
        ]
        text = delivery_sentence(state)
        rows = [ScreenRow("outputs", text)]
        states = (state["status"], tables, state.get("stands"))
        self._view.show(state, text, lambda _width, _height: rows, state=states)


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
    progress = _progress(dump)
    return f"{of_dump(progress)}. {progress.held}" if progress.held else of_dump(progress)


def _progress(dump: Mapping[str, Any]) -> RunningDump:
    from tidelog.app.overview import dump_progress
    from tidelog.app.overview.problems import as_blocked

    return dump_progress(as_blocked(dump, dump.get("held") or ()), int(time.time() * 1000))


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
    with live_area(wanted=not (as_json or quiet)) as area:
        yield DumpBars(ProgressView(area, as_json=as_json))
