"""Shows a few changing facts: redrawn in place, as plain lines, or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.cli.live.live_area import LiveArea, can_be_redrawn
from tidelog.cli.live.stderr_lines import StderrLines

if TYPE_CHECKING:
    from rich.text import Text

Facts = Callable[[Mapping[str, Any]], list[tuple[str, str, float | None]]]
"""Returns the facts of a document: name, text, and the share done, where a bar shall show it."""

_CELLS = 20


@contextmanager
def live_facts(
    title: str, facts: Facts, *, as_json: bool, quiet: bool = False, error: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that shows the documents that it is called with.

    Args:
        title: the start of each plain line.
        facts: returns the facts of a document; when the first one changes, a plain line is printed
            at once.
        as_json: whether to print whole documents as lines of JSON.
        quiet: whether to print nothing.
        error: whether plain lines go to stderr: stdout has the report alone.
    """
    with ExitStack() as opened:
        area = None
        if not (as_json or quiet) and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        due, first = 0.0, ""

        def show(document: Mapping[str, Any]) -> None:
            nonlocal due, first
            if quiet:
                return
            if as_json:
                terminal.emit(document)
                return
            shown = facts(document)
            if area is not None:
                area.draw(fact_lines(shown, area.size()[0]))
            elif time.monotonic() >= due or shown[0][1] != first:
                due, first = time.monotonic() + terminal.PLAIN_INTERVAL_S, shown[0][1]
                line = f"{title}: {'; '.join(text for _, text, _ in shown)}"
                terminal.print_line(line, error=error)

        yield show


def fact_lines(shown: list[tuple[str, str, float | None]], width: int) -> list[Text]:
    """Return the facts as lines of ``width`` columns."""
    from tidelog.cli.watch.dumps import bar
    from tidelog.cli.watch.lines import fact

    lines = []
    for name, text, share in shown:
        its = fact(name, text, width)
        if share is not None and its[-1].cell_len + _CELLS + 2 <= width:
            its[-1].append("  ").append_text(bar(share, _CELLS))
        lines += its
    return lines
