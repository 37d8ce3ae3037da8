"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.exit_codes import EXIT_FAILED
from tidelog.errors import UsageError
from tidelog.model.patterns import check_listed

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration file, e.g. tidelog.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one document a line.")]
DumpArgument = Annotated[
    str | None, typer.Argument(metavar="[DUMP]", help="The dump's id; default: all dumps.")
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
