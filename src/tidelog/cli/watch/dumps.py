"""Dumps of a status document as a table of progress bars, with rates from several documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidelog.model.printable import printable
from tidelog.model.units import brief_span

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Mapping[str, Any]

RATE_OVER_MS = 3_000
NUMBERS = ("rows", "of about", "rows/s", "left", "chunks", "superseded", "voided")
WIDE = 100
LEFT_OUT = {"of about": 120, "left": WIDE, "voided": WIDE}  # where the terminal is narrower
COLOURS = {
    "running": "cyan", "completed": "green", "done": "green", "paused": "yellow",
    "aborted": "red", "failed": "red", "cancelled": "dim", "queued": "dim", "pending": "dim",
    "read": "cyan", "closed": "blue", "durable": "green", "voided": "magenta",
}  # fmt: skip


def dumps_table(
    history: Sequence[Status], *, active_only: bool, width: int = 110
) -> RenderableType:
    """Each table of each dump with its progress; tables of finished dumps only if asked for, or if
    there is no other. A narrow terminal (``width`` columns) is told less.
    """
    dumps: Sequence[Mapping[str, Any]] = history[-1].get("dumps") or ()
    shown = [d for d in dumps if d.get("status") not in ("completed", "aborted")]
    if not active_only:
        shown = list(dumps)
    elif not shown:
        shown = list(dumps[-1:])
    if not shown:
        return Text("no dumps", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("dump", "table", "state", "progress"):
        table.add_column(name, no_wrap=name != "table", overflow="fold")
    numbers = [name for name in NUMBERS if width >= LEFT_OUT.get(name, 0)]
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    notes = []
    for dump in shown:
        for place, progress in enumerate(dump.get("tables", ())):
            found = _numbers(history, dump, progress)
            table.add_row(
                Text(str(dump.get("dump_id", ""))[:14] if place == 0 else "", style="bold"),
                Text(printable(str(progress.get("table", "")))),
                Text(_state(dump, progress), style=COLOURS.get(_state(dump, progress), "")),
                _bar(share_read(progress)[0], _state(dump, progress), 12 if width >= WIDE else 8),
                *(found[name] for name in numbers),
            )
            if note := _note(dump, progress):
                notes.append(note)
    return Group(table, *notes)


def _state(dump: Mapping[str, Any], progress: Mapping[str, Any]) -> str:
    state = str(progress.get("status", ""))
    waiting = state in ("pending", "running") and dump.get("status") == "paused"
    return "paused" if waiting else state


def _numbers(
    history: Sequence[Status], dump: Mapping[str, Any], progress: Mapping[str, Any]
) -> dict[str, Text]:
    name, table = str(dump.get("dump_id", "")), str(progress.get("table"))
    read = progress.get("rows_read", 0)
    total = share_read(progress)[1]
    running = _state(dump, progress) == "running"
    rate = rate_of(history, lambda s: _table_of(s, name, table)["rows_read"]) if running else None
    left = (total - read) * 1000 / rate if total > read and rate else None
    return {
        "rows": Text(f"{read:,}"),
        "of about": Text(f"{total:,}" if total else "", style="dim"),
        "rows/s": Text(f"{rate:,.0f}" if rate else ""),
        "left": Text("" if left is None else f"≈{brief_span(left)}"),
        "chunks": Text(f"{progress.get('chunks', 0):,}"),
        "superseded": _count(progress.get("rows_superseded", 0), "blue"),
        "voided": _count(progress.get("chunks_voided", 0), "magenta"),
    }


def share_read(progress: Mapping[str, Any]) -> tuple[float | None, int]:
    """How much of the table is read, None if not known, and of how many rows or keys."""
    if progress.get("status") == "done":
        return 1.0, 0
    if total := progress.get("key_count", 0):
        return min(1.0, progress.get("keys_read", 0) / total), total
    total = progress.get("estimated_rows") or 0
    if not total or progress.get("where"):  # the estimate is of the whole table
        return None, 0
    return min(0.99, progress.get("rows_read", 0) / total), total


def _bar(share: float | None, state: str, cells: int) -> RenderableType:
    if share is None:
        return Text("?" if state == "running" else "", style="dim")
    grid = Table.grid(padding=(0, 1))
    colour = COLOURS.get(state, "cyan")
    bar = ProgressBar(100, share * 100, cells, complete_style=colour, finished_style=colour)
    grid.add_row(bar, f"{share:4.0%}")
    return grid


def _note(dump: Mapping[str, Any], progress: Mapping[str, Any]) -> Text | None:
    """What a person should know of a table beside its numbers."""
    parts = []
    if progress.get("reason"):
        parts.append(str(progress["reason"]))
    if failed := progress.get("failed_ranges"):
        parts.append(f"{failed} key ranges could not be read (`tidelog status --ranges`)")
    if missing := progress.get("keys_absent"):
        parts.append(f"{missing:,} keys were not in the table")
    if dump.get("mode") == "blocking" and progress.get("status") == "running":
        parts.append("blocking: the log waits")
    if not parts:
        return None
    failed_state = progress.get("status") == "failed" or progress.get("failed_ranges")
    text = f"  {progress.get('table')}: {'; '.join(parts)}"
    return Text(printable(text), style="red" if failed_state else "dim")


def _table_of(status: Status, dump_id: str, table: str) -> Mapping[str, Any]:
    for dump in status.get("dumps") or ():
        if dump.get("dump_id") == dump_id:
            for progress in dump.get("tables", ()):
                if progress.get("table") == table:
                    found: Mapping[str, Any] = progress
                    return found
    raise KeyError(table)


def _count(number: int, colour: str) -> Text:
    return Text(f"{number:,}", style=colour if number else "dim")


def rate_of(history: Sequence[Status], value: Callable[[Status], Any]) -> float | None:
    """Growth a second of ``value(status)`` over the last seconds; None if it can't be told."""
    newest = history[-1]
    for older in reversed(history[:-1]):
        span_ms = newest.get("updated_ms", 0) - older.get("updated_ms", 0)
        if span_ms < RATE_OVER_MS and older is not history[0]:
            continue
        try:
            grown = value(newest) - value(older)
        except (KeyError, TypeError, IndexError):
            return None
        return grown * 1000 / span_ms if span_ms > 0 and grown >= 0 else None
    return None
