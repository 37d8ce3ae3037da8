"""Steering dumps that run: each command is given to the capture that leads."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated

import typer

from tidelog.cli import client, terminal
from tidelog.cli.arguments import ConfigFile, DumpArgument, Json, Tables, Wait


def pause(
    config: ConfigFile, dump: DumpArgument = None, timeout: Wait = 10.0, as_json: Json = False
) -> None:
    """Pause a dump, or all; it stays paused over restarts."""
    from tidelog.control.commands import PauseSnapshot, build

    command = build(PauseSnapshot, {"dump_id": dump, "by": _caller()}, "pause")
    client.send(client.load(config), command, timeout, as_json=as_json)


def _caller() -> str:
    """Who runs this command, as far as the machine knows."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    except (OSError, KeyError):  # an account without a name, as in a container
        return socket.gethostname()[:200]


def resume(
    config: ConfigFile, dump: DumpArgument = None, timeout: Wait = 10.0, as_json: Json = False
) -> None:
    """Go on with a paused dump, or all."""
    from tidelog.control.commands import ResumeSnapshot, build

    command = build(ResumeSnapshot, {"dump_id": dump}, "resume")
    client.send(client.load(config), command, timeout, as_json=as_json)


def cancel(
    config: ConfigFile,
    dump: DumpArgument = None,
    table: Tables = None,
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Cancel a dump, all, or some of their tables; what is read already stays."""
    from tidelog.control.commands import StopSnapshot, build

    command = build(StopSnapshot, {"dump_id": dump, "tables": table or []}, "cancel")
    client.send(client.load(config), command, timeout, as_json=as_json)


def handover(
    config: ConfigFile,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOLDER", help="One of those that `tidelog status` says stand by."),
    ] = None,
    timeout: Wait = 60.0,
    as_json: Json = False,
) -> None:
    """Have another capture lead, as before an upgrade or a zone's end."""
    loaded = client.load(config)
    from tidelog import app

    terminal.show(app.hand_over(loaded, to, timeout_s=timeout), as_json=as_json)


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
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Change how dumps read, running ones too."""
    from tidelog.control.option_texts import parse_options

    command = parse_options(options)
    client.send(client.load(config), command, timeout, as_json=as_json)


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
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Send a signal as Debezium has it."""
    from tidelog.control.debezium import Signal, parse
    from tidelog.control.mailbox import new_id

    command = parse(Signal(signal_id or new_id().lower(), kind, data), coordinates="tidelog signal")
    client.send(client.load(config), command, timeout, as_json=as_json)
