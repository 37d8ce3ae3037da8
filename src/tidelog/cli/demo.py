"""The command ``demo``: shows `tidelog.demo.play` on a terminal, as plain lines, or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tidelog.cli import terminal
from tidelog.cli.arguments import Json, exit_unless
from tidelog.cli.live import (
    DownloadLines,
    LiveArea,
    bar,
    can_be_redrawn,
    download_bar,
    fit_rows,
    live_area,
    sparks,
    unwrapped,
)
from tidelog.cli.status_lines import ScreenRow
from tidelog.cli.terminal import SIGNS, stop_on_signals
from tidelog.errors import UsageError
from tidelog.model.units import brief_span
from tidelog.system.download_progress import Download

Document = Mapping[str, Any]

STYLES = {"ok": "green", "info": "cyan", "critical": "bold red"}
_JSON_EVERY_S = 1.0
ROWS, SECONDS = 300_000, 30
QUICK_ROWS, QUICK_SECONDS = 20_000, 5


def story_screen(
    document: Document, width: int, height: int, report: Document | None = None
) -> list[Text]:
    """Return ``height`` lines: source and lake, the current step or the ``report``, the story."""
    rows = [ScreenRow("demo", f"{document['source']} → event log → Delta Lake", "bold", 0, 5)]
    rows[0] = replace(rows[0], beside=_clock(document["at_s"]))
    rows += [ScreenRow("", line, rank=1) for line in _tables(document, report)]
    if report is None:
        rows += [ScreenRow("now", _step(document), rank=0), *_current_rows(document)]
    return fit_rows([*rows, ScreenRow("", "", rank=3), *_story(document["story"])], width, height)


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
    lines = [unwrapped(f"{'rows':<11}{document['source']:>10}{'Delta Lake':>12}", "dim")]
    results = {row["table"].rpartition(".")[2]: row for row in (report or {}).get("tables", ())}
    for row in tables:
        same = row["lake"] == row["source"]
        line = unwrapped(f"{row['table']:<11} {row['source']:>9,}")
        line.append(f"{row['lake']:>12,}  ", style="green" if same else "")
        its = results.get(row["table"])
        if its is None:
            line.append_text(bar(row["lake"] / max(1, row["source"]), style="green"))
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


def _current_rows(document: Document) -> Iterator[ScreenRow]:
    capture = document.get("capture")
    if capture is None:
        return
    written = f"{document.get('transactions', 0):,} transactions were committed"
    yield ScreenRow("source", written, rank=2)
    yield _capture(capture)
    if lags := document.get("lags"):
        text = sparks(lags[-30:], "yellow")
        text.append(f" {brief_span(1000 * lags[-1])} from source to event log", "default")
        yield ScreenRow("lag", unwrapped(text), rank=2)
    if dump := document.get("dump"):
        yield ScreenRow("dump", _dump(dump), rank=2)
    if lake := document.get("lake"):
        behind = lake["behind_records"]
        late = "" if lake["lag_s"] is None else f"{brief_span(1000 * lake['lag_s'])}, "
        text_ = f"{late}{behind:,} records behind" if behind else "has all that was captured"
        yield ScreenRow("lake", text_, rank=2)


def _capture(capture: Document) -> ScreenRow:
    if capture["state"] == "killed":
        return ScreenRow("capture", f"process {capture['process']} is dead", "bold red", 2)
    if capture["state"] == "starts":
        return ScreenRow("capture", f"process {capture['process']} starts", "yellow", 2)
    text = f"process {capture['process']} leads; {capture['records']:,} records"
    return ScreenRow("capture", f"{text}, {capture['records_per_s']:,} a second", rank=2)


def _dump(dump: Document) -> Text:
    share = 1.0 if dump["status"] == "completed" else dump["rows"] / max(1, dump["of_rows"])
    text = bar(share)
    text.append(f" {min(share, 1):4.0%} of {dump['dump_id']}: {dump['rows']:,} rows", "default")
    return text.append(f", {dump['superseded']:,} superseded", style="blue")


def _story(moments: Sequence[Document]) -> Iterator[ScreenRow]:
    """Yield the moments; where there is no room for all, the first ones are cut."""
    for age, moment in zip(range(len(moments), 0, -1), moments, strict=True):
        name = f"{SIGNS[moment['kind']][1]} {_clock(moment['at_s'])}"
        style = STYLES["critical"] if moment["kind"] == "critical" else ""
        yield ScreenRow(name, moment["text"], style, 2 + age, 9)


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
            console = terminal.console()
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
    with live_area(wanted=not as_json) as area:
        yield StoryView(area, as_json=as_json)


def demo(
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="KIND",
            help="The database: postgres, mysql or mariadb; else the first.",
        ),
    ] = None,
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Where it works; emptied first if it is a demo's."
        ),
    ] = Path("tidelog-demo"),
    rows: Annotated[
        int | None,
        typer.Option(min=1000, metavar="N", help="Rows in the shop at the start; else 300,000."),
    ] = None,
    seconds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How long the workload writes; else 30 seconds."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short one: 20,000 rows, 5 seconds.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory afterwards.")] = False,
    as_json: Json = False,
) -> None:
    """Run everything embedded: a database, a workload, capture, a dump, Spark, Delta; then verify.

    Capture is killed (kill -9) during its dump, and started again. Exits 0 only if every table
    equals its Delta copy.
    """
    from tidelog.demo.run import SOURCES
    from tidelog.demo.run import demo as run_demo

    matching = [kind for kind in SOURCES if source in (None, kind)]
    if not matching:
        raise UsageError(f"--source is one of {', '.join(SOURCES)}, not {source!r}")
    try:
        with stop_on_signals() as stop, open_story(as_json=as_json) as shown:
            report = run_demo(
                source=matching[0],
                directory=directory,
                rows=rows or (QUICK_ROWS if quick else ROWS),
                seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
                keep=keep,
                on_status=shown.update,
                stop_event=stop,
            )
    except KeyboardInterrupt:
        terminal.print_sentence(
            "The demo was interrupted; all that it had started has ended.", error=True
        )
        raise
    shown.end(report)
    exit_unless(report["equal"])
