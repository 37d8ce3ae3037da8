"""Reading the configuration, and giving a command to the capture that leads."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cli import terminal
from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command


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
    from tidelog.cli.results import sentences

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
