"""Lines of a picture, and how they share a terminal that is too small for all."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from tidelog.model.printable import printable

NAME = 9
"""Columns of what a line is about."""
SPARKS = " ▁▂▃▄▅▆▇█"
_UNBROKEN = "\u00a0"


def wrapped(
    text: str, width: int, *, first: str = "", rest: str = "", style: str = ""
) -> list[Text]:
    """``text`` as lines that break between words alone; ``first``, ``rest``: what they begin with.
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
    """``name`` in a column of its own, in grey; what is said, beside it."""
    lines = wrapped(text, width, first=" " * NAME, rest=" " * NAME, style=style)
    if lines:
        lines[0] = Text(f"{name:<{NAME}}", style="dim").append_text(lines[0][NAME:])
    return lines


def sparks(values: Sequence[float], style: str) -> Text:
    """A character each, as high as it is beside the highest."""
    most = max(values, default=0.0)
    bars = (SPARKS[round(value / most * 8)] if most else SPARKS[0] for value in values)
    return Text("".join(bars), style=style)


def drawn(picture: RenderableType, width: int) -> list[Text]:
    """The lines of something that Rich draws."""
    console = Console(width=width, file=None, highlight=False)
    lines = console.render_lines(picture, console.options.update(width=width), pad=False)
    return [
        Text.assemble(*((segment.text, segment.style or "") for segment in line)) for line in lines
    ]


@dataclass(frozen=True, slots=True)
class ScreenSection:
    """A part of a picture.

    Attributes:
        rank: the lower, the later it gives way.
        wanted: lines of all of it.
        least: lines that it wants before a section of a higher rank has any.
        lines: its lines, at most so many.
    """

    rank: int
    wanted: int
    least: int
    lines: Callable[[int], Sequence[Text]]


def section(rank: int, lines: Sequence[Text], least: int, more: str = "lines") -> ScreenSection:
    """One that is cut off where there is no room, and says how much is missing."""

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


def fitted(sections: Iterable[ScreenSection], room: int) -> list[Text]:
    """All of them in their order, in ``room`` lines."""
    shown = list(sections)
    by_rank = sorted(range(len(shown)), key=lambda at: shown[at].rank)
    given = dict.fromkeys(by_rank, 0)
    for wishes in ([each.least for each in shown], [each.wanted for each in shown]):
        for at in by_rank:
            more = min(room, max(0, wishes[at] - given[at]))
            given[at] += more
            room -= more
    return [line for at, each in enumerate(shown) for line in each.lines(given[at])]
