"""Windows as lanes over time: low watermark, read, high watermark; how they overlap on one log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from tidelog.model.printable import printable

SHORTEST_MS = 1_000
LONGEST_MS = 30_000
ENDS = frozenset({"closed", "durable", "voided", "failed"})


@dataclass(slots=True)
class Lane:
    """One chunk: when its window was begun, read and ended; None: not yet."""

    chunk: str
    table: str
    begun_ms: int
    read_ms: int | None = None
    ended_ms: int | None = None
    end: str = ""
    written: bool = False  # its high watermark was met; the segment is not durable yet
    rows: int = 0
    superseded: int = 0


def lanes_of(status: Mapping[str, Any]) -> list[Lane]:
    """The windows that are open and those that ended lately, by the time they began."""
    lanes: dict[str, Lane] = {}
    updated_ms = int(status.get("updated_ms", 0))
    for event in status.get("events") or ():
        chunk, kind, at_ms = str(event.get("chunk", "")), event.get("event"), event.get("at_ms", 0)
        if kind == "begun" and chunk:
            lanes[chunk] = Lane(chunk, str(event.get("table", "")), at_ms)
        elif chunk in lanes:
            lane = lanes[chunk]
            lane.rows = event.get("rows", lane.rows)
            lane.superseded = event.get("superseded", lane.superseded)
            if kind == "read":
                lane.read_ms = at_ms
            elif kind in ENDS and lane.ended_ms is None:
                lane.ended_ms, lane.end = at_ms, str(kind)
    for window in status.get("windows") or ():
        chunk = str(window.get("chunk", ""))
        if chunk and chunk not in lanes:  # begun before the oldest event that is kept
            begun_ms = updated_ms - int(window.get("age_ms", 0))
            lanes[chunk] = Lane(chunk, str(window.get("table", "")), begun_ms)
            if window.get("state") != "reading":
                lanes[chunk].read_ms = updated_ms
        if chunk:
            lanes[chunk].written = window.get("state") == "closing"
    is_open = {str(window.get("chunk", "")) for window in status.get("windows") or ()}
    known = (lane for lane in lanes.values() if lane.ended_ms is not None or lane.chunk in is_open)
    return sorted(known, key=lambda lane: lane.begun_ms)


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


def bar(lane: Lane, now_ms: int, span_ms: int, width: int) -> Text:
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


def _last(lane: Lane) -> tuple[str, str]:
    if lane.ended_ms is None:
        return "▶", "bold cyan" if lane.read_ms is None else "bold yellow"
    return ("✗", "bold magenta") if lane.end in ("voided", "failed") else ("]", "bold green")


def _ending(lane: Lane) -> Text:
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
