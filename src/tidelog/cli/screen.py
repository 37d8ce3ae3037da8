"""Draws the whole status for a terminal, the most important first.

A pure function: documents in, lines out. Fields that a document does not have are left out: the
view must show the status of other versions of capture, too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.table import Table
from rich.text import Text

from tidelog.app.overview.build import lanes_of, overview
from tidelog.app.overview.problems import is_dump_unfinished
from tidelog.cli.live import bar, draw_row, fit_rows, rendered_lines, sparks, unwrapped
from tidelog.cli.status_lines import (
    NAME_COLUMNS,
    ScreenRow,
    dump_rows,
    fact_rows,
    of_dump,
    output_rows,
    problem_rows,
    process_rows,
    rows_with_config,
    verdict_rows,
)
from tidelog.model.units import brief_span, format_bytes, printable
from tidelog.results import ChunkSpan, Overview, RunningDump, Severity

if TYPE_CHECKING:
    from tidelog.cli.live import View

Status = Mapping[str, Any]

STALE_AFTER_S = 10.0
_SPARKS = 16
LEAST = (40, 8)
"""The columns and lines of the smallest terminal."""


def screen(
    history: Sequence[Status], view: View, now_ms: int, width: int, height: int
) -> list[Text]:
    """Return at most ``height`` lines of at most ``width`` columns.

    Args:
        history: the status documents, the newest last; rates need several.
        view: the user's choices; values out of range are corrected.
        now_ms: the time of the picture, on the clock of the documents' ``updated_ms``.
        width: the columns of the terminal.
        height: the lines of the terminal.
    """
    width, height = max(width, LEAST[0]), max(height, LEAST[1])
    status = history[-1] if history else {}
    if "pipeline" in view.here:  # it is about to deliver
        status = {**status, "configured_outputs": []}
    if view.words:
        shown = words_lines(width)[: height - 1]
    else:
        rows = rows_with_config(
            _status_rows(history, status, view, now_ms, width, height), view.config
        )
        shown = fit_rows(rows, width, height - 1, view.config)
    return [*shown, _foot(view)]


def _status_rows(
    history: Sequence[Status], status: Status, view: View, now_ms: int, width: int, height: int
) -> Iterator[ScreenRow]:
    clock = time.strftime("%H:%M:%S", time.localtime(now_ms / 1000))
    current = overview(status, now_ms)
    if view.starting:  # older documents report nothing about now
        current = replace(current, severity=Severity.INFO, verdict="Starting.", problems=())
    yield from verdict_rows(current, beside=clock)
    yield from (ScreenRow("here", text, rank=0) for text in tuple(view.here.values()))
    if view.starting:
        return
    for row in fact_rows(current):
        yield replace(row, beside=_log_sparks(history)) if row.name == "source" else row
    yield from output_rows(current)
    running = unfinished_dumps(status)
    if running:
        view.dump = max(0, min(view.dump, len(running) - 1))
        dump = running[view.dump]
        view.scroll = max(0, min(view.scroll, len(dump.get("tables") or ()) - 1))
        progress = next(each for each in current.dumps if each.dump_id == dump["dump_id"])
        yield from progress_rows(history, dump, progress, width, height, view.scroll)
        yield from dump_rows(current, without=progress.dump_id)
    else:
        yield from _last_dump(status)
    yield from problem_rows(current)
    yield from process_rows(current, rate=_log_rate(history, current))
    if running or height > LARGE:
        yield from readers_rows(status, width)
    if view.windows:
        yield from windows_rows(status, now_ms, width, max(4, height // 3))


LARGE = 30
"""A terminal of more lines than this has room for idle readers."""


def _log_rate(history: Sequence[Status], current: Overview) -> str:
    rate = rate_of(history, _records)
    text = "" if rate is None else f", {rate:,.0f} a second"
    if current.age_s is not None and current.age_s > STALE_AFTER_S:
        text += f"; reported {current.age_s:,.0f} s ago"
    return text


def _records(status: Status) -> Any:
    return status["capture"]["records"]


def _log_sparks(history: Sequence[Status]) -> str:
    last = history[-_SPARKS:]
    steps = [rate_of(last[at : at + 2], _records) or 0.0 for at in range(len(last) - 1)]
    return sparks(steps, "").plain.strip()


def _last_dump(status: Status) -> Iterator[ScreenRow]:
    ended = list(status.get("dumps") or ())
    if ended:
        last, tables = ended[-1], ended[-1].get("tables") or ()
        done = sum(table.get("status") == "done" for table in tables)
        rows = sum(table.get("rows_read", 0) for table in tables)
        text = f"none runs; the last, {last.get('dump_id')}, is {last.get('status')}: "
        text += f"{done} of {len(tables)} tables, {rows:,} rows"
        yield ScreenRow("dump", text, "dim", rank=5)
    elif status.get("capture") is not None:
        yield ScreenRow("dump", "there was none", rank=5)


def _foot(view: View) -> Text:
    if text := view.question or view.note:
        return unwrapped(printable(text), "reverse")
    if not view.has_keys:
        return Text("")
    keys = "? back" if view.words else "p pause  + - speed  ↑↓ tables  w windows  ? words"
    return unwrapped(f"{'q quits' if view.quits else 'Ctrl-C ends'}  {keys}", "dim")


def several(
    histories: Mapping[str, Sequence[Status]], now_ms: int, width: int, height: int
) -> list[Text]:
    """Return a verdict, lag, log loss and warnings for each of several databases."""
    rows = []
    for name, history in histories.items():
        if not history:
            rows.append(ScreenRow("", f"{name}: nothing is known yet", "dim", rank=0))
            continue
        its = overview(history[-1], now_ms)
        rows += verdict_rows(replace(its, verdict=f"{name}: {its.verdict}"))
        rows += (row for row in fact_rows(its) if row.style or row.name in ("source", "log"))
        rows += [*output_rows(its), *dump_rows(its)]
    return fit_rows(rows, width, height)


# The words.

WORDS = (
    ("source", "the database; behind: the age of its oldest uncaptured change"),
    ("capture", "the process that reads the source's log into the event log; one leads"),
    ("output", "a destination; behind: age of the oldest undelivered record"),
    ("to spare", "log that may be written until the server removes what is needed"),
    ("refused", "a table that is left out; the problem says why, and how to fix it"),
    ("dump", "a read of full tables, chunk by chunk, while the log is read on"),
    ("chunk", "rows of a table in a range of keys, read by one short SELECT"),
    ("window", "the log between the two watermarks around a chunk's SELECT"),
    ("superseded", "rows of a chunk that are dropped: the log has newer ones"),
    ("void", "a chunk that could not be placed in the log; it is read again"),
    ("readers", "connections that read chunks; + and - have twice or half as many"),
    ("slowed down", "the throttle: capture, a replica, SELECTs or commits are slow"),
    ("paused", "p pauses the dump that is shown, and resumes it; ← → show others"),
    ("y", "does what p, + or - have asked; any other key leaves it"),
)


_WORD_COLUMNS = 13


def words_lines(width: int) -> list[Text]:
    """Return the signs and the words with their meanings."""
    signs = "✓ all is well   · as requested, or passes by itself   ! late, or left out   "
    signs += "✗ stopped, or losing data soon"
    rows = [ScreenRow(word, meaning) for word, meaning in WORDS]
    rows = [ScreenRow("", signs), *rows, ScreenRow("more", "docs/explanation/glossary.md", "dim")]
    return [line for row in rows for line in draw_row(row, width, _WORD_COLUMNS)]


# Readers, and what slows them down.

CELLS = 5
LIMITS = (  # name of the limit, the observed value, the label
    ("max_lag_bytes", "lag_bytes", "log lag"),
    ("max_replica_lag_ms", "replica_lag_ms", "replica lag"),
    ("max_select_ms", "select_ms", "SELECT time"),
    ("max_commit_delay_ms", "commit_delay_ms", "commit delay"),
)


def readers_rows(status: Status, width: int) -> Iterator[ScreenRow]:
    """Yield a description of the readers, what the throttle does, and a meter for each limit."""
    if "throttle" not in status and "dump_options" not in status:
        return
    options: Mapping[str, Any] = status.get("dump_options") or {}
    throttle: Mapping[str, Any] = status.get("throttle") or {}
    settings = throttle.get("settings") or options
    decision = throttle.get("decision") or {}
    share, pace = decision.get("parallelism_share", 1.0), decision.get("pace", 1.0)
    wanted = options.get("parallelism", 1)
    allowed = max(1, int(wanted * share + 1e-9))
    busy = status.get("readers_busy")
    text = f"{'' if busy is None else f'{busy} busy of '}{allowed}"
    text += f" (parallelism {wanted})" if allowed != wanted else ""
    text += f"; chunks of {options.get('chunk_rows', 0):,} rows"
    if delay_ms := settings.get("delay_ms"):
        text += f"; {brief_span(delay_ms)} between them"
    if rows := settings.get("rows_per_second"):
        text += f"; at most {rows:,} rows a second"
    yield ScreenRow("readers", text, rank=6)
    slowed = [f"{share:.0%} of the readers read"] if share < 1 else []
    slowed += [f"SELECTs work {pace:.0%} of the time"] if pace < 1 else []
    if pause_ms := decision.get("pause_ms"):
        slowed.append(f"a pause of {brief_span(pause_ms)} between chunks")
    if slowed:
        yield ScreenRow("", "; ".join(slowed), "yellow", rank=6)
    observed = throttle.get("observed") or {}
    meters = [
        _meter(label, observed.get(seen), settings[limit], limit.endswith("bytes"))
        for limit, seen, label in LIMITS
        if settings.get(limit)
    ]
    for line in rendered_lines(Columns(meters, padding=(0, 3)), width - NAME_COLUMNS):
        yield ScreenRow("", line, rank=6)


def _meter(label: str, seen: float | None, limit: float, is_bytes: bool) -> Text:
    """Return ``label value/limit`` and the cells of a bar."""
    show = format_bytes if is_bytes else brief_span
    ratio = 0.0 if seen is None else seen / limit
    colour = "green" if ratio < 0.5 else "yellow" if ratio <= 1 else "red"
    full = min(CELLS, math.ceil(ratio * CELLS))
    text = Text(f"{label} ", style="dim").append("■" * full, style=colour)
    text.append("□" * (CELLS - full), style="dim")
    return text.append(f" {'-' if seen is None else show(int(seen))}/{show(int(limit))}", "default")


# Dumps: bars, and rates from several documents.

RATE_OVER_MS = 3_000
WIDE, WIDEST = 100, 130
COLOURS = {
    "running": "cyan", "done": "green", "paused": "yellow", "failed": "red", "cancelled": "dim",
    "pending": "dim",
}  # fmt: skip
_FIRST = ("running", "paused", "failed", "pending", "cancelled", "done")
"""The states in the order of their importance to the reader."""
_FOLDED = frozenset({"pending", "done", "cancelled"})
_LABELS = {"pending": "to come"}


def unfinished_dumps(status: Status) -> list[Mapping[str, Any]]:
    """Return the dumps that have not ended, the oldest first."""
    return [each for each in status.get("dumps") or () if is_dump_unfinished(each)]


def progress_rows(
    history: Sequence[Status],
    dump: Mapping[str, Any],
    progress: RunningDump,
    width: int,
    height: int,
    scroll: int = 0,
) -> Iterator[ScreenRow]:
    """Yield a sentence, a bar for the dump, and bars for tables: active, or scrolled to."""
    yield ScreenRow("dump", of_dump(progress), rank=3, least=3)
    total = Text("? of its rows" if progress.rows else "")
    if progress.share is not None or not progress.rows:
        most = 0.99 if is_dump_unfinished(dump) else 1.0
        share = min(most, progress.share or 0.0)
        total = bar(share, max(10, min(60, width - 44))).append(f" {share:4.0%}", "bold")
    rate = rate_of(history, lambda s: _rows_read(s, progress.dump_id))
    if rate and progress.status == "running":
        total.append(f"  {rate:,.0f} rows a second", "default")
    yield ScreenRow("", unwrapped(total), rank=3)
    tables = sorted(dump.get("tables") or (), key=lambda t: _FIRST.index(_state(dump, t)))
    states = Counter(_state(dump, table) for table in tables)
    shown = tables[scroll:] if scroll else [t for t in tables if _state(dump, t) not in _FOLDED]
    shown = shown[:height]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="ellipsis")
    for at in range(7):
        grid.add_column(no_wrap=True, justify="right" if 1 < at < 6 else "left")
    for table in shown:
        grid.add_row(*_cells(history, dump, table, width))
    for at, line in enumerate(rendered_lines(grid, width - NAME_COLUMNS)):
        yield ScreenRow("", line, rank=4 if at else 3)
    for table in shown:
        yield from _notes(dump, table)
    counts = [f"{states[each]:,} {_LABELS.get(each, each)}" for each in _FIRST if states[each]]
    hint = "   ↑ ↓ go through them" if len(tables) > len(shown) else ""
    yield ScreenRow("", f"{', '.join(counts)}{hint}", "dim", rank=3)


def _cells(
    history: Sequence[Status], dump: Mapping[str, Any], table: Status, width: int
) -> Iterator[Text]:
    name = printable(str(table.get("table", "")))
    most = max(12, width - (56 if width < WIDE else 73 if width < WIDEST else 100))
    if len(name) > most:  # tables of one kind differ at their end
        end = most // 2
        name = f"{name[: most - end - 1]}…{name[-end:]}"
    state = _state(dump, table)
    share, total = share_read(table)
    read = table.get("rows_read", 0)
    yield Text(name)
    if share is None:
        yield from (Text("?" if state == "running" else "", "dim"), Text(""))
    else:
        yield from (bar(share, 10, COLOURS.get(state, "cyan")), Text(f"{share:.0%}"))
    yield Text(f"{read:,}")
    yield Text(f"of {total:,}" if total and width >= WIDE else "", "dim")
    if state != "running":
        yield Text(_LABELS.get(state, state), COLOURS[state])
        return
    key = str(dump.get("dump_id", "")), str(table.get("table"))
    rate = rate_of(history, lambda s: _table_of(s, *key)["rows_read"])
    yield Text(f"{rate:,.0f}/s" if rate else "")
    left_ms = (total - read) * 1000 / rate if total > read and rate else None
    yield Text("" if left_ms is None else f"≈{brief_span(max(1000, round(left_ms, -3)))}")
    if width >= WIDEST:
        superseded, voided = table.get("rows_superseded", 0), table.get("chunks_voided", 0)
        text = Text(f"{superseded:,} superseded  " if superseded else "", style="blue")
        yield text.append(f"{voided:,} void" if voided else "", style="magenta")


def _state(dump: Mapping[str, Any], table: Status) -> str:
    state = str(table.get("status", ""))
    if state == "running" and dump.get("status") == "paused":
        return "paused"
    return state if state in _FIRST else "pending"


def share_read(table: Status) -> tuple[float | None, int]:
    """Return the share of the table that is read (None: unknown), and its total rows or keys."""
    if table.get("status") == "done":
        return 1.0, 0
    if total := table.get("key_count", 0):
        return min(1.0, table.get("keys_read", 0) / total), total
    total = table.get("estimated_rows") or 0
    if not total or table.get("where"):  # the estimate is of the whole table
        return None, 0
    return min(0.99, table.get("rows_read", 0) / total), total


def _notes(dump: Mapping[str, Any], table: Status) -> Iterator[ScreenRow]:
    """Yield remarks on a table: errors, missing keys, a blocking dump."""
    failed = table.get("status") == "failed"
    parts = [str(table["reason"])] if failed and table.get("reason") else []
    if ranges := table.get("failed_ranges"):
        parts.append(f"{ranges} key ranges could not be read (`tidelog status --ranges`)")
    if missing := table.get("keys_absent"):
        parts.append(f"{missing:,} keys were not in the table")
    if dump.get("mode") == "blocking" and table.get("status") == "running":
        parts.append("blocking: the log waits")
    if parts:
        text = f"{table.get('table')}: {'; '.join(parts)}"
        yield ScreenRow("", text, "red" if failed or ranges else "dim", rank=4)


def _dump_of(status: Status, dump_id: str) -> Mapping[str, Any]:
    return next(each for each in status.get("dumps") or () if each.get("dump_id") == dump_id)


def _rows_read(status: Status, dump_id: str) -> int:
    return sum(table["rows_read"] for table in _dump_of(status, dump_id).get("tables") or ())


def _table_of(status: Status, dump_id: str, name: str) -> Status:
    tables = _dump_of(status, dump_id).get("tables") or ()
    return next(table for table in tables if table.get("table") == name)


def rate_of(history: Sequence[Status], value: Callable[[Status], Any]) -> float | None:
    """Return the growth a second of ``value(status)`` over the last seconds; None if unknown."""
    for older in reversed(history[:-1]):
        span_ms = history[-1].get("updated_ms", 0) - older.get("updated_ms", 0)
        if span_ms < RATE_OVER_MS and older is not history[0]:
            continue
        try:
            grown = value(history[-1]) - value(older)
        except (AttributeError, KeyError, TypeError, StopIteration):  # it did not exist yet
            return None
        return grown * 1000 / span_ms if span_ms > 0 and grown >= 0 else None
    return None


# Windows: a lane for each chunk of the last seconds.

BESIDE_LANES = 58
SHORTEST_MS, LONGEST_MS = 1_000, 30_000
_FAILED_ENDS = ("voided", "failed")


def windows_rows(status: Status, now_ms: int, width: int, limit: int) -> Iterator[ScreenRow]:
    """Yield ``limit`` lanes at most, up to ``now_ms``; open windows first."""
    lanes = lanes_of(status)
    if not lanes:
        yield ScreenRow("windows", "no chunk is being read", rank=4)
        return
    ended = [lane for lane in lanes if lane.ended_ms is not None]
    shown = [lane for lane in lanes if lane.ended_ms is None]
    shown = shown[: max(limit - len(ended), limit * 2 // 3)]
    shown = ended[len(ended) - max(0, limit - len(shown)) :] + shown
    span_ms = min(max(now_ms - min(lane.begun_ms for lane in shown), SHORTEST_MS), LONGEST_MS)
    cells = max(20, width - BESIDE_LANES)
    left = f"−{span_ms / 1000:.3g}s"
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, max_width=18, overflow="ellipsis")
    for size in (8, cells, None):
        table.add_column(no_wrap=True, width=size)
    axis = left + "now".rjust(cells - len(left))
    table.add_row(*(Text(each, "dim") for each in ("table", "chunk", axis, "")))
    for lane in shown:
        cells_of_lane = lane_bar(lane, now_ms, span_ms, cells)
        table.add_row(
            Text(printable(lane.table)), Text(lane.chunk, "dim"), cells_of_lane, _ending(lane)
        )
    yield ScreenRow("windows", "on the log, from low to high watermark", rank=4)
    for line in rendered_lines(table, width - NAME_COLUMNS):
        yield ScreenRow("", line, rank=4)


def lane_bar(lane: ChunkSpan, now_ms: int, span_ms: int, width: int) -> Text:
    """Draw a window: ``[`` low, ``━`` reading, ``╌`` waiting for high and disk, ``]`` durable;
    ``▶`` open.
    """

    def cell(at_ms: int) -> int:
        return round((at_ms - (now_ms - span_ms)) / span_ms * (width - 1))

    begin, end = cell(lane.begun_ms), cell(now_ms if lane.ended_ms is None else lane.ended_ms)
    read = end if lane.read_ms is None else cell(lane.read_ms)
    last = ("✗", "bold magenta") if lane.end in _FAILED_ENDS else ("]", "bold green")
    if lane.ended_ms is None:
        last = "▶", "bold cyan" if lane.read_ms is None else "bold yellow"
    text = Text()
    for at in range(width):
        if at < begin or at > end:
            text.append(" ")
        elif at == begin and begin != end:
            text.append("[", style="bold")
        elif at == end:
            text.append(*last)
        else:
            text.append(*(("━", "cyan") if at < read else ("╌", "yellow")))
    return text


def _ending(lane: ChunkSpan) -> Text:
    if lane.ended_ms is None and lane.read_ms is None:
        return Text("reading", style="cyan")
    if lane.ended_ms is None:
        return Text("is written" if lane.written else "waits for high", style="yellow")
    if lane.end in _FAILED_ENDS:
        return Text(lane.end, style="magenta")
    text = Text(f"{lane.rows:,} rows", style="dim")
    return text.append(f" −{lane.superseded:,}" if lane.superseded else "", style="blue")
