"""Builds the lines of a view, and fits them into a terminal that is too small for all."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from tidelog.model.printable import printable

NAME = 9
"""Columns of the name at the start of a line."""
SPARKS = " ▁▂▃▄▅▆▇█"
_UNBROKEN = "\u00a0"


def wrap_lines(
    text: str, width: int, *, first: str = "", rest: str = "", style: str = ""
) -> list[Text]:
    """Break ``text`` into lines between words; ``first``, ``rest``: the prefixes of the lines.

    A word that is wider than the terminal is cut off there.
    """
    broken = textwrap.wrap(
        printable(text).replace(" %", f"{_UNBROKEN}%"),
        max(20, width),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Text(line.replace(_UNBROKEN, " "), style=style) for line in broken]


def fact(name: str, text: str, width: int, *, style: str = "") -> list[Text]:
    """Return ``name`` in its own column, in grey, and the text beside it."""
    lines = wrap_lines(text, width, first=" " * NAME, rest=" " * NAME, style=style)
    if lines:
        lines[0] = Text(f"{name:<{NAME}}", style="dim").append_text(lines[0][NAME:])
    return lines


def sparks(values: Sequence[float], style: str) -> Text:
    """Return a character for each value, as high as its share of the greatest one."""
    most = max(values, default=0.0)
    bars = (SPARKS[round(value / most * 8)] if most else SPARKS[0] for value in values)
    return Text("".join(bars), style=style)


def rendered_lines(picture: RenderableType, width: int) -> list[Text]:
    """Return the lines of a Rich renderable."""
    console = Console(width=width, file=None, highlight=False)
    lines = console.render_lines(picture, console.options.update(width=width), pad=False)
    return [
        Text.assemble(*((segment.text, segment.style or "") for segment in line)) for line in lines
    ]


@dataclass(frozen=True, slots=True)
class ScreenSection:
    """A part of the view.

    Attributes:
        rank: the priority; sections of a higher rank shrink first.
        wanted: the number of all its lines.
        least: the number of lines it gets before a section of a higher rank gets any.
        lines: returns at most so many of its lines.
    """

    rank: int
    wanted: int
    least: int
    lines: Callable[[int], Sequence[Text]]


def section(rank: int, lines: Sequence[Text], least: int, more: str = "lines") -> ScreenSection:
    """Return a section that is cut off where there is no room, and says how much is missing."""

    def cut(room: int) -> Sequence[Text]:
        if len(lines) <= room or room < 1:
            return lines[:room]
        if room == 1:
            return lines[:1]
        return [
            *lines[: room - 1],
            Text(f"{'':<{NAME}}… {len(lines) - room + 1} more {more}", "dim"),
        ]

    return ScreenSection(rank, len(lines), min(least, len(lines)), cut)


def fit_sections(sections: Iterable[ScreenSection], room: int) -> list[Text]:
    """Return the lines of all sections in their order, at most ``room``."""
    shown = list(sections)
    by_rank = sorted(range(len(shown)), key=lambda at: shown[at].rank)
    given = dict.fromkeys(by_rank, 0)
    for wishes in ([each.least for each in shown], [each.wanted for each in shown]):
        for at in by_rank:
            more = min(room, max(0, wishes[at] - given[at]))
            given[at] += more
            room -= more
    return [line for at, each in enumerate(shown) for line in each.lines(given[at])]
