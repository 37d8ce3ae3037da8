"""Windows as lanes over time: low watermark, read, high watermark; how they overlap on one log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from tidelog.app.overview import ChunkSpan
from tidelog.app.overview.chunk_timeline import lanes_of
from tidelog.model.printable import printable

SHORTEST_MS = 1_000
LONGEST_MS = 30_000


def windows_picture(status: Mapping[str, Any], now_ms: int, limit: int, width: int) -> Table:
    """At most ``limit`` lanes of ``width`` cells that end at ``now_ms``; open windows first."""
    lanes = lanes_of(status)
    open_lanes = [lane for lane in lanes if lane.ended_ms is None]
    ended = [lane for lane in lanes if lane.ended_ms is not None]
    open_lanes = open_lanes[: max(limit - len(ended), limit * 2 // 3)]
    shown = ended[len(ended) - max(0, limit - len(open_lanes)) :] + open_lanes
    oldest_ms = min((lane.begun_ms for lane in shown), default=now_ms)
    span_ms = min(max(now_ms - oldest_ms, SHORTEST_MS), LONGEST_MS)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, max_width=18, overflow="ellipsis")
    table.add_column(no_wrap=True, width=8)
    table.add_column(no_wrap=True, width=width)
    table.add_column(no_wrap=True)
    table.add_row(Text("table", "dim"), Text("chunk", "dim"), _axis(span_ms, width), Text(""))
    for lane in shown:
        table.add_row(
            Text(printable(lane.table)),
            Text(lane.chunk, style="dim"),
            bar(lane, now_ms, span_ms, width),
            _ending(lane),
        )
    return table


def bar(lane: ChunkSpan, now_ms: int, span_ms: int, width: int) -> Text:
    """``[`` low, ``━`` reading, ``╌`` waiting for high and disk, ``]`` durable; ``▶`` goes on."""

    def cell(at_ms: int) -> int:
        return round((at_ms - (now_ms - span_ms)) / span_ms * (width - 1))

    begin, end = cell(lane.begun_ms), cell(now_ms if lane.ended_ms is None else lane.ended_ms)
    read = end if lane.read_ms is None else cell(lane.read_ms)
    text = Text()
    for at in range(width):
        if at < begin or at > end:
            text.append(" ")
        elif at == begin and begin != end:
            text.append("[", style="bold")
        elif at == end:
            text.append(*_last(lane))
        elif at < read:
            text.append("━", style="cyan")
        else:
            text.append("╌", style="yellow")
    return text


def _last(lane: ChunkSpan) -> tuple[str, str]:
    if lane.ended_ms is None:
        return "▶", "bold cyan" if lane.read_ms is None else "bold yellow"
    return ("✗", "bold magenta") if lane.end in ("voided", "failed") else ("]", "bold green")


def _ending(lane: ChunkSpan) -> Text:
    if lane.ended_ms is None and lane.read_ms is None:
        return Text("reading", style="cyan")
    if lane.ended_ms is None:
        return Text("is written" if lane.written else "waits for high", style="yellow")
    if lane.end in ("voided", "failed"):
        return Text(lane.end, style="magenta")
    text = Text(f"{lane.rows:,} rows", style="dim")
    if lane.superseded:
        text.append(f" −{lane.superseded:,}", style="blue")
    return text


def _axis(span_ms: int, width: int) -> Text:
    left, right = f"−{span_ms / 1000:.3g}s", "now"
    return Text(left + right.rjust(width - len(left)), style="dim")
