"""Shows the demo's story on a terminal, as plain lines, or as JSON; see `tidelog.demo.story`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from tidelog.cli import terminal
from tidelog.cli.live import DownloadLines, LiveArea, StderrLines, can_be_redrawn, download_bar
from tidelog.cli.terminal import SIGNS
from tidelog.cli.watch.lines import (
    NAME_COLUMNS,
    ScreenSection,
    bar,
    fact,
    fit_sections,
    section,
    sparks,
    wrap_lines,
)
from tidelog.model.units import brief_span
from tidelog.system.download_progress import Download

Document = Mapping[str, Any]

STYLES = {"ok": "green", "info": "cyan", "critical": "bold red"}
_CELLS = 20
_JSON_EVERY_S = 1.0


def story_screen(
    document: Document, width: int, height: int, report: Document | None = None
) -> list[Text]:
    """Return at most ``height`` lines: source and lake side by side, the current step, the story.

    With a ``report``, the verdict on each table replaces the current step.
    """
    head = Text("Tidelog demo", style="bold")
    head.append(f"  {document['source']} → event log → Delta Lake", style="dim")
    clock = _clock(document["at_s"])
    head.append(" " * (width - head.cell_len - len(clock))).append(clock, style="dim")
    sections = [section(0, [head], 1), section(1, _tables(document, report), 5)]
    if report is None:
        sections += [section(0, fact("now", _step(document), width), 1)]
        sections += [section(2, _current_lines(document, width), 5)]
    sections += [section(3, [Text("")], 1), _story(document["story"], width)]
    return fit_sections(sections, height)


def _clock(at_s: float) -> str:
    return f"{int(at_s) // 60:02}:{int(at_s) % 60:02}"


def _step(document: Document) -> str:
    return download_bar(_download(document)) if "fetching" in document else str(document["step"])


def _download(document: Document) -> Download:
    its = document["fetching"]
    return Download(its["what"], its["come"], its["size"], its["done"])


def _tables(document: Document, report: Document | None) -> list[Text]:
    tables = document.get("tables")
    if not tables:
        return []
    lines = [
        Text(f"{'rows':<{NAME_COLUMNS + 4}}{document['source']:>12}{'Delta Lake':>14}", style="dim")
    ]
    results = {row["table"].rpartition(".")[2]: row for row in (report or {}).get("tables", ())}
    for row in tables:
        same = row["lake"] == row["source"]
        line = Text(f"{row['table']:<{NAME_COLUMNS + 4}}{row['source']:>12,}")
        line.append(f"{row['lake']:>14,}  ", style="green" if same else "")
        its = results.get(row["table"])
        if its is None:
            line.append_text(bar(row["lake"] / max(1, row["source"]), _CELLS, "green"))
        else:
            line.append_text(_verdict(its))
        lines.append(line)
    return lines


def _verdict(its: Document) -> Text:
    code = "ok" if its["equal"] else "critical"
    text = Text(f"{SIGNS[code][1]} ", style=STYLES[code])
    if its["equal"]:
        return text.append(f"equal, {its['rows']:,} rows compared", style=STYLES[code])
    names = ("missing", "surplus", "different")
    return text.append(", ".join(f"{its[name]:,} {name}" for name in names), style=STYLES[code])


def _current_lines(document: Document, width: int) -> list[Text]:
    capture = document.get("capture")
    if capture is None:
        return []
    written = f"{document.get('transactions', 0):,} transactions were committed"
    lines = [*fact("source", written, width), *_capture(capture, width)]
    if lags := document.get("lags"):
        lag = brief_span(1000 * lags[-1])
        text = Text(f"{'lag':<{NAME_COLUMNS}}", style="dim").append_text(
            sparks(lags[-30:], "yellow")
        )
        lines.append(text.append(f" {lag} from source to event log", style="default"))
    if dump := document.get("dump"):
        lines.append(_dump(dump))
    if lake := document.get("lake"):
        behind = lake["behind_records"]
        late = "" if lake["lag_s"] is None else f"{brief_span(1000 * lake['lag_s'])}, "
        lag_text = f"{late}{behind:,} records behind" if behind else "has all that was captured"
        lines += fact("lake", lag_text, width)
    return lines


def _capture(capture: Document, width: int) -> list[Text]:
    if capture["state"] == "killed":
        return fact("capture", f"process {capture['process']} is dead", width, style="bold red")
    if capture["state"] == "starts":
        return fact("capture", f"process {capture['process']} starts", width, style="yellow")
    text = f"process {capture['process']} leads; {capture['records']:,} records"
    return fact("capture", f"{text}, {capture['records_per_s']:,} a second", width)


def _dump(dump: Document) -> Text:
    share = 1.0 if dump["status"] == "completed" else dump["rows"] / max(1, dump["of_rows"])
    text = Text(f"{'dump':<{NAME_COLUMNS}}", style="dim").append_text(bar(share, _CELLS))
    text.append(f" {min(share, 1):4.0%} of {dump['dump_id']}: {dump['rows']:,} rows", "default")
    return text.append(f", {dump['superseded']:,} superseded", style="blue")


def _story(moments: Sequence[Document], width: int) -> ScreenSection:
    """Return the last lines if there is no room for all."""
    lines = []
    for moment in moments:
        first = f"{SIGNS[moment['kind']][1]} {_clock(moment['at_s'])}  "
        its = wrap_lines(moment["text"], width, first=first, rest=" " * NAME_COLUMNS)
        its[0].stylize("dim", 2, NAME_COLUMNS - 2)
        its[0].stylize(STYLES[moment["kind"]], 0, 1)
        if moment["kind"] == "critical":
            for line in its:
                line.stylize(STYLES["critical"], NAME_COLUMNS)
        lines += its
    return ScreenSection(
        3, len(lines), min(len(lines), 6), lambda room: lines[max(0, len(lines) - room) :]
    )


class StoryView:
    """Shows the demo's documents; without a terminal, only what is new in them."""

    def __init__(self, area: LiveArea | None, *, as_json: bool) -> None:
        self._area = area
        self._as_json = as_json
        self._shown_count = 0
        self._next_line_at = 0.0
        self._fetched = DownloadLines("demo", terminal.print_line)
        self.last: Document | None = None

    def update(self, document: dict[str, Any]) -> None:
        """Show a document."""
        self.last = document
        if self._area is not None:
            self._area.draw(story_screen(document, *self._area.size()))
            return
        new, self._shown_count = document["story"][self._shown_count :], len(document["story"])
        now = time.monotonic()
        if self._as_json:
            if new or now >= self._next_line_at:
                self._next_line_at = now + _JSON_EVERY_S
                terminal.emit(document)
            return
        if "fetching" in document:
            self._fetched(_download(document))
        for moment in new:
            terminal.print_line(f"demo: {_clock(moment['at_s'])} {moment['text']}")
        if new or now >= self._next_line_at:
            if not new and "capture" in document:
                terminal.print_line(f"demo: {_clock(document['at_s'])} {_brief(document)}")
            self._next_line_at = now + terminal.PLAIN_INTERVAL_S

    def end(self, report: Document) -> None:
        """Print what stays on the screen."""
        if self._as_json:
            terminal.emit(report)
        elif can_be_redrawn(sys.stdout) and self.last is not None:
            console = Console(highlight=False)
            last = {**self.last, "story": report["story"]}
            for line in story_screen(last, console.width, sys.maxsize, report):
                console.print(line, soft_wrap=True)
        else:
            for its in report["tables"]:
                terminal.print_line(f"demo: {its['table']}: {_verdict(its).plain[2:]}")
            terminal.print_line(f"demo: {report['summary']} It took {report['seconds']:g} s.")
        if "directory" in report and not self._as_json:
            terminal.print_line(
                f"The lake, the event log and the configuration are in {report['directory']}"
            )


def _brief(document: Document) -> str:
    capture, parts = document["capture"], [str(document["step"])]
    tables = document.get("tables") or ()
    if tables:
        rows = {side: sum(row[side] for row in tables) for side in ("source", "lake")}
        parts.append(f"{rows['source']:,} rows in the source, {rows['lake']:,} in the lake")
    late = "" if capture["lag_s"] is None else f", {brief_span(1000 * capture['lag_s'])} late"
    parts.append(f"{capture['records']:,} records captured{late}")
    return "; ".join(parts)


@contextmanager
def open_story(*, as_json: bool) -> Iterator[StoryView]:
    """Open a view of the demo's documents; call its `StoryView.end` afterwards."""
    with ExitStack() as opened:
        area = None
        if not as_json and can_be_redrawn(sys.stdout):
            area = opened.enter_context(LiveArea(sys.stdout, whole=False))
            opened.enter_context(StderrLines(area.above))
        yield StoryView(area, as_json=as_json)
