"""Windows on the log and how the last chunks ended, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from tidelog.app.overview.chunk_timeline import ENDS
from tidelog.cli.watch.dumps import COLOURS
from tidelog.cli.watch.lanes import windows_picture
from tidelog.cli.watch.lines import NAME, drawn, fact
from tidelog.model.printable import printable
from tidelog.model.units import brief_span

BESIDE_LANES = 58


def windows_lines(status: Mapping[str, Any], now_ms: int, width: int, room: int) -> list[Text]:
    """A lane for each chunk of the last seconds, and under them how chunks ended."""
    if not status.get("windows") and not status.get("events"):
        return fact("windows", "no chunk is being read", width)
    lanes = max(3, room * 2 // 3)
    picture = windows_picture(status, now_ms, lanes, max(20, width - BESIDE_LANES))
    lines = [*fact("windows", "on the log, from low to high watermark", width)]
    lines += drawn(picture, width)
    return lines + drawn(_ended(status, max(2, room - lanes)), width)


def _ended(status: Mapping[str, Any], limit: int) -> Table:
    """The newest first."""
    table = Table.grid(padding=(0, 2))
    for _ in range(6):
        table.add_column(no_wrap=True, overflow="ellipsis")
    shown = [event for event in status.get("events", ()) if event.get("event") in ENDS]
    now_ms = status.get("updated_ms", 0)
    for event in list(reversed(shown))[:limit]:
        kind = str(event.get("event"))
        rows, superseded = event.get("rows"), event.get("superseded")
        ago = brief_span(max(0, now_ms - event.get("at_ms", now_ms)))
        table.add_row(
            Text(f"{'':<{NAME}}{ago} ago", style="dim"),
            Text(str(event.get("chunk", ""))[:8], style="dim"),
            Text(printable(str(event.get("table", "")))),
            Text(kind, style=COLOURS.get(kind, "")),
            "" if rows is None else f"{rows:,} rows",
            Text(f"{superseded:,} superseded" if superseded else "", style="blue"),
        )
    return table
