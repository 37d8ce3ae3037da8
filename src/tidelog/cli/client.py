"""What commands share: options, the configuration, and commands to the leading capture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from tidelog.cli import terminal
from tidelog.cli.terminal import EXIT_FAILED
from tidelog.errors import TidelogError, UsageError
from tidelog.model.patterns import EXCLUDE, check_listed
from tidelog.model.units import format_bytes, format_milliseconds, printable

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command

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


chosen_database: ContextVar[str | None] = ContextVar("chosen_database", default=None)
"""The value of ``--database``, which comes before the command."""


STATE_ALONE: Final = ("control", "outputs")
"""What a command does not read that reads and writes state store and event log alone."""


def load(path: Path, *, several: bool = False, unread: Collection[str] = ()) -> Config:
    """Load the configuration, of the database that ``--database`` names if there are several.

    ``several``: whether the command accepts all of them. ``unread``: the sections that the command
    does not read; variables in them may be unset. Raises ConfigError.
    """
    from tidelog.config import load_config
    from tidelog.config.loading import database_config, one_database_config

    config = load_config(path, unread=unread)
    database = chosen_database.get()
    if database is not None:
        return database_config(config, database)
    return config if several else one_database_config(config)


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


# Arguments and options.

DEFAULT_FILE: Final = "tidelog.yaml"
"""The configuration file, in the current directory, of a command that names none."""

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help=f"The configuration file; default: {DEFAULT_FILE} in the current directory.",
    ),
]


class ConfigCommand(TyperCommand):
    """A command whose first argument is the configuration file, which may be left out."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = [each for each in self.params if each.param_type_name == "argument"]
        self._file = None
        if own and own[0].required and own[0].name in ("config", "configs"):
            self._file, self._is_alone = own[0], len(own) == 1
            self._file.required = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError if they need a configuration file and there is
        none.
        """
        return super().parse_args(ctx, self._with_file(ctx, args))

    def _with_file(self, ctx: Any, args: list[str]) -> list[str]:
        if self._file is None:
            return args
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        first = given.get(self._file.name)
        first = next(iter(first), None) if isinstance(first, tuple) else first
        if isinstance(first, str):
            # Of a command with more arguments, it may be the second one.
            names_file = Path(first).is_file() or Path(first).suffix in (".yaml", ".yml")
            if names_file or self._is_alone or not Path(DEFAULT_FILE).is_file():
                return args
        elif given.get("help") or ctx.resilient_parsing:
            return args
        elif not Path(DEFAULT_FILE).is_file():
            raise UsageError(
                f"no configuration file is named, and this directory has no {DEFAULT_FILE}. Name "
                f"the file (`{ctx.command_path} FILE`), or write one with `tidelog init`"
            )
        return [DEFAULT_FILE, *args]


Json = Annotated[bool, typer.Option("--json", help="Write JSON, one document a line.")]
DumpArgument = Annotated[
    str | None, typer.Argument(metavar="DUMP", help="The dump's id; default: all dumps.")
]


def _check_tables(patterns: list[str] | None) -> list[str] | None:
    """Return the patterns. Raises UsageError that says how to write one of another tool's."""
    for pattern in patterns or ():
        try:
            check_listed(pattern)
        except ValueError as error:
            raise UsageError(f"--table: {error}, not {pattern!r}") from None
    return patterns


Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        "-t",
        metavar="TABLE",
        help="namespace.table, * for any text, '!' in front to exclude; may be repeated.",
        callback=_check_tables,
    ),
]


def _excluded(patterns: list[str] | None) -> list[str] | None:
    """Return the patterns with ``!`` in front. Raises UsageError as `_check_tables`."""
    return _check_tables(
        [f"{EXCLUDE}{pattern.removeprefix(EXCLUDE)}" for pattern in patterns or ()]
    )


Excluded = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="TABLE",
        help="As --table with '!' in front: all but this table, or those of --table; may be "
        "repeated.",
        callback=_excluded,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait until capture has handled it; default: 10, and 30 with log: state.",
    ),
]
"""None: `tidelog.cli.client.send` has the default."""


def exit_unless(done: bool) -> None:
    """Exit with code 1 unless ``done``."""
    if not done:
        raise typer.Exit(EXIT_FAILED)
