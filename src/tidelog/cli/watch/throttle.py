"""How dumps may read, how near the limits are, and what the throttle decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from tidelog.cli.watch.lines import NAME, fact
from tidelog.model.units import brief_span, format_bytes

CELLS = 5
LIMITS = (  # name of the limit, the observed value beside it, what people call it
    ("max_lag_bytes", "lag_bytes", "log lag"),
    ("max_replica_lag_ms", "replica_lag_ms", "replica lag"),
    ("max_select_ms", "select_ms", "SELECT time"),
    ("max_commit_delay_ms", "commit_delay_ms", "commit delay"),
)


def readers_lines(status: Mapping[str, Any], width: int) -> list[Text]:
    """In sentences, then a meter for each limit."""
    if "throttle" not in status and "dump_options" not in status:
        return []
    options: Mapping[str, Any] = status.get("dump_options") or {}
    throttle: Mapping[str, Any] = status.get("throttle") or {}
    settings = throttle.get("settings") or options
    wanted = options.get("parallelism", 1)
    decision = throttle.get("decision") or {}
    allowed = max(1, int(wanted * decision.get("parallelism_share", 1.0) + 1e-9))
    busy = status.get("readers_busy")
    delay_ms = settings.get("delay_ms", 0)
    rows = settings.get("rows_per_second", 0)
    text = f"{'' if busy is None else f'{busy} busy of '}{allowed}"
    text += f" (parallelism {wanted})" if allowed != wanted else ""
    text += f"; chunks of {options.get('chunk_rows', 0):,} rows"
    text += f"; {brief_span(delay_ms)} between them" if delay_ms else ""
    text += f"; at most {rows:,} rows a second" if rows else ""
    lines = fact("readers", text, width)
    lines += fact("", _decision(decision), width, style="yellow") if decision else []
    observed = throttle.get("observed") or {}
    meters = [
        _meter(label, observed.get(seen), settings[limit], limit.endswith("bytes"))
        for limit, seen, label in LIMITS
        if settings.get(limit)
    ]
    return [*lines, *_beside(meters, width)]


def _beside(meters: list[Text], width: int) -> list[Text]:
    """As many on a line as fit."""
    lines: list[Text] = []
    for meter in meters:
        if not lines or lines[-1].cell_len + 3 + meter.cell_len > width:
            lines.append(Text(" " * NAME))
        else:
            lines[-1].append("   ")
        lines[-1].append_text(meter)
    return lines


def _decision(decision: Mapping[str, Any]) -> str:
    """What it does; why is told beside the dump."""
    share, pause_ms = decision.get("parallelism_share", 1.0), decision.get("pause_ms", 0)
    pace = decision.get("pace", 1.0)
    parts = []
    if share < 1:
        parts.append(f"{share:.0%} of the readers read")
    if pace < 1:
        parts.append(f"SELECTs work {pace:.0%} of the time")
    if pause_ms:
        parts.append(f"a pause of {brief_span(pause_ms)} between chunks")
    return "; ".join(parts)


def _meter(label: str, seen: float | None, limit: float, is_bytes: bool) -> Text:
    """``label value/limit`` and the cells of a bar."""
    show = format_bytes if is_bytes else brief_span
    text = Text(f"{label} ", style="dim")
    ratio = 0.0 if seen is None else seen / limit
    colour = "green" if ratio < 0.5 else "yellow" if ratio <= 1 else "red"
    full = min(CELLS, math.ceil(ratio * CELLS))
    text.append("■" * full, style=colour).append("□" * (CELLS - full), style="dim")
    return text.append(f" {'-' if seen is None else show(int(seen))}/{show(int(limit))}", "default")
