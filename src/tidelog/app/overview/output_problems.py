"""Finds problems of outputs, of their pipelines and of copies in the status document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidelog.app.overview.problems import (
    LATE_S,
    PAUSED_ENTRY,
    paused_text,
    pipeline_begins,
    problem,
    span_of,
)
from tidelog.model.units import and_more, brief_span
from tidelog.results import OutputHealth, Problem, Severity, VerifyResult

SILENT_S = 120.0
"""A pipeline that is behind and has reported nothing for this time does not run, or hangs."""
REJECTED_S = 86_400.0
"""How long new dead letters are reported."""


def pipeline_pauses(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    """Yield the paused pipelines, by whom and since when."""
    for name, pause in sorted((status.get("paused_pipelines") or {}).items()):
        lags = [each.lag_s or 0.0 for each in outputs if each.pipeline == name]
        behind = max((each.behind_records for each in outputs if each.pipeline == name), default=0)
        severity = Severity.WARNING if max(lags, default=0.0) >= LATE_S else Severity.INFO
        text = f"Pipeline {name} is {paused_text(pause, now_ms)}"
        if behind:
            text += f"; its outputs are up to {brief_span(max(lags) * 1000)} behind ({behind:,} "
            text += "records, which the event log keeps)"
        yield problem(
            "pipeline-paused",
            severity,
            name,
            f"{text}.",
            "tidelog resume CONFIG --pipeline",
            PAUSED_ENTRY,
        )


def output_problems(
    status: Mapping[str, Any], outputs: Sequence[OutputHealth], now_ms: int
) -> Iterator[Problem]:
    """Yield the problems of outputs: stopped, late, or without some rows."""
    for name in status.get("damaged_consumers") or ():
        yield problem(
            "consumer-damaged",
            Severity.CRITICAL,
            name,
            f"The event log's file consumers/{name}.json is damaged: the position of {name} is "
            "not known, so retention deletes nothing.",
            "Delete the file. A pipeline then continues from the copy in its checkpoint; an engine "
            "begins as if it were new.",
            "consumerfilecorrupterror",
        )
    begun = {f"{each.pipeline}/{each.output}" for each in outputs}
    for name in status.get("configured_outputs") or ():
        if name not in begun and not pipeline_begins(status, name):
            yield problem(
                "output-never-ran",
                Severity.WARNING,
                name,
                f"Nothing was ever delivered to output {name}.",
                "tidelog pipeline CONFIG",
                "the-pipeline-and-its-outputs",
            )
    led = {row["pipeline"]: row for row in status.get("pipelines") or ()}
    for each in outputs:
        name = f"{each.pipeline}/{each.output}"
        yield from _late_output(status, name, each, led.get(each.pipeline) or {}, now_ms)
        yield from _missing_rows(name, each, now_ms)


def _late_output(
    status: Mapping[str, Any],
    name: str,
    each: OutputHealth,
    led: Mapping[str, Any],
    now_ms: int,
) -> Iterator[Problem]:
    """Yield why the output is behind: at most one problem. ``led``: by whom, and since when."""
    leader = led.get("leader")
    silent_s = (now_ms - each.noted_ms) / 1000
    late = each.lag_s is not None and each.lag_s >= LATE_S
    # It reports only if there is something to deliver.
    silent = silent_s >= SILENT_S and (each.lag_s is None or each.lag_s >= SILENT_S)
    if each.error is not None:
        yield problem(
            "output-stopped",
            Severity.CRITICAL,
            name,
            f"Output {name} has stopped: {each.error}",
            _retried(leader),
            "outputrefusederror",
        )
    elif each.pipeline in (status.get("paused_pipelines") or {}):
        pass  # the pause's problem says how late
    elif each.behind_records and silent and not pipeline_begins(status, name):
        yield problem(
            "pipeline-silent",
            Severity.CRITICAL,
            name,
            f"Output {name} lacks {each.behind_records:,} records, and its pipeline has "
            f"reported nothing for {span_of(silent_s)}.",
            "tidelog pipeline CONFIG",
            "the-pipeline-and-its-outputs",
        )
    elif each.fails:
        yield problem(
            "output-fails",
            Severity.WARNING,
            name,
            f"Output {name} fails: {each.last_error}",
            _retried(leader),
            "outputerror",
        )
    elif late and each.lag_s is not None:
        begun_s = (now_ms - led.get("since_ms", 0)) / 1000
        # Its lag was there at the start, and batches end, or a long one runs.
        moves_ms = max(each.committed_ms or 0, each.begun_ms or 0)
        moves = begun_s < LATE_S or (now_ms - moves_ms) / 1000 < LATE_S
        begins = leader is not None and moves and begun_s < each.lag_s + LATE_S
        yield problem(
            "output-late",
            Severity.INFO if begins else Severity.WARNING,
            name,
            f"Output {name} is {span_of(each.lag_s)} behind ({each.behind_records:,} records)"
            + (
                f": its pipeline started {span_of(begun_s)} ago, and catches up." if begins else "."
            ),
            ""
            if begins
            else "If that grows, give Spark more cores (pipeline.master), or the output a "
            "pipeline of its own.",
            "the-pipeline-and-its-outputs",
        )


def _missing_rows(name: str, each: OutputHealth, now_ms: int) -> Iterator[Problem]:
    """Yield what the output does not have, or a catalog does not know."""
    if each.rejected_ms is not None and now_ms - each.rejected_ms < REJECTED_S * 1000:
        records = "record is" if each.rejected == 1 else "records are"
        yield problem(
            "output-rejects",
            Severity.WARNING,
            name,
            f"The destination of output {name} rejects records: {each.rejected:,} {records} in "
            "its dead letters.",
            "Read the files below the output's dead_letter, and fix the destination.",
            "a-destination-rejects-records",
        )
    for tables, why in by_cause(each.refused):
        more = and_more(len(tables) - 1, "table")
        what = f"Output {name} lacks rows of {tables[0]}{more}: {why}"
        remedy = "The other tables are delivered."
        found = ("output-lacks-table", Severity.WARNING, name, what, remedy)
        yield problem(*found, "tableleftouterror")
    if missing := sorted(each.unregistered.items()):
        table, why = missing[0]
        more = and_more(len(missing) - 1, "table")
        yield problem(
            "output-unregistered",
            Severity.WARNING,
            name,
            f"Output {name} has not registered {table}{more}: {why}",
            "The table is written as before.",
            "a-table-is-not-in-the-catalog",
        )


def by_cause(messages: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return tables of one cause together, with the message of the first of them. ``messages``: by
    table; those of one cause begin with sentences that differ in the table's name.
    """
    found: dict[str, tuple[list[str], str]] = {}
    for table, message in sorted(messages.items()):
        cause = message.replace(table, "").partition(". ")[0]
        found.setdefault(cause, ([], message))[0].append(table)
    return list(found.values())


def _retried(leader: str | None) -> str:
    """Return what to do about an output that fails; ``leader``: the process that delivers."""
    if leader is None:  # it ended, as all its outputs had stopped
        return "Fix that, then start the pipeline again; no process delivers now."
    return "Tidelog retries by itself once that is fixed."


def verify_result(status: Mapping[str, Any]) -> VerifyResult | None:
    """Return the last result of verify, without copies that are gone: their table is captured no
    more, or their output is not configured any more.
    """
    result = status.get("verified")
    if result is None:
        return None
    tables = status.get("captured")
    outputs = {name.rpartition("/")[2] for name in status.get("configured_outputs") or ()}

    def there(copies: Sequence[str]) -> tuple[str, ...]:
        named = ((copy, *copy.rpartition(" in ")[::2]) for copy in copies)
        return tuple(
            copy
            for copy, table, output in named
            if (not tables or table in tables) and (not outputs or output in outputs)
        )

    differ, repaired = there(result["differ"]), there(result.get("repaired") or ())
    left_out = there(result.get("left_out") or ())
    missed = there(result.get("not_compared") or ())
    return VerifyResult(result["at_ms"], result["compared"], differ, repaired, left_out, missed)


def copy_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the last verify found."""
    result = verify_result(status)
    if result is None:
        return
    page = "a-copy-differs-from-the-source"
    if differ := result.differ:
        yield problem(
            "copy-differs",
            Severity.CRITICAL,
            differ[0],
            f"Verify found that {_with_others(differ)} differed from the source.",
            "tidelog verify CONFIG --repair",
            page,
        )
    if missed := result.not_compared:
        yield problem(
            "copy-not-compared",
            Severity.WARNING,
            missed[0],
            f"Verify could not compare {_with_others(missed)}.",
            "tidelog verify CONFIG",
            page,
        )
    if repaired := result.repaired:
        yield problem(
            "copy-repaired",
            Severity.INFO,
            repaired[0],
            f"Verify has repaired {_with_others(repaired)}; not compared again yet.",
            "tidelog verify CONFIG",
            page,
        )


def _with_others(copies: Sequence[str]) -> str:
    more = len(copies) - 1
    return copies[0] + (f" and {more} more {'copy' if more == 1 else 'copies'}" if more else "")
