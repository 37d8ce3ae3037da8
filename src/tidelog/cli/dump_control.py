"""The commands that control running dumps, the log, pipelines and engines."""

from __future__ import annotations

import getpass
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import client, terminal
from tidelog.cli.arguments import ConfigFile, DumpArgument, Json, Tables, Wait
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.config import Config


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
    from tidelog.control.commands import PauseLog, PausePipeline, PauseSnapshot, build

    _check_only_one(dump, log, pipeline)
    loaded, by = client.load(config, unread=client.STATE_ALONE), _caller()
    command = build(PauseSnapshot, {"dump_id": dump, "by": by}, "pause")
    if log:
        command = build(PauseLog, {"by": by}, "pause")
    elif pipeline:
        command = build(PausePipeline, {"pipeline": loaded.pipeline.name, "by": by}, "pause")
    client.send(loaded, command, timeout, as_json=as_json)


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
    from tidelog.control.commands import ResumeLog, ResumePipeline, ResumeSnapshot, build

    _check_only_one(dump, log, pipeline)
    loaded = client.load(config, unread=client.STATE_ALONE)
    command = build(ResumeSnapshot, {"dump_id": dump}, "resume")
    if log:
        command = ResumeLog()
    elif pipeline:
        command = build(ResumePipeline, {"pipeline": loaded.pipeline.name}, "resume")
    client.send(loaded, command, timeout, as_json=as_json)


def cancel(
    config: ConfigFile,
    dump: Annotated[
        str | None, typer.Argument(metavar="[DUMP]", help="The dump's id; asked for if missing.")
    ] = None,
    table: Tables = None,
    every: Annotated[bool, typer.Option("--all", help="All dumps.")] = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Cancel a dump, all, or some of their tables; rows that were read stay.

    Without a dump's id it asks for one; where nobody can answer, and with --json, it lists them and
    exits 2.
    """
    from tidelog.control.commands import StopSnapshot, build

    loaded = client.load(config, unread=client.STATE_ALONE)
    if dump is None and not every and not table:
        dump = _choose_dump(loaded, config, as_json=as_json)
        if dump is None:
            return
    command = build(StopSnapshot, {"dump_id": dump, "tables": table or []}, "cancel")
    client.send(loaded, command, timeout, as_json=as_json)


def _choose_dump(config: Config, file: Path, *, as_json: bool) -> str | None:
    """Return the dump to cancel; None: no dump runs, or the user chose none."""
    from tidelog import app
    from tidelog.cli.watch.dump_wait import sentence
    from tidelog.cli.watch.dumps import unfinished_dumps

    running = unfinished_dumps(app.status(config))
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


def handover(
    config: ConfigFile,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOLDER", help="One of the standbys in `tidelog status`."),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of this pipeline (pipeline.name), not of capture."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait until capture has handled it."),
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Have another process capture, or deliver, for example before an upgrade."""
    loaded = client.load(config, unread=client.STATE_ALONE)
    from tidelog import app

    result = app.hand_over(loaded, to, timeout_s=timeout, pipeline=pipeline)
    terminal.show(result, as_json=as_json)


def forget_engine(
    config: ConfigFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the engine.")],
    as_json: Json = False,
) -> None:
    """Forget an engine that will not run again, so that the event log is no longer kept for it.

    Its progress is deleted: a later engine of the same name is a new one.
    """
    loaded = client.load(config, unread=client.STATE_ALONE)
    from tidelog import app

    terminal.show(app.forget_engine(loaded, name), as_json=as_json)


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
    from tidelog.control.option_texts import parse_options

    command = parse_options(options)
    client.send(client.load(config, unread=client.STATE_ALONE), command, timeout, as_json=as_json)


def send_signal(
    config: ConfigFile,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="execute-snapshot, stop-snapshot, log, …")
    ],
    data: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="As in the signal table's column data.")
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
    client.send(client.load(config, unread=client.STATE_ALONE), command, timeout, as_json=as_json)
