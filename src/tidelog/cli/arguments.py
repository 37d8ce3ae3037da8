"""What commands share: arguments, options, and the configuration file."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from tidelog.cli.terminal import CONFIG_FILES, EXIT_FAILED
from tidelog.errors import UsageError
from tidelog.model.patterns import EXCLUDE, check_listed

if TYPE_CHECKING:
    from tidelog.config import Config


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
    from tidelog.config.loading import database_config, databases_of, one_database_config

    database = chosen_database.get()
    CONFIG_FILES[str(path)] = database or ""
    config = load_config(path, unread=unread)
    if database is None and databases_of(config):
        CONFIG_FILES[str(path)] = "NAME"
    if database is not None:
        return database_config(config, database)
    return config if several else one_database_config(config)


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
"""None: `tidelog.cli.dump.send` has the default."""


def exit_unless(done: bool) -> None:
    """Exit with code 1 unless ``done``."""
    if not done:
        raise typer.Exit(EXIT_FAILED)
