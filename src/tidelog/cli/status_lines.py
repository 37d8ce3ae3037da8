"""`tidelog status`: an overview as about ten lines of sentences, the same on a terminal and in a
pipe, where there is no colour.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from tidelog.cli.terminal import SIGNS, coloured, say
from tidelog.model.printable import printable
from tidelog.model.units import brief_span, counted, format_bytes

if TYPE_CHECKING:
    from tidelog.app.overview import (
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
"""Outputs and problems that are shown of each; ``--json`` has all."""
BRIEFLY = 3
"""Outputs that a line of a log names."""
MESSAGE = 120
"""Characters of an error that is over; ``--json`` has all."""
_NAME = 9


def show(found: Overview) -> None:
    """Write the overview to stdout; on a terminal, no word is torn apart, and what it has no room
    for is counted.
    """
    if not sys.stdout.isatty():
        for line in lines(found):
            say(line)
        return
    width, height = shutil.get_terminal_size()
    for line in on_screen(list(lines(found)), width, height - 1):
        say(_painted(line))


def on_screen(told: Sequence[str], width: int, height: int) -> list[str]:
    """So many lines of `lines` as such a terminal shows, broken between words."""
    shown: list[str] = []
    for at, line in enumerate(told):
        blank = len(line) - len(line.lstrip())
        hang = 2 + _NAME if blank == 2 else blank or 2
        broken = textwrap.wrap(
            line,
            max(40, width),
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        left = at + 1 < len(told)
        if len(shown) + len(broken) + left > height and shown:
            return [*shown[: height - 1], "  … more than fits: tidelog status CONFIG | more"]
        shown += broken
    return shown


def _painted(line: str) -> str:
    for code, sign in SIGNS.values():
        if line.startswith(f"{sign} "):
            return coloured(sign, code) + line[len(sign) :]
    return line


def lines(found: Overview) -> Iterator[str]:
    """The worst first: verdict and what to do, answers, facts, then the other problems."""
    yield _signed(found.severity, found.verdict)
    few = few_of_each(found.problems)
    if few and few[0].sentence == found.verdict:
        yield from _remedy(few.pop(0))
    if found.at_ms is not None:
        yield _fact("source", of_source(found))
    for answer in found.answers:
        if answer.name != "dump":  # each has its own line
            yield _fact(answer.name, of_answer(answer))
    for dump in found.dumps[:SHOWN]:
        yield _fact("dump", of_dump(dump))
    yield from _more(len(found.dumps), "dumps")
    if found.dumps and found.throttled:
        yield _fact("", f"slowed down: {found.throttled}")
    for output in found.outputs[:SHOWN]:
        yield _fact("output", of_output(output, down=bool(found.source.silent_s)))
        if told := of_deliveries(output):
            yield _fact("", told)
    yield from _more(len(found.outputs), "outputs")
    for engine in found.engines[:SHOWN]:
        yield _fact("engine", of_engine(engine))
    yield from _more(len(found.engines), "engines")
    if found.drops:
        yield _fact("activity", of_drops(found.drops))
    for problem in few:
        yield _signed(problem.severity, problem.sentence)
        yield from _remedy(problem)
    told_of = len(few) + (bool(found.problems) and found.problems[0].sentence == found.verdict)
    if more := len(found.problems) - told_of:
        yield f"  … {counted(more, 'more problem')}: --json has them"
    if found.at_ms is not None:
        yield _fact("capture", of_capture(found))
    for pipeline in found.pipelines[:SHOWN]:
        yield _fact("pipeline", of_pipeline(pipeline))
    yield from _more(len(found.pipelines), "pipelines")


def _remedy(problem: Problem) -> Iterator[str]:
    yield from (f"    {printable(line)}" for line in problem.remedy.split("\n") if line)
    yield f"    see {problem.page}"


def few_of_each(problems: Sequence[Problem]) -> list[Problem]:
    """At most so many of each kind, so that none hides another kind."""
    kinds: Counter[str] = Counter()
    found = []
    for problem in problems:
        kinds[problem.kind] += 1
        if kinds[problem.kind] <= OF_A_KIND:
            found.append(problem)
    return found[:SHOWN]


def brief(found: Overview) -> list[str]:
    """What moves, a fact a line, for logs: capture, its outputs and dumps, and what is wrong."""
    source = found.source
    where = f" at {source.position}" if source.position is not None else ""
    late = f"{_late(source)}{where}; " if source.lag_s is not None else ""
    told = [f"{late}{found.records:,} records"]
    told += [of_output(output) for output in found.outputs if output.error is None][:BRIEFLY]
    for dump in found.dumps[:1]:
        told.append(of_dump(dump) + _and_more(len(found.dumps) - 1, "dump"))
    if found.problems:
        told.append(found.problems[0].sentence + _and_more(len(found.problems) - 1, "problem"))
    return [printable(line) for line in told]


def _and_more(count: int, of: str, when: str = "") -> str:
    return f" (and {counted(count, f'more {of}')}{when})" if count else ""


class ChangedFacts:
    """The facts of `brief` that have changed, and always the first one, which sums them up."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, found: Overview) -> list[str]:
        facts = brief(found)
        changed = [fact for at, fact in enumerate(facts) if not at or fact not in self._told]
        self._told = set(facts)
        return changed


def _fact(name: str, text: str) -> str:
    return f"  {name:<{_NAME}}{printable(text)}"


def _more(count: int, of: str) -> Iterator[str]:
    if count > SHOWN:
        yield f"  … {count - SHOWN} more {of}: --json has them"


def _signed(severity: str, sentence: str) -> str:
    _code, sign = SIGNS[severity]
    return f"{sign} {printable(sentence)}"


def of_answer(answer: SummaryLine) -> str:
    """With its time, in this machine's time zone."""
    return answer.text if answer.at_ms is None else f"{answer.text} {_local(answer.at_ms)}"


def of_capture(found: Overview) -> str:
    """Who leads capture, and how much was captured."""
    return f"{_who(found, 'leads')}; {found.records:,} records"


def of_pipeline(found: PipelineOverview) -> str:
    """Who delivers."""
    paused = ""
    if found.paused_ms is not None:
        by = f" by {found.paused_by}" if found.paused_by else ""
        paused = f"paused{by} since {_local(found.paused_ms)}; "
    return f"{found.pipeline}: {paused}{_who(found, 'delivers')}"


def _who(found: Overview | PipelineOverview, does: str) -> str:
    if found.leader is None:
        who = f"nobody {does}"
    else:
        who = f"{found.leader} {does}"
        if found.zone:
            who += f" in zone {found.zone}"
        if found.since_ms is not None:
            who += f" since {_local(found.since_ms)}"
        if found.epoch is not None:
            who += f" (epoch {found.epoch})"
    if found.standbys:
        verb = "stands" if len(found.standbys) == 1 else "stand"
        zones = (f" in zone {zone}" if zone else "" for zone in found.standby_zones)
        named = (name + zone for name, zone in zip_longest(found.standbys, zones, fillvalue=""))
        who += f"; {', '.join(named)} {verb} by"
    elif found.leader is not None:
        who += "; nobody stands by"
    return who


def of_source(found: Overview) -> str:
    """Where capture is, and how late."""
    source = found.source
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
    """How late an output is, whether it fails, how many records it rejected. ``down``: capture is
    down, so newer changes are not known.
    """
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
    """How late an engine is, and where it runs."""
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


def of_deliveries(output: OutputHealth) -> str:
    """The batch under way if it takes long, how the last one went, and what failed last."""
    parts = []
    if output.begun_ms is not None:
        records = counted(output.begun_records, "record")
        parts.append(f"a batch of {records} is under way since {_local(output.begun_ms)}")
    if output.committed_ms is not None:
        text = f"last batch at {_local(output.committed_ms)}"
        if output.batch_s is not None and output.records_per_s is not None:
            took = brief_span(output.batch_s * 1000)
            records = f"{output.batch_records or 0:,} records"
            text += f": {records} in {took}, {output.records_per_s:,.0f} a second"
        parts.append(text)
    if output.last_error_ms is not None and (failed := _failed(output)):
        parts.append(f"failed last at {_local(output.last_error_ms)}: {failed}")
    return "; ".join(parts)


def of_failure(output: OutputHealth) -> str:
    """What stopped it, or fails now; empty: nothing does."""
    return _brief(output.error or (output.last_error if output.fails else ""))


def _failed(output: OutputHealth) -> str:
    return "" if output.error else _brief(output.last_error)


def _brief(error: str | None) -> str:
    failed = " ".join((error or "").split())
    return failed if len(failed) <= MESSAGE else f"{failed[: MESSAGE - 1]}…"


def of_drops(drops: Sequence[OperationDrop]) -> str:
    """The first of them, and how many more there are."""
    first, more = drops[0], len(drops) - 1
    said = f"{first.table}: {first.kind}s fell from {first.before_per_min:,.0f} to "
    said += f"{first.then_per_min:,.0f} a minute at {_local(first.at_ms)}"
    if first.until_ms is not None:
        said += f", and came back at {_local(first.until_ms)}"
    return said + _and_more(more, "drop", " today")


def of_dump(dump: RunningDump) -> str:
    """How far a dump is."""
    by = f" by {dump.paused_by}" if dump.paused_by and dump.status == "paused" else ""
    text = f"{dump.dump_id} is {dump.status}{by}: {dump.tables_done} of {dump.tables} tables"
    text += f", {dump.rows:,} rows"
    if dump.status in ("completed", "aborted"):
        return text
    if dump.estimated_rows:
        text += f" of about {dump.estimated_rows:,}"
    if dump.share is not None:
        text += f" ({min(99, int(100 * dump.share))} %)"
    if dump.left_s is not None and dump.status == "running":
        text += f", about {brief_span(dump.left_s * 1000)} left"
    return text


def closing(found: Overview) -> str:
    """What is left behind when a process ends that ran capture, a pipeline or both."""
    parts = [f"stopped: {found.records:,} records were captured"]
    if found.source.position is not None:
        parts[0] += f", up to {found.source.position}"
    parts += [of_output(output) for output in found.outputs[:BRIEFLY]]
    parts += [f"dump {each.dump_id} goes on at the next start" for each in found.dumps[:1]]
    return printable("; ".join(parts) + ".")


def _local(at_ms: int) -> str:
    """The time in this machine's time zone; with the date if it is another day."""
    at = time.localtime(at_ms / 1000)
    today = time.localtime()
    same_day = (at.tm_year, at.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", at)
