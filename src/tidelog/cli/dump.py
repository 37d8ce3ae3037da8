"""The commands ``dump`` and ``wait``, and those that control dumps, the log and pipelines."""

from __future__ import annotations

import getpass
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import arguments, terminal
from tidelog.cli.arguments import (
    ConfigFile,
    DumpArgument,
    Excluded,
    Json,
    Tables,
    Wait,
    exit_unless,
)
from tidelog.cli.live import ProgressView, live_area
from tidelog.cli.status_lines import ScreenRow, of_dump
from tidelog.errors import TidelogError, UsageError
from tidelog.model.units import format_bytes, format_milliseconds, printable
from tidelog.system.processes import unix_ms

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command
    from tidelog.results import RunningDump


def dump(
    config: ConfigFile,
    table: Tables = None,
    exclude: Excluded = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that meet it; needs one --table.")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE=SQL", help="Only rows of this table that meet it; may be repeated."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Only these keys: [1, 2], [["a", 1]] or [{"id": 1}].'),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Keys in a .csv, .parquet, .jsonl or .json file; columns by name.",
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            metavar="delete|list", help="What to do with given keys that are not in the table."
        ),
    ] = "delete",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="incremental: chunks beside the log; blocking: one snapshot while the log waits.",
        ),
    ] = "incremental",
    priority: Annotated[
        int,
        typer.Option(
            min=-100, max=100, help="Dumps of the highest are read first: three chunks of four."
        ),
    ] = 0,
    dump_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Names the dump; the same id again does nothing."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the dump is complete.")] = False,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="With --wait: when the outputs hold it as well.")
    ] = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Dump all captured tables, some, or some of a table's rows, while the log is read on."""
    from tidelog.control.commands import StartDump, build_command, parse_conditions
    from tidelog.control.key_files import parse_keys
    from tidelog.control.mailbox import new_id

    if keys is not None and keys_file is not None:
        raise UsageError("give --keys or --keys-file, not both")
    if missing != "delete" and keys is None and keys_file is None:
        raise UsageError("--missing is about given keys: give --keys or --keys-file")
    if delivered and not wait:
        raise UsageError("--delivered goes with --wait; later, use `tidelog wait`")
    data: dict[str, Any] = {
        "dump_id": dump_id or new_id().lower(),
        "tables": [*(table or ()), *(exclude or ())],
        "where": where,
        "conditions": parse_conditions(condition or []),
        "mode": mode,
        "missing": missing,
        "priority": priority,
    }
    if keys is not None:
        data["keys"], data["key_columns"] = parse_keys(keys)
    elif keys_file is not None:
        data["key_set"] = str(keys_file)  # checked with the rest, before the file is read
    command = build_command(StartDump, data, "dump")
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    if keys_file is not None:
        from tidelog import app

        data |= app.store_key_file(loaded, keys_file, data["tables"]).to_dict()
        command = build_command(StartDump, data, "dump")
    shows_report = wait and (as_json or sys.stdout.isatty())
    send(loaded, command, timeout, as_json=as_json, name=data["dump_id"], quiet=shows_report)
    if wait:
        with explain_interrupt(config, data["dump_id"]):
            report = _wait_for(loaded, data["dump_id"], delivered=delivered, as_json=as_json)
        if missing == "list":
            from tidelog import app

            report["missing_keys"] = list(app.missing_keys(loaded, data["dump_id"]))
        show_dump(report, as_json=as_json)
        whole = all(table["status"] == "done" for table in report.get("tables", ()))
        done = report["status"] == "completed" and whole
        exit_unless(done and report.get("delivered", True))


def _wait_for(config: Config, dump_id: str, *, delivered: bool, as_json: bool) -> dict[str, Any]:
    from tidelog import app
    from tidelog.app.overview.problems import is_dump_unfinished

    with dump_bars(as_json=as_json) as bars:

        def update(dump: Mapping[str, Any]) -> None:
            # The report is the last line of JSON.
            if not as_json or delivered or is_dump_unfinished(dump):
                bars.update(dump)

        report = app.dump_wait(config, dump_id, on_progress=update).to_dict()
        if delivered:
            delivery = app.wait_delivered(
                config, dump_id, on_progress=lambda found: bars.delivery(found.to_dict())
            )
            report["delivered"] = delivery.delivered
    return report


@contextmanager
def explain_interrupt(config: Path, dump_id: str) -> Iterator[None]:
    """On Ctrl-C, print that the dump continues, and how to wait for it again or cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.print_sentence(
            f"dump {dump_id} continues; to wait again: tidelog wait {config} {dump_id}; to end it: "
            f"tidelog cancel {config} {dump_id}",
            error=True,
        )
        raise


def wait(
    config: ConfigFile,
    dump: Annotated[str, typer.Argument(metavar="DUMP", help="The dump's id.")],
    output: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this output; or a consumer of the event log."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long to wait; default: for ever.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until the outputs have a dump's tables completely. Exits 1 if one of them failed."""
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    with explain_interrupt(config, dump), dump_bars(as_json=False, quiet=as_json) as bars:
        report = app.wait_delivered(
            loaded,
            dump,
            output,
            timeout_s=timeout,
            on_progress=lambda found: None if as_json else bars.delivery(found.to_dict()),
        )
    if as_json:
        terminal.emit(report.to_dict())
    else:
        terminal.print_sentence(delivery_sentence(report.to_dict()))
    exit_unless(report.delivered)


# Commands that control running dumps, the log, pipelines and engines.

OfLog = Annotated[
    bool, typer.Option("--log", help="The reading of the source's log, in place of dumps.")
]
OfPipeline = Annotated[
    bool, typer.Option("--pipeline", help="The pipeline of CONFIG, in place of dumps.")
]


def pause(
    config: ConfigFile,
    dump: DumpArgument = None,
    log: OfLog = False,
    pipeline: OfPipeline = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Pause a dump, or all; or the reading of the log, or the pipeline. It stays paused over
    restarts.
    """
    from tidelog.control.commands import PauseDump, PauseLog, PausePipeline, build_command

    _check_only_one(dump, log, pipeline)
    loaded, by = arguments.load(config, unread=arguments.STATE_ALONE), _caller()
    command = build_command(PauseDump, {"dump_id": dump, "by": by}, "pause")
    if log:
        command = build_command(PauseLog, {"by": by}, "pause")
    elif pipeline:
        command = build_command(
            PausePipeline, {"pipeline": loaded.pipeline.name, "by": by}, "pause"
        )
    send(loaded, command, timeout, as_json=as_json)


def _check_only_one(dump: str | None, log: bool, pipeline: bool) -> None:
    if (dump is not None) + log + pipeline > 1:
        raise UsageError("give one of a dump's id, --log and --pipeline")


def _caller() -> str:
    """Return the user and host of this command, as far as they are known."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    except (OSError, KeyError):  # an account without a name, as in a container
        return socket.gethostname()[:200]


def resume(
    config: ConfigFile,
    dump: DumpArgument = None,
    log: OfLog = False,
    pipeline: OfPipeline = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Resume a paused dump, or all; or the reading of the log, or the pipeline."""
    from tidelog.control.commands import ResumeDump, ResumeLog, ResumePipeline, build_command

    _check_only_one(dump, log, pipeline)
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    command = build_command(ResumeDump, {"dump_id": dump}, "resume")
    if log:
        command = ResumeLog()
    elif pipeline:
        command = build_command(ResumePipeline, {"pipeline": loaded.pipeline.name}, "resume")
    send(loaded, command, timeout, as_json=as_json)


def cancel(
    config: ConfigFile,
    dump: Annotated[
        str | None, typer.Argument(metavar="DUMP", help="The dump's id; asked for if missing.")
    ] = None,
    table: Tables = None,
    exclude: Excluded = None,
    every: Annotated[bool, typer.Option("--all", help="All dumps.")] = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Cancel a dump, all, or some of their tables; rows that were read stay.

    Without a dump's id it asks for one; where nobody can answer, and with --json, it lists them and
    exits 2.
    """
    from tidelog.control.commands import CancelDump, build_command

    if every and dump is not None:
        raise UsageError("give one of a dump's id and --all")
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    tables = [*(table or ()), *(exclude or ())]
    if dump is None and not every and not tables:
        dump = _choose_dump(loaded, config, as_json=as_json)
        if dump is None:
            return
    command = build_command(CancelDump, {"dump_id": dump, "tables": tables}, "cancel")
    send(loaded, command, timeout, as_json=as_json)


def _choose_dump(config: Config, file: Path, *, as_json: bool) -> str | None:
    """Return the dump to cancel; None: no dump runs, or the user chose none."""
    from tidelog import app
    from tidelog.app.overview.problems import is_dump_unfinished

    dumps = app.status(config).document.get("dumps") or ()
    running = [each for each in dumps if is_dump_unfinished(each)]
    if not running:
        if as_json:  # the same answer as capture's for no dumps
            terminal.emit({"id": None, "state": "done", "details": {"dumps": []}, "error": None})
        else:
            terminal.print_line("no dump runs")
        return None
    sentences = "\n".join(f"  {sentence(dump)}" for dump in running)
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"name the dump to cancel, or --all; there are:\n{sentences}")
    terminal.print_line(sentences)
    if len(running) == 1:
        name: str = running[0]["dump_id"]
        return name if typer.confirm(f"Cancel {name}?") else None
    names = [dump["dump_id"] for dump in running]
    chosen = typer.prompt("Which one (its id; empty: none)", default="", show_default=False)
    if chosen and chosen not in names:
        raise UsageError(f"no dump {chosen} runs; `tidelog status {file}` lists them")
    return chosen or None


def set_options(
    config: ConfigFile,
    options: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="chunk_rows, parallelism, rows_per_second, delay (100ms), max_lag (256MiB), "
            "max_replica_lag (10s), max_select (2s), max_commit_delay (5ms); off is 0.",
        ),
    ],
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Change how dumps read, also running ones."""
    from tidelog.control.commands import parse_options

    command = parse_options(options)
    send(arguments.load(config, unread=arguments.STATE_ALONE), command, timeout, as_json=as_json)


def send_signal(
    config: ConfigFile,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="execute-snapshot, stop-snapshot, log, …")
    ],
    data: Annotated[
        str | None, typer.Argument(metavar="JSON", help="As in the signal table's column data.")
    ] = None,
    signal_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Names the dump; default: a new id.")
    ] = None,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Send a signal in Debezium's form."""
    from tidelog.control.debezium import Signal, parse
    from tidelog.control.mailbox import new_id

    command = parse(Signal(signal_id or new_id().lower(), kind, data), coordinates="tidelog signal")
    send(arguments.load(config, unread=arguments.STATE_ALONE), command, timeout, as_json=as_json)


_KEPT = 40
"""How many summaries to keep, for rates over some seconds."""


class DumpBars:
    """Shows summaries of one dump."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._history: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def update(self, dump: Mapping[str, Any]) -> None:
        """Show a summary. ``dump``: as in the list of a status."""
        tables = [(each["table"], each["status"]) for each in dump.get("tables", ())]
        blocks = [each["why"] for each in dump.get("held", ())]
        self._history.append({"updated_ms": unix_ms(), "dumps": [dict(dump)]})

        def rows(width: int, height: int) -> Iterator[ScreenRow]:
            from tidelog.cli.screen import progress_rows

            history = list(self._history)
            return progress_rows(history, dump, _progress(dump), width, height)

        self._view.show(dump, sentence(dump), rows, state=(dump["status"], tables, blocks))

    def delivery(self, state: Mapping[str, Any]) -> None:
        """Show how far the dump is delivered to the outputs."""
        tables = [
            (each["table"], each["taken"], each["delivered"]) for each in state.get("tables", ())
        ]
        text = delivery_sentence(state)
        rows = [ScreenRow("outputs", text)]
        states = (state["status"], tables, state.get("stands"))
        self._view.show(state, text, lambda _width, _height: rows, state=states)


def show_dump(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a finished dump: a sentence, why tables failed, and absent keys as JSON lists."""
    if as_json:
        terminal.emit(report)
        return
    terminal.print_sentence(sentence(report))
    for table in report.get("tables", ()):
        if table["status"] != "done":
            terminal.print_sentence(
                printable(f"{table['table']} {table['status']}: {table['reason']}")
            )
    for each in report.get("rejected", ()):
        terminal.print_sentence(printable(f"not dumped: {each['table']}: {each['reason']}"))
    for key in report.get("missing_keys", ()):
        terminal.print_line(f"missing: {terminal.to_json(key)}")


def sentence(dump: Mapping[str, Any]) -> str:
    """Describe the progress as `tidelog status` does, and what blocks the dump."""
    progress = _progress(dump)
    return f"{of_dump(progress)}. {progress.held}" if progress.held else of_dump(progress)


def _progress(dump: Mapping[str, Any]) -> RunningDump:
    from tidelog.app.overview.build import dump_progress
    from tidelog.app.overview.dump_problems import as_blocked

    return dump_progress(as_blocked(dump, dump.get("held") or ()), unix_ms())


def delivery_sentence(state: Mapping[str, Any]) -> str:
    """Describe how many of the dump's tables the outputs have."""
    taken = [table for table in state.get("tables", ()) if table["taken"]]
    complete = sum(table["delivered"] for table in taken)
    dump = f"{state['dump_id']} is {state['status']}"
    text = f"{dump}; the outputs hold {complete} of {len(taken)} tables completely"
    text += "".join(f"; {each['table']}: {each['reason']}" for each in taken if each["reason"])
    return f"{text}. {state['stands']}" if state.get("stands") else text


@contextmanager
def dump_bars(*, as_json: bool, quiet: bool = False) -> Iterator[DumpBars]:
    """Open `DumpBars` on the last lines of stdout, if that is a terminal."""
    with live_area(wanted=not (as_json or quiet)) as area:
        yield DumpBars(ProgressView(area, as_json=as_json))


# Sending a command to the leading capture, and sentences about its result.

TABLES_NAMED = 20
"""How many tables to name; ``--json`` has all."""

Details = Mapping[str, Any]


def result_sentences(kind: str, details: Details) -> list[str]:
    """Return sentences about a command's result, or else a line for each detail.

    Args:
        kind: the command's type, `tidelog.control.commands.Command.type`.
        details: the details of capture's answer.
    """
    describe = _SENTENCES.get(kind)
    lines = terminal.plain_lines(details) if describe is None else describe(details)
    return [printable(line) for line in lines]


def _dump_requested(details: Details) -> Iterator[str]:
    dump, tables = details["dump_id"], details.get("tables", ())
    if tables:
        yield f"dump {dump} is requested: {_name_tables(tables)}"
    else:
        yield f"dump {dump}: no table is dumped"
    yield from _rejected(details)


def _name_tables(tables: Sequence[str]) -> str:
    named = ", ".join(tables[:TABLES_NAMED])
    if len(tables) == 1:
        return f"table {named}"
    more = f", and {len(tables) - TABLES_NAMED} more" if len(tables) > TABLES_NAMED else ""
    return f"{len(tables)} tables: {named}{more}"


def _rejected(details: Details) -> Iterator[str]:
    for each in details.get("rejected", ()):
        yield f"not dumped: {each['table']}: {each['reason']}"


def _dumps(one: str, many: str, none: str) -> Callable[[Details], Iterator[str]]:
    def describe(details: Details) -> Iterator[str]:
        dump_ids = details["dumps"]
        if len(dump_ids) > 1:
            yield f"dumps {', '.join(dump_ids)} {many}"
        else:
            yield f"dump {dump_ids[0]} {one}" if dump_ids else none
        for each in details.get("rejected", ()):
            yield f"left as it is: {each['table']}: {each['reason']}"

    return describe


def _log_sentence(what: str) -> Callable[[Details], Iterator[str]]:
    def describe(details: Details) -> Iterator[str]:
        was = details.get("resumed", True)
        yield f"the log is {what}" if was else "the log was not paused"

    return describe


def _pipeline_sentence(what: str) -> Callable[[Details], Iterator[str]]:
    def describe(details: Details) -> Iterator[str]:
        was, name = details.get("resumed", True), details["pipeline"]
        yield f"pipeline {name} {what}" if was else f"pipeline {name} was not paused"

    return describe


def _options(details: Details) -> Iterator[str]:
    yield from (f"{name} is {value} now" for name, value in map(_with_unit, details.items()))


def _with_unit(option: tuple[str, int]) -> tuple[str, str]:
    """Return a dump option as users type it: ``max_lag``, ``256MiB``."""
    from tidelog.control.commands import typed_name

    name, value = option
    unit = name.rpartition("_")[2]
    written = {"bytes": format_bytes, "ms": format_milliseconds}.get(unit, str)
    return typed_name(name), written(value)


_SENTENCES: Mapping[str, Callable[[Details], Iterator[str]]] = {
    "execute-snapshot": _dump_requested,
    "stop-snapshot": _dumps(
        "is cancelled; rows that were read stay",
        "are cancelled; rows that were read stay",
        "no dump was under way",
    ),
    "pause-snapshot": _dumps(
        "is paused; `tidelog resume` resumes it",
        "are paused; `tidelog resume` resumes them",
        "no dump was under way",
    ),
    "resume-snapshot": _dumps("is resumed", "are resumed", "no dump was paused"),
    "pause-log": _log_sentence(
        "paused, and the server keeps it; `tidelog resume CONFIG --log` resumes it"
    ),
    "resume-log": _log_sentence("read again"),
    "pause-pipeline": _pipeline_sentence(
        "is paused; `tidelog resume CONFIG --pipeline` resumes it"
    ),
    "resume-pipeline": _pipeline_sentence("delivers again"),
    "set-dump-options": _options,
    "log": lambda _details: iter(("logged",)),
}


def send(
    config: Config,
    command: Command,
    timeout_s: float | None,
    *,
    as_json: bool,
    name: str | None = None,
    quiet: bool = False,
) -> None:
    """Send a command to capture and print the result; ``quiet``: only if it still waits.

    ``timeout_s``: None: see `tidelog.app.overview.remote_control.command_timeout_s`.
    """
    from tidelog import app
    from tidelog.app.overview.remote_control import command_timeout_s

    timeout_s = command_timeout_s(config) if timeout_s is None else timeout_s
    result = app.send_command(config, command, timeout_s=timeout_s)
    if result.error is not None:
        raise (UsageError if result.usage else TidelogError)(result.error)
    if as_json:
        if not quiet:
            terminal.emit({"dump": name, **result.to_dict()} if name else result.to_dict())
    elif result.state == "waiting":
        terminal.print_line(
            f"{f'dump {name}: ' if name else ''}no capture has handled it within {timeout_s:g} s; "
            "the next leader will"
        )
    elif not quiet:
        for line in result_sentences(command.type, result.details):
            terminal.print_sentence(line)
