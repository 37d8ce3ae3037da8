"""Fits rows into a terminal of any size. Rich wraps texts and measures wide characters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from tidelog.cli import terminal
from tidelog.cli.status_lines import MORE, NAME_COLUMNS, REMEDY, ScreenRow
from tidelog.cli.terminal import SIGNS
from tidelog.model.printable import printable

CELLS = 20
"""The cells of a bar."""
_FULL, _EMPTY = "█", "░"
_SPARKS = " ▁▂▃▄▅▆▇█"
_SIGNS = {sign for _, sign in SIGNS.values()}
_CONSOLE = Console(width=80, highlight=False)
_NARROWEST = 20


def fit_rows(rows: Sequence[ScreenRow], width: int, height: int, config: str = "") -> list[Text]:
    """Return the lines of the rows in their order, at most ``height``; the lowest ranks first.

    ``config``: where something is left out, the last line names `tidelog status` with this
    configuration; empty: it does not.
    """
    drawn = [draw_row(row, width) for row in rows]
    total = sum(map(len, drawn))
    room = height - bool(config and total > height)
    by_rank = sorted(range(len(rows)), key=lambda at: rows[at].rank)
    given = [0] * len(rows)
    for wishes in ([row.least for row in rows], [height] * len(rows)):
        for at in by_rank:
            more = max(0, min(room, wishes[at], len(drawn[at]) - given[at]))
            given[at] += more
            room -= more
    shown: list[Text] = []
    for lines, count in zip(drawn, given, strict=True):
        shown += lines[:count]
        if 0 < count < len(lines):
            shown[-1].truncate(width - 1, overflow="crop")
            shown[-1].append("…")
    if config and total > height:
        left = total - len(shown)
        shown.append(Text(f"  … {left} more lines: tidelog status {config}", style="dim"))
    return shown[:height]


def print_rows(rows: Sequence[ScreenRow], config: str) -> None:
    """Print the rows on a terminal; those that do not fit are left out."""
    console = terminal.console()
    for line in fit_rows(rows, console.width, console.height - 1, f"{config} | more"):
        console.print(line, soft_wrap=True)


def draw_row(row: ScreenRow, width: int, columns: int = NAME_COLUMNS) -> list[Text]:
    """Return the lines of a row; ``columns``: of its name. Further lines are indented likewise."""
    indent, first = columns, Text(f"{row.name:<{columns}}", style="dim")
    if row.name in _SIGNS:
        indent, first = 2, Text(f"{row.name} ", style=row.style)
    elif row.name in (REMEDY, MORE):
        indent, first = 4, Text(f"  {row.name} ", style="dim")
    text = row.text if isinstance(row.text, Text) else Text(printable(row.text), row.style)
    if row.share is not None:
        text = text.copy().append("  ").append_text(bar(row.share))
    room = width - indent - (len(row.beside) + 2 if row.beside else 0)
    lines = list(text.wrap(_CONSOLE, max(_NARROWEST, room)))
    drawn = [
        Text.assemble(" " * indent if at else first, line, no_wrap=True, overflow="ellipsis")
        for at, line in enumerate(lines)
    ]
    if row.beside:
        space = width - drawn[0].cell_len - len(row.beside)
        drawn[0].append(" " * space).append(row.beside, "dim")
    return drawn


def unwrapped(text: str | Text, style: str = "") -> Text:
    """Return a text that is cut off at the end of its line."""
    return Text("", style=style, no_wrap=True, overflow="ellipsis").append(text)


def rendered_lines(picture: RenderableType, width: int) -> list[Text]:
    """Return the lines of a Rich renderable, such as a table."""
    lines = _CONSOLE.render_lines(picture, _CONSOLE.options.update(width=width), pad=False)
    return [
        unwrapped(Text.assemble(*((part.text, part.style or "") for part in line)))
        for line in lines
    ]


def bar(share: float, cells: int = CELLS, style: str = "cyan") -> Text:
    """Return a bar of ``cells`` cells, filled by ``share``; full only at the end."""
    full = cells if share >= 1 else min(cells - 1, int(share * cells))
    return Text(_FULL * full, style=style).append(_EMPTY * (cells - full), style="dim")


def sparks(values: Sequence[float], style: str) -> Text:
    """Return a character for each value, as high as its share of the greatest one."""
    most = max(values, default=0.0)
    bars = (_SPARKS[round(value / most * 8)] if most else _SPARKS[0] for value in values)
    return Text("".join(bars), style=style)
