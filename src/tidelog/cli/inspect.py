"""The commands that read and compare: ``check``, ``status``, ``log``, ``verify``, …."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.cli import arguments, terminal
from tidelog.cli.arguments import ConfigFile, Excluded, Json, Tables, exit_unless
from tidelog.cli.live import progress_text
from tidelog.cli.status_lines import ScreenRow
from tidelog.errors import UsageError
from tidelog.results import Verification
from tidelog.system.download_progress import Download


class FailOn(StrEnum):
    """The problems at which `tidelog status` fails."""

    WARNING = "warning"
    CRITICAL = "critical"


def verify_rows(document: Mapping[str, Any]) -> list[ScreenRow]:
    """Return the progress of `verify`: its downloads, then how many copies it has compared, of
    several at a time.
    """
    fetching = document.get("fetching")
    if isinstance(fetching, Download):
        if fetching.done:
            return [ScreenRow("verify", f"has {fetching.what}")]
        row = ScreenRow("", progress_text(fetching), share=fetching.share)
        return [ScreenRow("verify", f"fetches {fetching.what}"), row]
    if "done" not in document:
        return [ScreenRow("verify", document["stage"])]
    done, of = document["done"], document["of"]
    text = f"{done:,} of {of:,} copies compared"
    now = f"{document['table']} with {document['output']}"
    stage = f": {document['stage']}" if "stage" in document else ""
    return [ScreenRow("verify", text, share=done / of), ScreenRow("", f"{now}{stage}")]


def check(
    config: ConfigFile,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="Only the SQL that fixes the problems, as a script, grouped by who must run it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that the source is ready for capture, and print the SQL that fixes each problem.

    Exits 2 if capture could not start.
    """
    if sql and as_json:
        raise UsageError("give --sql or --json, not both")
    loaded = arguments.load(config)
    from tidelog import app

    if sql:
        lines, can_start = app.check_script(loaded)
        for line in lines or ["-- nothing to fix"]:
            terminal.print_line(line)
        if not can_start:
            raise typer.Exit(UsageError.exit_code)
        return
    findings = app.check(loaded)
    terminal.show_findings([each.to_dict() for each in findings], as_json=as_json)
    app.store_check_result(loaded, findings)
    if any(each.level == "error" for each in findings):
        raise typer.Exit(UsageError.exit_code)


def plan(
    config: ConfigFile,
    table: Tables = None,
    exclude: Excluded = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that meet it; needs one --table.")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="N", help="Readers; default: as set now.")
    ] = None,
    chunk_rows: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, metavar="N", help="Rows of a chunk; default: as set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the chunks, rows, bytes and time of a dump before it starts.

    Reads statistics and a few rows; writes nothing.
    """
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    tables = [*(table or ()), *(exclude or ())]
    report = app.plan(
        loaded, tables=tables, where=where, parallelism=parallelism, chunk_rows=chunk_rows
    )
    terminal.show(report.to_dict(), as_json=as_json)


def status(
    config: ConfigFile,
    ranges: Annotated[
        bool,
        typer.Option("--ranges", help="Also the key ranges that could not be read: key values."),
    ] = False,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            metavar="SEVERITY",
            help="Exit 1 at a problem that is `critical`, or at `warning` and worse: for health "
            "checks.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show in a few lines whether all is well, how far behind it is, and what to do."""
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    found = app.status(loaded, ranges=ranges)
    if as_json:
        terminal.emit(found.document)
    else:
        from tidelog.cli import status_lines

        rows = status_lines.status_rows(found.overview)
        rows = status_lines.rows_with_config(rows, str(config))
        if sys.stdout.isatty():
            from tidelog.cli.live import print_rows

            print_rows(rows, str(config))
        else:
            for row in rows:
                terminal.print_line(str(row))
        for each in found.document.get("failed_ranges", ()):
            terminal.print_line(f"unread: {terminal.plain_line(each)}")
    if fail_on is not None:
        severities = {FailOn.CRITICAL, fail_on}
        exit_unless(str(found.overview.severity) not in severities)


def schema(
    config: ConfigFile,
    table: Annotated[
        str | None,
        typer.Option("--table", "-t", metavar="TABLE", help="namespace.table: column by column."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="POSITION", help="Where the error says that columns are not known."
        ),
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            allow_dash=True,
            help="The columns that the table had there, as JSON or YAML; -: stdin.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the schema versions of tables, or set the columns that a table had.

    ``captured=no``: a partition, whose rows have the name of its partitioned table, or a table that
    is captured no more. ``left_out``: generated columns that the source does not log.

    To set columns (MySQL, MariaDB) is needed when capture stops because it can't know them; see
    docs/how-to/schema-unknown.md.
    """
    if (at is None) != (columns is None) or (at is not None and table is None):
        raise UsageError("--at and --columns go together, and need --table")
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    if at is None or columns is None or table is None:
        terminal.show(app.schemas(loaded, table=table).to_dict(), as_json=as_json)
        return
    given = sys.stdin.read() if str(columns) == "-" else columns.read_text(encoding="utf-8")
    fixed = app.fix_schema(loaded, table=table, at=at, columns=given)
    terminal.show(fixed.to_dict(), as_json=as_json)


def log(
    config: ConfigFile,
    table: Annotated[
        str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table's events.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="First offset, or oldest, the default."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N events.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on with new events; begins now without --from and --tail."
        ),
    ] = False,
    dumps: Annotated[
        bool, typer.Option("--dumps", help="Also where dumps of tables began and were complete.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Write change events as JSON lines, in Debezium's envelope."""
    if start is not None and tail is not None:
        raise UsageError("give --from or --tail, not both")
    if start is not None and start != "oldest" and not (start.isascii() and start.isdigit()):
        raise UsageError(f"--from is an offset or oldest, not {start!r}")
    first = int(start) if start is not None and start != "oldest" else None
    if follow and start is None and tail is None:
        tail = 0
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    if follow and tail == 0 and sys.stderr.isatty():  # else nothing would show that it works
        terminal.print_sentence("new events follow as they come; Ctrl-C ends", error=True)
    try:
        lines = app.log_lines(
            loaded, table=table, start=first, tail=tail, follow=follow, dumps=dumps
        )
        for line in lines:
            terminal.print_line(line)
    except BrokenPipeError:
        # The reader has enough (`| head`). Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _for_screen(report: Verification) -> dict[str, Any]:
    """Return the report with one row for each copy that was not compared, and the reason."""
    found = {}
    for name in report.not_compared or ():
        copy, _, reason = name.partition(" (")
        found[copy] = reason.removesuffix(")") or "verify ended first"
    for each in report.tables:
        if each.left_out or (each.is_incomplete and not (each.rows or each.unsettled)):
            found[each.copy] = each.note.removeprefix("not compared: ")
    compared = tuple(each for each in report.tables if each.copy not in found)
    document = replace(report, tables=compared, not_compared=None).to_dict()
    rows = [{"copy": copy, "reason": reason} for copy, reason in found.items()]
    return {**document, "not_compared": rows} if rows else document


@terminal.interrupted_by_sigterm()
def verify(
    config: ConfigFile,
    table: Tables = None,
    exclude: Excluded = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Dump the keys that differ, and only those.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare source and outputs, and list the keys that differ. Exits 1 if any does.

    If Ctrl-C, SIGTERM or an error ends it early, it prints the results so far, with what was not
    compared, and exits 130 or as the error does.
    """
    loaded = arguments.load(config, unread=("control",))
    from tidelog import app
    from tidelog.cli.live import ProgressView, downloads_to_stderr, live_area
    from tidelog.system.download_progress import report_downloads

    piped = not sys.stdout.isatty()  # a pipe gets the report alone
    partial: list[Verification] = []

    def show(report: Verification) -> None:
        terminal.show(report.to_dict() if as_json else _for_screen(report), as_json=as_json)

    try:
        with live_area(wanted=not as_json) as area, ExitStack() as to:
            view = ProgressView(area, error=piped)

            def given(document: Mapping[str, Any]) -> None:
                if not as_json:
                    rows = verify_rows(document)
                    line = f"verify: {'; '.join(str(row.text) for row in rows)}"
                    view.show(document, line, lambda *_size: rows, at_once=rows[0].text)

            if not as_json:
                on_fetch = (
                    downloads_to_stderr("verify") if piped else lambda now: given({"fetching": now})
                )
                to.enter_context(report_downloads(on_fetch))
            report = app.verify(
                loaded,
                tables=[*(table or ()), *(exclude or ())],
                repair=repair,
                on_progress=given,
                on_partial=partial.append,
            )
    except BaseException as error:
        if partial:
            show(partial[0])
        elif isinstance(error, KeyboardInterrupt):
            terminal.print_sentence("nothing was compared", error=True)
        raise
    show(report)
    exit_unless(report.equal)
