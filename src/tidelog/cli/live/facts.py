"""A few facts that change, redrawn in place; a plain line now and then; or JSON."""

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
"""The facts of a document: name, text, and the share that is done, where a bar shall show it."""

_CELLS = 20


@contextmanager
def live_facts(
    title: str, facts: Facts, *, as_json: bool, quiet: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that shows the documents that it is given.

    Args:
        title: begins plain lines.
        facts: what of a document is shown; the first of them begins a plain line at once when it
            changes.
        as_json: whole documents as lines of JSON.
        quiet: nothing.
    """
    with ExitStack() as opened:
        area = None
        if not (as_json or quiet) and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        due, first = 0.0, ""

        def told(document: Mapping[str, Any]) -> None:
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
                terminal.say(f"{title}: {'; '.join(text for _, text, _ in shown)}")

        yield told


def fact_lines(shown: list[tuple[str, str, float | None]], width: int) -> list[Text]:
    """As lines of ``width`` columns."""
    from tidelog.cli.watch.dumps import bar
    from tidelog.cli.watch.lines import fact

    lines = []
    for name, text, share in shown:
        its = fact(name, text, width)
        if share is not None and its[-1].cell_len + _CELLS + 2 <= width:
            its[-1].append("  ").append_text(bar(share, _CELLS))
        lines += its
    return lines
