"""Describes an overview in rows of sentences, for `tidelog status` and `tidelog watch`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from tidelog.cli.terminal import SIGNS, name_config
from tidelog.model.units import brief_span, counted, format_bytes, printable

if TYPE_CHECKING:
    from rich.text import Text

    from tidelog.results import (
        EngineHealth,
        OperationDrop,
        OutputHealth,
        Overview,
        PipelineOverview,
        Problem,
        RunningDump,
        SourceHealth,
        SummaryLine,
    )

SHOWN, OF_A_KIND = 8, 2
"""How many outputs and problems to show of each kind; ``--json`` has all."""
BRIEFLY = 3
"""How many outputs a line of a log names."""
MESSAGE = 120
"""The longest error text, in characters; ``--json`` has all of it."""
NAME_COLUMNS = 9
REMEDY, MORE = "→", "…"
_SIGNS = {sign: colour for colour, sign in SIGNS.values()}
_WHOLE = 99


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """A name and a text beside it, as one or more lines.

    Attributes:
        name: the name of a fact; a sign of `SIGNS`, before a sentence; `REMEDY` or `MORE`.
        text: the text, or a text with styles of its own.
        style: the style of the whole text, as Rich names it.
        rank: rows of a higher rank are the first to be cut where there is no room.
        least: how many of its lines go before any row of a higher rank.
        beside: a text at the right end of the first line.
        share: the share done, drawn as a bar behind the text; None: no bar.
    """

    name: str
    text: str | Text
    style: str = ""
    rank: int = 1
    least: int = 1
    beside: str = ""
    share: float | None = None

    def __str__(self) -> str:
        text = printable(str(self.text))
        if self.name in _SIGNS:
            return f"{self.name} {text}"
        if self.name in (REMEDY, MORE):
            return f"    {text}" if self.name == REMEDY else f"  … {text}"
        return f"  {self.name:<{NAME_COLUMNS}}{text}"


def lines(overview: Overview) -> Iterator[str]:
    """Yield the lines, the worst first: verdict and remedy, answers, facts, other problems."""
    return map(str, status_rows(overview))


def status_rows(overview: Overview) -> list[ScreenRow]:
    """Return all rows of the overview of one Tidelog."""
    return [
        *verdict_rows(overview),
        *fact_rows(overview),
        *dump_rows(overview),
        *output_rows(overview),
        *problem_rows(overview),
        *process_rows(overview),
    ]


def rows_with_config(rows: Iterable[ScreenRow], config: str) -> list[ScreenRow]:
    """Return the rows, their commands as a user can paste them into a shell."""
    return [
        replace(row, text=name_config(row.text, config)) if isinstance(row.text, str) else row
        for row in rows
    ]


def verdict_rows(overview: Overview, *, beside: str = "") -> Iterator[ScreenRow]:
    """Yield the verdict and its remedy."""
    row = _with_sign(overview.severity, overview.verdict)
    yield replace(row, style=f"bold {row.style}", rank=0, least=5, beside=beside)
    if _worst_is_verdict(overview):
        yield from (replace(row, rank=0) for row in _remedy(overview.problems[0]))


def _worst_is_verdict(overview: Overview) -> bool:
    return bool(overview.problems) and overview.problems[0].sentence == overview.verdict


def fact_rows(overview: Overview) -> Iterator[ScreenRow]:
    """Yield the source, and the short answers; dumps have their own rows."""
    if overview.at_ms is not None:
        yield ScreenRow("source", of_source(overview), least=2)
    for answer in overview.answers:
        if answer.name != "dump":
            well = answer.severity in ("ok", "info")
            style = "" if well else SIGNS[answer.severity][0]
            yield ScreenRow(answer.name, of_answer(answer), style, least=3)


def dump_rows(overview: Overview, without: str = "") -> Iterator[ScreenRow]:
    """Yield the dumps that have not ended, and what slows them down. ``without``: an id."""
    dumps = [each for each in overview.dumps if each.dump_id != without]
    yield from (ScreenRow("dump", of_dump(dump), rank=3, least=3) for dump in dumps[:SHOWN])
    yield from _more(len(dumps), "dumps")
    if overview.dumps and overview.throttled:
        yield ScreenRow("", f"slowed down: {overview.throttled}", "yellow", rank=4)


def output_rows(overview: Overview) -> Iterator[ScreenRow]:
    """Yield outputs, the one that is furthest behind first, engines, and drops of activity."""
    from tidelog.app.overview.output_problems import by_cause

    down = bool(overview.source.silent_s)
    late = sorted(
        overview.outputs,
        key=lambda o: (o.error is None, -(o.lag_s if o.lag_s is not None else o.behind_records)),
    )
    for at, output in enumerate(late[:SHOWN]):
        rank = 2 if at < BRIEFLY else 4
        yield ScreenRow("output", of_output(output, down=down), rank=rank)
        if output.error is not None:
            yield ScreenRow("", of_failure(output), "dim", rank=rank)
        if batches := of_deliveries(output):
            yield ScreenRow("", batches, "dim", rank=rank if output.fails else 5)
        for tables, text in by_cause(output.keyless)[:SHOWN]:
            also = f"; so for {', '.join(tables[1:])}" if len(tables) > 1 else ""
            what, _, remedy = text.partition(". ")
            yield ScreenRow("", f"{what}{also}. {remedy}", "dim", rank=5)
    yield from _more(len(overview.outputs), "outputs")
    for engine in overview.engines[:SHOWN]:
        yield ScreenRow("engine", of_engine(engine), rank=4)
    yield from _more(len(overview.engines), "engines")
    if overview.drops:
        yield ScreenRow("activity", of_drops(overview.drops), rank=3)


def problem_rows(overview: Overview) -> Iterator[ScreenRow]:
    """Yield the problems besides the verdict, each with its remedy."""
    few = few_of_each(overview.problems)
    for problem in few[int(_worst_is_verdict(overview)) :]:
        yield replace(_with_sign(problem.severity, problem.sentence), rank=3, least=_WHOLE)
        yield from _remedy(problem)
    if more := len(overview.problems) - len(few):
        yield ScreenRow(
            MORE, f"{counted(more, 'more problem')}: tidelog status --json has them", rank=4
        )


def process_rows(overview: Overview, *, rate: str = "") -> Iterator[ScreenRow]:
    """Yield the processes that capture and deliver. ``rate``: that of the log."""
    if overview.at_ms is not None:
        yield ScreenRow("capture", of_capture(overview) + rate, rank=5)
    for pipeline in overview.pipelines[:SHOWN]:
        yield ScreenRow("pipeline", of_pipeline(pipeline), rank=5)
    yield from _more(len(overview.pipelines), "pipelines")


def _remedy(problem: Problem) -> Iterator[ScreenRow]:
    for line in (*problem.remedy.split("\n"), f"see {problem.page}"):
        if line:
            yield ScreenRow(REMEDY, line, rank=3, least=_WHOLE)


def few_of_each(problems: Sequence[Problem]) -> list[Problem]:
    """Return all problems if they are few, else a few of each kind, so that none hides another."""
    if len(problems) <= SHOWN:
        return list(problems)
    kinds: Counter[str] = Counter()
    few = []
    for problem in problems:
        kinds[problem.kind] += 1
        if kinds[problem.kind] <= OF_A_KIND:
            few.append(problem)
    return few[:SHOWN]


def brief(overview: Overview) -> list[str]:
    """Return one line each for capture, its outputs, dumps and problems, for logs."""
    source = overview.source
    where = f" at {source.position}" if source.position is not None else ""
    late = f"{_late(source)}{where}; " if source.lag_s is not None else ""
    facts = [f"{late}{overview.records:,} records"]
    facts += [of_output(output) for output in overview.outputs if output.error is None][:BRIEFLY]
    for dump in overview.dumps[:1]:
        facts.append(of_dump(dump) + _and_more(len(overview.dumps) - 1, "dump"))
    if overview.problems:
        more = _and_more(len(overview.problems) - 1, "problem", ": tidelog status CONFIG")
        facts.append(overview.problems[0].sentence + more)
    return [printable(line) for line in facts]


def _and_more(count: int, of: str, when: str = "") -> str:
    return f" (and {counted(count, f'more {of}')}{when})" if count else ""


class ChangedFacts:
    """Returns the facts of `brief` that have changed, and always the first one, the summary."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def of(self, overview: Overview) -> list[str]:
        facts = brief(overview)
        changed = [fact for at, fact in enumerate(facts) if not at or fact not in self._shown]
        self._shown = set(facts)
        return changed


def _more(count: int, of: str) -> Iterator[ScreenRow]:
    if count > SHOWN:
        yield ScreenRow(MORE, f"{count - SHOWN} more {of}: tidelog status --json has them", rank=4)


def _with_sign(severity: str, sentence: str) -> ScreenRow:
    colour, sign = SIGNS[severity]
    return ScreenRow(sign, sentence, colour)


def of_answer(answer: SummaryLine) -> str:
    """Describe an answer, with its time in this machine's time zone."""
    return answer.text if answer.at_ms is None else f"{answer.text} {_local(answer.at_ms)}"


def of_capture(overview: Overview) -> str:
    """Describe capture: its leader, and the number of records."""
    return f"{_who(overview, 'leads')}; {overview.records:,} records"


def of_pipeline(pipeline: PipelineOverview) -> str:
    """Describe a pipeline's leader."""
    paused = ""
    if pipeline.paused_ms is not None:
        by = f" by {pipeline.paused_by}" if pipeline.paused_by else ""
        paused = f"paused{by} since {_local(pipeline.paused_ms)}; "
    return f"{pipeline.pipeline}: {paused}{_who(pipeline, 'delivers')}"


def _who(led: Overview | PipelineOverview, does: str) -> str:
    if led.leader is None:
        who = f"nobody {does}"
    else:
        who = f"{led.leader} {does}"
        if led.zone:
            who += f" in zone {led.zone}"
        if led.since_ms is not None:
            who += f" since {_local(led.since_ms)}"
        if led.epoch is not None:
            who += f" (epoch {led.epoch})"
    if led.standbys:
        verb = "stands" if len(led.standbys) == 1 else "stand"
        zones = (f" in zone {zone}" if zone else "" for zone in led.standby_zones)
        named = (name + zone for name, zone in zip_longest(led.standbys, zones, fillvalue=""))
        who += f"; {', '.join(named)} {verb} by"
    elif led.leader is not None:
        who += "; nobody stands by"
    return who


def of_source(overview: Overview) -> str:
    """Describe the source: capture's position and lag."""
    source = overview.source
    parts = []
    if source.position is not None:
        parts.append(f"at {source.position}")
    if source.lag_s is not None:
        behind = "" if not source.lag_bytes else f" ({format_bytes(source.lag_bytes)})"
        parts.append(f"{_late(source)}{behind}")
    return "; ".join(parts) or "not asked yet"


def _late(source: SourceHealth) -> str:
    late = brief_span((source.lag_s or 0.0) * 1000)
    if source.silent_s:
        return f"up to {late} behind"
    return "up to date" if (source.lag_s or 0.0) < 1 else f"{late} behind"


def of_output(output: OutputHealth, *, down: bool = False) -> str:
    """Describe an output's lag, failures and rejections; ``down``: capture is down."""
    name = f"{output.pipeline}/{output.output}"
    if output.error is not None:
        return f"{name} has stopped"
    rejected = f"; {output.rejected:,} in dead letters" if output.rejected else ""
    if output.refused:
        rejected += f"; without {', '.join(sorted(output.refused))}"
    if not output.behind_records:
        return f"{name} {'has all that was captured' if down else 'is up to date'}{rejected}"
    records = f"{output.behind_records:,} records"
    failing = ", and fails" if output.fails else ""
    if output.lag_s is None:
        return f"{name} is {records} behind{failing}{rejected}"
    late = brief_span(output.lag_s * 1000)
    return f"{name} is {late} behind ({records}){failing}{rejected}"


def of_engine(engine: EngineHealth) -> str:
    """Describe an engine: its lag, and where it runs."""
    late = ""
    if engine.lag_s is not None:
        late = f"{brief_span(engine.lag_s * 1000)} behind, "
    text = f"{engine.name} has done all that was captured"
    if engine.behind_records:
        text = f"{engine.name} is {late}{engine.behind_records:,} records to do"
    if engine.owners:
        runs = "runs" if len(engine.owners) == 1 else "run"
        return f"{text}; {', '.join(engine.owners)} {runs} it"
    last_ms = max(engine.noted_ms, engine.seen_ms or 0)
    return f"{text}; last heard of at {_local(last_ms)}"


_LEAST_SHOWN_S = 60
"""How long what an output has yet to deliver takes at least, to be shown."""
_LEAST_BATCH = 100_000
"""A batch of so many records, or of a tenth of what waits, shows how long the rest takes: in a
small one most of the time does not depend on its records.
"""


def of_deliveries(output: OutputHealth) -> str:
    """Describe an output's batches: a long current one, the last one, and the error it has now."""
    parts = []
    if output.begun_ms is not None:
        records = counted(output.begun_records, "record")
        parts.append(f"a batch of {records} is under way since {_local(output.begun_ms)}")
    if output.committed_ms is not None:
        text = f"last batch at {_local(output.committed_ms)}"
        if output.batch_records == 0:
            text += ", without records"
        elif output.batch_s is not None and output.records_per_s is not None:
            took = brief_span(output.batch_s * 1000)
            records = f"{output.batch_records or 0:,} records"
            text += f": {records} in {took}, {output.records_per_s:,.0f} a second"
            waits_s = output.behind_records / max(output.records_per_s, 1)
            least = min(_LEAST_BATCH, output.behind_records / 10)
            if waits_s >= _LEAST_SHOWN_S and (output.batch_records or 0) >= least:
                text += f"; what waits takes about {brief_span(waits_s * 1000)}"
        parts.append(text)
    if output.fails and output.last_error_ms is not None:
        parts.append(f"failed last at {_local(output.last_error_ms)}: {of_failure(output)}")
    return "; ".join(parts)


def of_failure(output: OutputHealth) -> str:
    """Return the error that stopped the output, or that it has now; empty: none."""
    return _brief(output.error or (output.last_error if output.fails else ""))


def _brief(error: str | None) -> str:
    failed = " ".join((error or "").split())
    return failed if len(failed) <= MESSAGE else f"{failed[: MESSAGE - 1]}…"


def of_drops(drops: Sequence[OperationDrop]) -> str:
    """Describe the first drop of activity, and count the others."""
    first, more = drops[0], len(drops) - 1
    text = f"{first.table}: {first.kind}s fell from {first.before_per_min:,.0f} to "
    text += f"{first.then_per_min:,.0f} a minute at {_local(first.at_ms)}"
    if first.until_ms is not None:
        text += f", and came back at {_local(first.until_ms)}"
    return text + _and_more(more, "drop", " today")


def of_dump(dump: RunningDump) -> str:
    """Describe the progress of a dump."""
    by = f" by {dump.paused_by}" if dump.paused_by and dump.status == "paused" else ""
    status = "blocked" if dump.held else dump.status
    text = f"{dump.dump_id} is {status}{by}: {dump.tables_done} of {dump.tables} tables"
    text += f", {dump.rows:,} rows"
    if dump.status in ("completed", "aborted"):
        return text
    if dump.estimated_rows:
        text += f" of about {dump.estimated_rows:,}"
    if dump.share is not None:
        text += f" ({min(99, int(100 * dump.share))}%)"
    if dump.left_s is not None and dump.status == "running":
        text += f", about {brief_span(dump.left_s * 1000)} left"
    return text


def closing(overview: Overview) -> str:
    """Describe the state at the end of a process that ran capture, a pipeline or both."""
    at = overview.source.position
    parts = ["stopped" if at is None else f"stopped: the log is captured up to {at}"]
    parts += [of_output(output) for output in overview.outputs[:BRIEFLY]]
    parts += [f"dump {each.dump_id} resumes at the next start" for each in overview.dumps[:1]]
    return printable("; ".join(parts) + ".")


def _local(at_ms: int) -> str:
    """Return the time in this machine's time zone; with the date if it is another day."""
    at = time.localtime(at_ms / 1000)
    today = time.localtime()
    same_day = (at.tm_year, at.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", at)
