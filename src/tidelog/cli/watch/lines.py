"""Builds the lines of a view, such as those of dumps, and fits them into a small terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from tidelog.app.overview.problems import is_dump_unfinished, table_has_ended
from tidelog.model.printable import printable
from tidelog.model.units import brief_span

NAME_COLUMNS = 9
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
    lines = wrap_lines(text, width, first=" " * NAME_COLUMNS, rest=" " * NAME_COLUMNS, style=style)
    if lines:
        lines[0] = Text(f"{name:<{NAME_COLUMNS}}", style="dim").append_text(lines[0][NAME_COLUMNS:])
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
            Text(f"{'':<{NAME_COLUMNS}}… {len(lines) - room + 1} more {more}", "dim"),
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


# Dumps as lines with bars, and rates from several documents.

Status = Mapping[str, Any]
Progress = Mapping[str, Any]

RATE_OVER_MS = 3_000
WIDE, WIDEST = 100, 130
FULL, EMPTY = "█", "░"
COLOURS = {
    "running": "cyan", "completed": "green", "done": "green", "paused": "yellow",
    "aborted": "red", "failed": "red", "cancelled": "dim", "queued": "dim", "pending": "dim",
    "read": "cyan", "closed": "blue", "durable": "green", "voided": "magenta",
}  # fmt: skip
_FIRST = ("running", "paused", "failed", "pending", "cancelled", "done")
"""The states in the order of their importance to the reader."""
_FOLDED = frozenset({"pending", "done", "cancelled"})
_LABELS = {"pending": "to come"}


def unfinished_dumps(status: Status) -> list[Mapping[str, Any]]:
    """Return the dumps that have not ended, the oldest first."""
    return [each for each in status.get("dumps") or () if is_dump_unfinished(each)]


def bar(share: float, cells: int, style: str = "cyan") -> Text:
    """Return a bar of ``cells`` cells, filled by ``share``; full only at the end."""
    full = cells if share >= 1 else min(cells - 1, int(share * cells))
    return Text(FULL * full, style=style).append(EMPTY * (cells - full), style="dim")


def total_line(
    history: Sequence[Status], dump: Mapping[str, Any], width: int, share: float | None = None
) -> Text:
    """Return a bar for the whole dump, and its rate.

    ``share``: the share done of an overview; None: computed from the tables.
    """
    shares = [share_read(table) for table in dump.get("tables") or ()]
    known = [each for each, _ in shares if each is not None]
    read, total = _rows(dump)
    if share is None:
        share = read / total if total else sum(known) / max(1, len(shares))
    if is_dump_unfinished(dump):
        share = min(0.99, share)
    text = Text(" " * NAME_COLUMNS).append_text(bar(share, max(10, min(60, width - 44))))
    text.append(f" {share:4.0%}", style="bold")
    name = str(dump.get("dump_id", ""))
    rate = rate_of(history, lambda s: _rows(_dump_of(s, name))[0])
    if rate and dump.get("status") == "running":
        text.append(f"  {rate:,.0f} rows a second")
    return text


def _rows(dump: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows read, and the estimated total; 0: a table's size is not known."""
    read, total = 0, 0
    known = True
    for table in dump.get("tables") or ():
        rows = table.get("rows_read", 0)
        read += rows
        expected = rows if table_has_ended(table) else share_read(table)[1]
        known = known and bool(expected or table_has_ended(table))
        total += max(rows, expected)
    return read, total if known else 0


def table_lines(
    history: Sequence[Status], dump: Mapping[str, Any], width: int, scroll: int
) -> tuple[list[Text], Text]:
    """Return a line for each table that is active, and a line that counts the others.

    The others are shown when the user scrolls (``scroll`` lines) to them.
    """
    tables = sorted(dump.get("tables") or (), key=lambda t: _FIRST.index(_state(dump, t)))
    states = Counter(_state(dump, table) for table in tables)
    shown = [t for t in tables if _state(dump, t) not in _FOLDED] if not scroll else tables[scroll:]
    names = [printable(str(table.get("table", ""))) for table in shown]
    room = width - NAME_COLUMNS - (48 if width < WIDE else 64 if width < WIDEST else 92)
    longest = min(max(map(len, names), default=0), max(12, room))
    lines = []
    for name, table in zip(names, shown, strict=True):
        lines.append(_table_line(history, dump, table, name, longest, width))
        lines += _note(dump, table, width)
    folded = [f"{states[each]:,} {_LABELS.get(each, each)}" for each in _FIRST if states[each]]
    hint = "   ↑ ↓ go through them" if len(tables) > len(lines) else ""
    return lines, Text(f"{'':<{NAME_COLUMNS}}{', '.join(folded)}{hint}", style="dim")


def _table_line(
    history: Sequence[Status],
    dump: Mapping[str, Any],
    table: Progress,
    name: str,
    longest: int,
    width: int,
) -> Text:
    if len(name) > longest:  # tables of one kind differ at their end
        end = longest // 2
        name = f"{name[: longest - end - 1]}…{name[-end:]}"
    state = _state(dump, table)
    text = Text(f"{'':<{NAME_COLUMNS}}{name:<{longest}} ")
    share, total = share_read(table)
    read = table.get("rows_read", 0)
    if share is None:
        text.append(f"{'?' if state == 'running' else '':<15} ", style="dim")
    else:
        text.append_text(bar(share, 10, COLOURS.get(state, "cyan"))).append(f" {share:4.0%} ")
    text.append(f"{read:>11,}")
    if width >= WIDE:
        text.append(f" {f'of {total:,}' if total else '':<15}", style="dim")
    if state != "running":
        return text.append(f"  {_LABELS.get(state, state)}", style=COLOURS.get(state, ""))
    key = str(dump.get("dump_id", "")), str(table.get("table"))
    rate = rate_of(history, lambda s: _table_of(s, *key)["rows_read"])
    left = (total - read) * 1000 / rate if total > read and rate else None
    text.append(f" {f'{rate:,.0f}/s' if rate else '':>10}")
    text.append(f" {'' if left is None else f'≈{brief_span(max(1000, round(left, -3)))}':>8}")
    if width >= WIDEST:
        superseded, voided = table.get("rows_superseded", 0), table.get("chunks_voided", 0)
        text.append(f"  {superseded:,} superseded" if superseded else "", style="blue")
        text.append(f"  {voided:,} void" if voided else "", style="magenta")
    return text


def _state(dump: Mapping[str, Any], progress: Progress) -> str:
    state = str(progress.get("status", ""))
    if state == "running" and dump.get("status") == "paused":
        return "paused"
    return state if state in _FIRST else "pending"


def share_read(progress: Progress) -> tuple[float | None, int]:
    """Return the share of the table that is read (None: unknown), and its total rows or keys."""
    if progress.get("status") == "done":
        return 1.0, 0
    if total := progress.get("key_count", 0):
        return min(1.0, progress.get("keys_read", 0) / total), total
    total = progress.get("estimated_rows") or 0
    if not total or progress.get("where"):  # the estimate is of the whole table
        return None, 0
    return min(0.99, progress.get("rows_read", 0) / total), total


def _note(dump: Mapping[str, Any], progress: Progress, width: int) -> list[Text]:
    """Return remarks on a table: errors, missing keys, a blocking dump."""
    parts = []
    if progress.get("reason") and progress.get("status") == "failed":
        parts.append(str(progress["reason"]))
    if failed := progress.get("failed_ranges"):
        parts.append(f"{failed} key ranges could not be read (`tidelog status --ranges`)")
    if missing := progress.get("keys_absent"):
        parts.append(f"{missing:,} keys were not in the table")
    if dump.get("mode") == "blocking" and progress.get("status") == "running":
        parts.append("blocking: the log waits")
    if not parts:
        return []
    failed_state = progress.get("status") == "failed" or progress.get("failed_ranges")
    indent = " " * (NAME_COLUMNS + 2)
    style = "red" if failed_state else "dim"
    return wrap_lines("; ".join(parts), width, first=indent, rest=indent, style=style)


def _dump_of(status: Status, dump_id: str) -> Mapping[str, Any]:
    for dump in status.get("dumps") or ():
        if dump.get("dump_id") == dump_id:
            match: Mapping[str, Any] = dump
            return match
    raise KeyError(dump_id)


def _table_of(status: Status, dump_id: str, table: str) -> Progress:
    for progress in _dump_of(status, dump_id).get("tables", ()):
        if progress.get("table") == table:
            match: Progress = progress
            return match
    raise KeyError(table)


def rate_of(history: Sequence[Status], value: Callable[[Status], Any]) -> float | None:
    """Return the growth a second of ``value(status)`` over the last seconds; None if unknown."""
    newest = history[-1]
    for older in reversed(history[:-1]):
        span_ms = newest.get("updated_ms", 0) - older.get("updated_ms", 0)
        if span_ms < RATE_OVER_MS and older is not history[0]:
            continue
        try:
            grown = value(newest) - value(older)
        except (AttributeError, KeyError, TypeError):  # it did not exist yet
            return None
        return grown * 1000 / span_ms if span_ms > 0 and grown >= 0 else None
    return None
