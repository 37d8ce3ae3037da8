"""The timeline of dump chunks: when their windows began, were read and ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.app.overview.document import ChunkSpan

ENDS = frozenset({"closed", "durable", "voided", "failed"})


def lanes_of(status: Mapping[str, Any]) -> list[ChunkSpan]:
    """Return the open windows and those that ended lately, by the time they began."""
    lanes: dict[str, ChunkSpan] = {}
    updated_ms = int(status.get("updated_ms", 0))
    for event in status.get("events") or ():
        chunk, kind, at_ms = str(event.get("chunk", "")), event.get("event"), event.get("at_ms", 0)
        if kind == "begun" and chunk:
            lanes[chunk] = ChunkSpan(chunk, str(event.get("table", "")), at_ms)
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
            lanes[chunk] = ChunkSpan(chunk, str(window.get("table", "")), begun_ms)
            if window.get("state") != "reading":
                lanes[chunk].read_ms = updated_ms
        if chunk:
            lanes[chunk].written = window.get("state") == "closing"
    is_open = {str(window.get("chunk", "")) for window in status.get("windows") or ()}
    shown = (lane for lane in lanes.values() if lane.ended_ms is not None or lane.chunk in is_open)
    return sorted(shown, key=lambda lane: lane.begun_ms)
