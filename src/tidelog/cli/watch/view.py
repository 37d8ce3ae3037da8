"""Status documents as pictures for a terminal: pure functions, documents in, renderables out.

A field that a document lacks is left out: the view must show what another version of capture wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidelog.app.overview.lanes import ENDS
from tidelog.cli.watch.dumps import COLOURS, Status, dumps_table, rate_of
from tidelog.cli.watch.lanes import windows_picture
from tidelog.model.printable import printable
from tidelog.model.units import brief_span, format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = frozenset({
    "leader", "holder", "epoch", "zone", "since_ms", "standbys", "updated_ms", "age_ms",
    "lag_bytes", "capture", "dump_options",
    "throttle", "readers_busy", "windows", "events", "dumps",
})  # fmt: skip
"""Fields of a status that `summary` shows, or leaves to `tidelog watch`."""
CELLS = 5
SPARKS = " ▁▂▃▄▅▆▇█"
STALE_AFTER_MS = 10_000
LIMITS = (  # name of the limit, the observed value beside it, what people call it
    ("max_lag_bytes", "lag_bytes", "log lag"),
    ("max_replica_lag_ms", "replica_lag_ms", "replica lag"),
    ("max_select_ms", "select_ms", "SELECT time"),
    ("max_commit_delay_ms", "commit_delay_ms", "commit delay"),
)


def frame(
    history: Sequence[Status], now_ms: int, *, lanes: int = 8, events: int = 6, width: int = 110
) -> Group:
    """One picture of the whole.

    Args:
        history: status documents, the newest last; not empty. Rates come from several.
        now_ms: the time of the picture, on the clock of the documents' ``updated_ms``.
        lanes: windows that are shown at most.
        events: events that are shown at most.
        width: columns of the terminal.
    """
    status = history[-1]
    parts: list[RenderableType] = [headline(status, now_ms)]
    if status.get("capture"):
        parts.append(_panel("log", log_facts(history)))
    if "throttle" in status or "dump_options" in status:
        parts.append(_panel("readers", throttle_facts(status)))
    if status.get("windows") or status.get("events"):
        picture = windows_picture(status, now_ms, lanes, max(20, width - 58))
        parts.append(_panel("windows on the log", picture))
    parts.append(_panel("dumps", dumps_table(history, active_only=True, width=width)))
    if status.get("events") and events:
        parts.append(_panel("events", events_table(status, events)))
    return Group(*parts)


def summary(status: Status, width: int = 110) -> Group:
    """For ``tidelog status``: where capture is, what limits dumps, and all dumps it lists."""
    parts: list[RenderableType] = [headline(status, status.get("updated_ms", 0))]
    if status.get("capture"):
        parts.append(log_facts([status]))
    if "throttle" in status or "dump_options" in status:
        parts += [Text(), throttle_facts(status)]
    return Group(*parts, Text(), dumps_table([status], active_only=False, width=width))


# ---------------------------------------------------------------- the log


def headline(status: Status, now_ms: int) -> Text:
    """Who leads, and how old this is."""
    text = Text()
    leader = status.get("leader", status.get("holder"))
    text.append("tidelog ", style="bold")
    text.append(f"leader {leader}" if leader else "no capture leads", "" if leader else "yellow")
    if "epoch" in status:
        text.append(f" · epoch {status['epoch']}", style="dim")
    if status.get("zone"):
        text.append(f" · zone {status['zone']}", style="dim")
    if "since_ms" in status:
        text.append(f" · for {brief_span(max(0, now_ms - status['since_ms']))}", style="dim")
    for one in status.get("standbys", ()):
        zone = f" (zone {one['zone']})" if one["zone"] else ""
        text.append(f" · {one['holder']}{zone} stands by", style="dim")
    age_ms = max(status.get("age_ms", 0), now_ms - status.get("updated_ms", now_ms))
    stale = age_ms > STALE_AFTER_MS
    text.append(f" · as of {brief_span(age_ms)} ago", style="yellow" if stale else "dim")
    if status.get("capture") and status["capture"].get("held"):
        text.append(" · the log waits for a blocking dump", style="yellow")
    return text


def log_facts(history: Sequence[Status]) -> Table:
    """The log in motion: position, lag, rates, buffers."""
    status = history[-1]
    capture = status["capture"]
    table = Table.grid(padding=(0, 3))
    lag = status.get("lag_bytes")
    rate = rate_of(history, lambda s: s["capture"].get("records"))
    table.add_row(
        _fact("position", f"{capture.get('position', 0):,}"),
        _fact("behind the source", "-" if lag is None else format_bytes(lag)),
        _fact("records", f"{capture.get('records', 0):,}"),
        _fact("a second", "-" if rate is None else f"{rate:,.0f}"),
        _spark(history),
    )
    table.add_row(
        _fact("next offset", f"{capture.get('next_offset', 0):,}"),
        _fact("segments", f"{capture.get('segments', 0):,}"),
        _fact("buffered", format_bytes(capture.get("buffer_bytes", 0))),
        _fact("windows", str(capture.get("open_windows", 0))),
        _fact("keys held", format_bytes(capture.get("retained_bytes", 0))),
    )
    return table


def _spark(history: Sequence[Status], width: int = 24) -> Text:
    steps = [
        rate_of(history[at : at + 2], lambda s: s["capture"].get("records")) or 0.0
        for at in range(max(0, len(history) - width - 1), len(history) - 1)
    ]
    most = max(steps, default=0.0)
    bars = (SPARKS[round(step / most * 8)] if most else SPARKS[0] for step in steps)
    return Text("".join(bars), style="cyan")


# ---------------------------------------------------------------- throttle


def throttle_facts(status: Status) -> Table:
    """How dumps may read, how near the limits are, and what the throttle decided."""
    options: Mapping[str, Any] = status.get("dump_options") or {}
    throttle: Mapping[str, Any] = status.get("throttle") or {}
    settings = throttle.get("settings") or options
    table = Table.grid(padding=(0, 3))
    wanted = options.get("parallelism", 1)
    decision = throttle.get("decision") or {}
    allowed = max(1, int(wanted * decision.get("parallelism_share", 1.0) + 1e-9))
    busy = status.get("readers_busy")
    working = f"{'' if busy is None else f'{busy} busy of '}{allowed}"
    delay_ms = settings.get("delay_ms", 0)
    rows = settings.get("rows_per_second", 0)
    table.add_row(
        _fact("readers", working + (f" (parallelism {wanted})" if allowed != wanted else "")),
        _fact("chunk", f"{options.get('chunk_rows', 0):,} rows"),
        _fact("delay", brief_span(delay_ms) if delay_ms else "none"),
        _fact("rows a second", f"≤ {rows:,}" if rows else "no limit"),
    )
    observed = throttle.get("observed") or {}
    meters = [
        _meter(label, observed.get(seen), settings.get(limit, 0), limit.endswith("bytes"))
        for limit, seen, label in LIMITS
        if limit in settings
    ]
    if meters:
        table.add_row(*meters)
    found = Table.grid()
    found.add_row(table)
    if decision:
        found.add_row(_decision(decision))
    return found


def _decision(decision: Mapping[str, Any]) -> Text:
    limited_by = decision.get("limited_by")
    if limited_by is None:
        return Text("throttle: nothing is beyond its limit", style="green")
    text = Text(printable(f"throttle: {decision.get('reason') or limited_by}"), style="yellow")
    share, pause_ms = decision.get("parallelism_share", 1.0), decision.get("pause_ms", 0)
    pace = decision.get("pace", 1.0)
    if share < 1:
        text.append(f" → {share:.0%} of the readers")
    if pace < 1:
        text.append(f" → SELECTs work {pace:.0%} of the time")
    if pause_ms:
        text.append(f" → a pause of {brief_span(pause_ms)} between chunks")
    return text


def _meter(label: str, seen: float | None, limit: float, is_bytes: bool) -> Text:
    """``label value/limit`` and the cells of a bar."""
    if not limit:
        return Text(f"{label} not limited", style="dim")
    show = format_bytes if is_bytes else brief_span
    text = Text(f"{label} ", style="dim")
    ratio = 0.0 if seen is None else seen / limit
    colour = "green" if ratio < 0.5 else "yellow" if ratio <= 1 else "red"
    full = min(CELLS, math.ceil(ratio * CELLS))
    text.append("■" * full, style=colour).append("□" * (CELLS - full), style="dim")
    text.append(f" {'-' if seen is None else show(int(seen))}/{show(int(limit))}", style="default")
    return text


# ---------------------------------------------------------------- events


def events_table(status: Status, limit: int) -> Table:
    """How the last chunks ended, the newest first."""
    table = Table.grid(padding=(0, 2))
    shown = [event for event in status.get("events", ()) if event.get("event") in ENDS]
    now_ms = status.get("updated_ms", 0)
    for event in list(reversed(shown))[:limit]:
        kind = str(event.get("event"))
        rows, superseded = event.get("rows"), event.get("superseded")
        table.add_row(
            Text(f"{brief_span(max(0, now_ms - event.get('at_ms', now_ms)))} ago", style="dim"),
            Text(str(event.get("chunk", ""))[:8], style="dim"),
            escape(printable(str(event.get("table", "")))),
            Text(kind, style=COLOURS.get(kind, "")),
            "" if rows is None else f"{rows:,} rows",
            Text(f"{superseded:,} superseded" if superseded else "", style="blue"),
        )
    return table


# ---------------------------------------------------------------- pieces


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _fact(name: str, value: str) -> Text:
    return Text(f"{name} ", style="dim").append(value, style="default not dim")
