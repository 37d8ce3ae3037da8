"""Draws the whole status for a terminal, the most important first.

A pure function: documents in, lines out. Fields that a document does not have are left out: the
view must show the status of other versions of capture, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from tidelog.app.overview import ChunkSpan, Overview, Severity, overview
from tidelog.app.overview.build import WINDOW_ENDS, lanes_of
from tidelog.cli import status_lines as describe
from tidelog.cli.terminal import SIGNS
from tidelog.cli.watch.lines import (
    COLOURS,
    NAME_COLUMNS,
    ScreenSection,
    Status,
    fact,
    fit_sections,
    rate_of,
    rendered_lines,
    section,
    sparks,
    table_lines,
    total_line,
    unfinished_dumps,
    wrap_lines,
)
from tidelog.cli.watch.view import View
from tidelog.model.printable import printable
from tidelog.model.units import brief_span, format_bytes

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
_SIGNS = (
    "✓ all is well   · as requested, or passes by itself   ! late, or left out   "
    "✗ stopped, or losing data soon"
)
_COLUMN = 14


def words_lines(width: int) -> list[Text]:
    """Return the words and their meanings as lines."""
    lines = wrap_lines(_SIGNS, width, rest="  ")
    for word, meaning in WORDS:
        indent = " " * _COLUMN
        its = wrap_lines(meaning, width, first=indent, rest=indent)
        its[0] = Text(f"  {word:<{_COLUMN - 2}}", style="bold").append_text(its[0][_COLUMN:])
        lines += its
    lines.append(Text("  more: docs/explanation/glossary.md", style="dim"))
    return lines


CELLS = 5
LIMITS = (  # name of the limit, the observed value, the label
    ("max_lag_bytes", "lag_bytes", "log lag"),
    ("max_replica_lag_ms", "replica_lag_ms", "replica lag"),
    ("max_select_ms", "select_ms", "SELECT time"),
    ("max_commit_delay_ms", "commit_delay_ms", "commit delay"),
)


def readers_lines(status: Mapping[str, Any], width: int) -> list[Text]:
    """Describe the readers in sentences, then a meter for each limit."""
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
    """Put as many meters on a line as fit."""
    lines: list[Text] = []
    for meter in meters:
        if not lines or lines[-1].cell_len + 3 + meter.cell_len > width:
            lines.append(Text(" " * NAME_COLUMNS))
        else:
            lines[-1].append("   ")
        lines[-1].append_text(meter)
    return lines


def _decision(decision: Mapping[str, Any]) -> str:
    """Describe what the throttle does; the reason is shown with the dump."""
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
    """Return ``label value/limit`` and the cells of a bar."""
    show = format_bytes if is_bytes else brief_span
    text = Text(f"{label} ", style="dim")
    ratio = 0.0 if seen is None else seen / limit
    colour = "green" if ratio < 0.5 else "yellow" if ratio <= 1 else "red"
    full = min(CELLS, math.ceil(ratio * CELLS))
    text.append("■" * full, style=colour).append("□" * (CELLS - full), style="dim")
    return text.append(f" {'-' if seen is None else show(int(seen))}/{show(int(limit))}", "default")


BESIDE_LANES = 58


def windows_lines(status: Mapping[str, Any], now_ms: int, width: int, room: int) -> list[Text]:
    """Return a lane for each chunk of the last seconds, and below how chunks ended."""
    if not status.get("windows") and not status.get("events"):
        return fact("windows", "no chunk is being read", width)
    lanes = max(3, room * 2 // 3)
    picture = windows_picture(status, now_ms, lanes, max(20, width - BESIDE_LANES))
    lines = [*fact("windows", "on the log, from low to high watermark", width)]
    lines += rendered_lines(picture, width)
    return lines + rendered_lines(_ended_chunks(status, max(2, room - lanes)), width)


def _ended_chunks(status: Mapping[str, Any], limit: int) -> Table:
    """Return a table of the chunks that ended, the newest first."""
    table = Table.grid(padding=(0, 2))
    for _ in range(6):
        table.add_column(no_wrap=True, overflow="ellipsis")
    shown = [event for event in status.get("events", ()) if event.get("event") in WINDOW_ENDS]
    now_ms = status.get("updated_ms", 0)
    for event in list(reversed(shown))[:limit]:
        kind = str(event.get("event"))
        rows, superseded = event.get("rows"), event.get("superseded")
        ago = brief_span(max(0, now_ms - event.get("at_ms", now_ms)))
        table.add_row(
            Text(f"{'':<{NAME_COLUMNS}}{ago} ago", style="dim"),
            Text(str(event.get("chunk", ""))[:8], style="dim"),
            Text(printable(str(event.get("table", "")))),
            Text(kind, style=COLOURS.get(kind, "")),
            "" if rows is None else f"{rows:,} rows",
            Text(f"{superseded:,} superseded" if superseded else "", style="blue"),
        )
    return table


SHORTEST_MS = 1_000
LONGEST_MS = 30_000


def windows_picture(status: Mapping[str, Any], now_ms: int, limit: int, width: int) -> Table:
    """Return ``limit`` lanes of ``width`` cells at most, up to ``now_ms``; open windows first."""
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
    """Draw a window: ``[`` low, ``━`` reading, ``╌`` waiting for high and disk, ``]`` durable;
    ``▶`` open.
    """

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


STYLES = {"32": "green", "36": "cyan", "33": "yellow", "31": "red"}
STALE_AFTER_S = 10.0
LEAST = (40, 8)
SMALL = 30
"""A terminal with no more lines than this leaves out the details of outputs."""
_NOT_WELL = (Severity.WARNING, Severity.CRITICAL)


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
    if view.words:
        return [*words_lines(width)[: height - 1], _keys(view, width)]
    status = history[-1] if history else {}
    if "pipeline" in view.here:  # it is about to deliver
        status = {**status, "configured_outputs": []}
    current = overview(status, now_ms)
    if view.starting:  # older documents say nothing about now
        begins = [_verdict(current, view, now_ms, width), _here(view, width)]
        return [*fit_sections(begins, height - 1), _keys(view, width)]
    sections = [
        _verdict(current, view, now_ms, width),
        _here(view, width),
        section(1, _source(current, width), 2),
        *_answers(current, width),
        section(2, _outputs(current, width, height), 3, "outputs: tidelog status --json"),
        section(3, _drops(current, width), 1),
        *_dumps(current, history, view, width),
        _problems(current, view, width),
        section(5, _who(current, history, width), 1, "lines about who leads"),
        section(6, readers_lines(status, width) if _reads(status) or height > 30 else [], 0),
    ]
    if view.windows:
        room = max(6, height // 3)
        lines = windows_lines(status, now_ms, width, room)
        sections.append(section(4, lines, min(room, 8), "windows"))
    shown = fit_sections(sections, height - 1)
    return [*shown, _keys(view, width)]


def _reads(status: Status) -> bool:
    return bool(unfinished_dumps(status))


def _verdict(current: Overview, view: View, now_ms: int, width: int) -> ScreenSection:
    """Return the verdict in one sentence, and its remedy."""
    severity, verdict = current.severity, current.verdict
    if view.starting:
        severity, verdict = Severity.INFO, "Starting."
    code, sign = SIGNS[severity]
    clock = time.strftime("%H:%M:%S", time.localtime(now_ms / 1000))
    style = f"bold {STYLES[code]}"
    text = f"{sign} {verdict}"
    lines = wrap_lines(text, width - len(clock) - 2, rest="  ", style=style)
    clock_style = "dim"
    if current.age_s is not None and current.age_s > STALE_AFTER_S:
        clock_style = "yellow"
    lines[0].append(" " * (width - lines[0].cell_len - len(clock))).append(clock, clock_style)
    worst = current.problems[0] if current.problems else None
    if worst is not None and worst.sentence == verdict:
        lines += _remedy(worst.remedy, worst.page, width)
    return section(0, lines, 5)


def _here(view: View, width: int) -> ScreenSection:
    """Return what this process does."""
    lines = [line for text in tuple(view.here.values()) for line in fact("here", text, width)]
    return section(0, lines, 2)


def _remedy(remedy: str, page: str, width: int) -> Iterator[Text]:
    for line in remedy.split("\n"):
        yield from wrap_lines(line, width, first="  → ", rest="    ")
    yield from wrap_lines(f"see {page}", width, first="    ", rest="    ", style="dim")


def _source(current: Overview, width: int) -> list[Text]:
    return [] if current.at_ms is None else fact("source", describe.of_source(current), width)


def _answers(current: Overview, width: int) -> Iterator[ScreenSection]:
    """Yield the short answers; dumps have their own lines."""
    for answer in current.answers:
        if answer.name != "dump":
            code, _sign = SIGNS[answer.severity]
            style = STYLES[code] if answer.severity in _NOT_WELL else ""
            lines = fact(answer.name, describe.of_answer(answer), width, style=style)
            yield ScreenSection(1, len(lines), min(3, len(lines)), partial(_cut, lines, width))


def _cut(lines: Sequence[Text], width: int, room: int) -> Sequence[Text]:
    """Return the first ``room`` lines; the last one shows if there are more."""
    if 0 < room < len(lines):
        lines[room - 1].truncate(width - 1)
        lines[room - 1].append("…")
    return lines[:room]


def _outputs(current: Overview, width: int, height: int = SMALL) -> list[Text]:
    """Return the outputs, the most delayed first; on a small terminal, without their batches."""
    late = sorted(
        current.outputs,
        key=lambda o: (o.error is None, -(o.lag_s if o.lag_s is not None else o.behind_records)),
    )
    down = bool(current.source.silent_s)
    lines: list[Text] = []
    for each in late:
        lines += fact("output", describe.of_output(each, down=down), width)
        if height > SMALL and (text := describe.of_deliveries(each)):
            lines += fact("", text, width, style="dim")
        elif text := describe.of_failure(each):
            lines += fact("", text, width, style="dim")[:1]
    return lines


def _drops(current: Overview, width: int) -> list[Text]:
    return fact("activity", describe.of_drops(current.drops), width) if current.drops else []


def _dumps(
    current: Overview, history: Sequence[Status], view: View, width: int
) -> Iterator[ScreenSection]:
    status = history[-1]
    running = unfinished_dumps(status)
    if not running:
        yield section(5, _last_dump(status, width), 1)
        return
    view.dump = max(0, min(view.dump, len(running) - 1))
    dump = running[view.dump]
    view.scroll = max(0, min(view.scroll, len(dump.get("tables") or ()) - 1))
    texts = {each.dump_id: describe.of_dump(each) for each in current.dumps}
    share = next(each.share for each in current.dumps if each.dump_id == dump["dump_id"])
    head = fact("dump", texts[dump["dump_id"]], width)
    head.append(total_line(history, dump, width, share))
    yield section(3, head, len(head))
    tables, folded = table_lines(history, dump, width, view.scroll)
    yield section(4, tables, 3, "tables")
    yield section(3, [folded], 1)
    if current.throttled:
        yield section(4, fact("", f"slowed down: {current.throttled}", width, style="yellow"), 1)
    others = [each for each in running if each is not dump]
    lines = [fact("dump", texts[each["dump_id"]], width)[0] for each in others]
    yield section(4, lines, min(1, len(lines)), "dumps: ← → shows another one")


def _last_dump(status: Status, width: int) -> list[Text]:
    ended = list(status.get("dumps") or ())
    if not ended:
        return [] if status.get("capture") is None else fact("dump", "there was none", width)
    last = ended[-1]
    tables = last.get("tables") or ()
    rows = sum(table.get("rows_read", 0) for table in tables)
    done = sum(table.get("status") == "done" for table in tables)
    text = f"none runs; the last, {last.get('dump_id')}, is {last.get('status')}: "
    return fact("dump", f"{text}{done} of {len(tables)} tables, {rows:,} rows", width, style="dim")


def _problems(current: Overview, view: View, width: int) -> ScreenSection:
    """Return the problems besides the verdict; only whole ones, as many as fit."""
    first = int(bool(current.problems) and current.problems[0].sentence == current.verdict)
    total = len(current.problems) - first
    each_lines = []
    for problem in describe.few_of_each(current.problems)[first:]:
        code, sign = SIGNS[problem.severity]
        lines = wrap_lines(f"{sign} {problem.sentence}", width, rest="  ", style=STYLES[code])
        each_lines.append([*lines, *_remedy(problem.remedy, problem.page, width)])

    def lines_in(room: int) -> Sequence[Text]:
        shown: list[Text] = []
        left = total
        for lines in each_lines:
            if len(shown) + len(lines) + (left > 1) > room:
                break
            shown += lines
            left -= 1
        if left and room:
            more = f"  … {left} more problems: tidelog status {view.config}"
            shown.append(Text(more, style="yellow"))
        return shown

    wanted = sum(map(len, each_lines)) + (total > len(each_lines))
    return ScreenSection(3, wanted, min(wanted, 1), lines_in)


def _who(current: Overview, history: Sequence[Status], width: int) -> list[Text]:
    """Return who captures and delivers, and the rate of the log."""
    if current.at_ms is None:
        return []
    text = describe.of_capture(current)
    rate = rate_of(history, lambda s: s["capture"].get("records"))
    if rate is not None:
        text += f", {rate:,.0f} a second"
    if current.age_s is not None and current.age_s > STALE_AFTER_S:
        text += f"; reported {current.age_s:,.0f} s ago"
    lines = fact("capture", text, width)
    room = width - lines[-1].cell_len - 2
    if room >= 12:
        lines[-1].append("  ").append_text(_spark(history, min(room, 24)))
    for pipeline in current.pipelines:
        lines += fact("pipeline", describe.of_pipeline(pipeline), width)
    return lines


def _spark(history: Sequence[Status], width: int) -> Text:
    steps = [
        rate_of(history[at : at + 2], lambda s: s["capture"].get("records")) or 0.0
        for at in range(max(0, len(history) - width - 1), len(history) - 1)
    ]
    return sparks(steps, "cyan")


def _keys(view: View, width: int) -> Text:
    if said := view.question or view.note:
        return Text(printable(said), style="reverse")
    if not view.steers:
        return Text("")
    keys = ["? words", "w windows", "↑↓ tables", "p pause", "+ - speed"]
    keys.append("q quits" if view.quits else "Ctrl-C ends")
    if view.words:
        keys = ["? back"]
    return Text("  ".join(keys), style="dim")


def several(histories: Mapping[str, Sequence[Status]], now_ms: int, width: int) -> list[Text]:
    """Return a verdict, lag, log loss and warnings for each of several databases."""
    lines: list[Text] = []
    for name, history in histories.items():
        if not history:
            lines += fact("", f"{name}: nothing is known yet", width, style="dim")
            continue
        its = overview(history[-1], now_ms)
        code, sign = SIGNS[its.severity]
        text = f"{sign} {name}: {its.verdict}"
        lines += wrap_lines(text, width, rest="  ", style=f"bold {STYLES[code]}")
        lines += _source(its, width)
        for answer in its.answers:
            if answer.name == "log" or answer.severity in _NOT_WELL:
                lines += fact(answer.name, describe.of_answer(answer), width)
        lines += _outputs(its, width)
        lines += [
            line for each in its.dumps for line in fact("dump", describe.of_dump(each), width)
        ]
    return lines
