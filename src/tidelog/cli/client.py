"""Reading the configuration, and giving a command to the capture that leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import terminal
from tidelog.errors import TidelogError, UsageError
from tidelog.model.printable import printable

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command

NAMED = 20
"""Tables that are named; ``--json`` has all."""

Details = Mapping[str, Any]


def sentences(kind: str, details: Details) -> list[str]:
    """The sentences about a command's outcome; without one, a line for each detail.

    Args:
        kind: `tidelog.control.commands.Command.type`.
        details: what capture answered.
    """
    told = _SENTENCES.get(kind)
    lines = terminal.plain_lines(details) if told is None else told(details)
    return [printable(line) for line in lines]


def _asked(details: Details) -> Iterator[str]:
    dump, tables = details["dump_id"], details.get("tables", ())
    if tables:
        yield f"dump {dump} is asked for: {_counted(tables)}"
    else:
        yield f"dump {dump}: no table is dumped"
    yield from _rejected(details)


def _counted(tables: Sequence[str]) -> str:
    named = ", ".join(tables[:NAMED])
    if len(tables) == 1:
        return f"table {named}"
    more = f", and {len(tables) - NAMED} more" if len(tables) > NAMED else ""
    return f"{len(tables)} tables: {named}{more}"


def _rejected(details: Details) -> Iterator[str]:
    for each in details.get("rejected", ()):
        yield f"not dumped: {each['table']}: {each['reason']}"


def _dumps(one: str, many: str, none: str) -> Callable[[Details], Iterator[str]]:
    def told(details: Details) -> Iterator[str]:
        found = details["dumps"]
        if len(found) > 1:
            yield f"dumps {', '.join(found)} {many}"
        else:
            yield f"dump {found[0]} {one}" if found else none
        for each in details.get("rejected", ()):
            yield f"left as it is: {each['table']}: {each['reason']}"

    return told


def _of_log(what: str) -> Callable[[Details], Iterator[str]]:
    def told(details: Details) -> Iterator[str]:
        was = details.get("resumed", True)
        yield f"the log is {what}" if was else "the log was not paused"

    return told


def _of_pipeline(what: str) -> Callable[[Details], Iterator[str]]:
    def told(details: Details) -> Iterator[str]:
        was, name = details.get("resumed", True), details["pipeline"]
        yield f"pipeline {name} {what}" if was else f"pipeline {name} was not paused"

    return told


def _options(details: Details) -> Iterator[str]:
    yield from (f"{name} is {value} now" for name, value in details.items())


_SENTENCES: Mapping[str, Callable[[Details], Iterator[str]]] = {
    "execute-snapshot": _asked,
    "stop-snapshot": _dumps(
        "is cancelled; rows that were read stay",
        "are cancelled; rows that were read stay",
        "no dump was under way",
    ),
    "pause-snapshot": _dumps(
        "is paused; `tidelog resume` goes on",
        "are paused; `tidelog resume` goes on",
        "no dump was under way",
    ),
    "resume-snapshot": _dumps("goes on", "go on", "no dump was paused"),
    "pause-log": _of_log("paused, and the server keeps it; `tidelog resume CONFIG --log` goes on"),
    "resume-log": _of_log("read again"),
    "pause-pipeline": _of_pipeline("is paused; `tidelog resume CONFIG --pipeline` goes on"),
    "resume-pipeline": _of_pipeline("delivers again"),
    "set-dump-options": _options,
    "log": lambda _details: iter(("logged",)),
}


chosen_database: ContextVar[str | None] = ContextVar("chosen_database", default=None)
"""``--database``, which stands before the command."""


def load(path: Path, *, several: bool = False) -> Config:
    """The configuration, of the database that ``--database`` names if there are several; what is
    wrong with it is raised as ConfigError. ``several``: the command takes all of them, too.
    """
    from tidelog.config import load_config
    from tidelog.config.databases import of_database, of_one_database

    config = load_config(path)
    database = chosen_database.get()
    if database is not None:
        return of_database(config, database)
    return config if several else of_one_database(config)


def send(
    config: Config,
    command: Command,
    timeout_s: float | None,
    *,
    as_json: bool,
    name: str | None = None,
    quiet: bool = False,
) -> None:
    """Give a command to capture and show what became of it; ``quiet``: only if it waits.

    ``timeout_s``: None: see `tidelog.app.remote_control.patience_s`.
    """
    from tidelog import app
    from tidelog.app.remote_control import patience_s

    timeout_s = patience_s(config) if timeout_s is None else timeout_s
    result = app.send_command(config, command, timeout_s=timeout_s)
    if result["error"] is not None:
        raise (UsageError if result.get("usage") else TidelogError)(result["error"])
    if as_json:
        if not quiet:
            terminal.emit({"dump": name, **result} if name else result)
    elif result["state"] == "waiting":
        terminal.say(
            f"{f'dump {name}: ' if name else ''}no capture has acted on it within {timeout_s:g} s; "
            "the next one that leads will"
        )
    elif not quiet:
        for line in sentences(command.type, result["details"]):
            terminal.print_sentence(line)
