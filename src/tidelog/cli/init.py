"""The command ``init``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli import terminal
from tidelog.errors import UsageError


def init(
    config: Annotated[Path, typer.Argument(metavar="[CONFIG]", help="The file to write.")] = Path(
        "tidelog.yaml"
    ),
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="The database; asked for if it is not given.",
        ),
    ] = None,
) -> None:
    """Read a database's list of tables and write a first configuration for it.

    Changes nothing in the database. A password in the url is not written to the file.
    """
    if config.exists():
        raise UsageError(f"{config} exists already; name another file")
    if url is None:
        if not sys.stdin.isatty():
            raise UsageError("--url is missing, e.g. postgresql://user:password@host:5432/shop")
        url = typer.prompt("The database's url (not shown)", hide_input=True)
    from tidelog.app.first_config import PASSWORD, first_config

    first = first_config(url)
    try:
        with config.open("x", encoding="utf-8") as file:
            file.write(first.text)
    except OSError as error:
        raise UsageError(f"{config} can't be written: {error.strerror}") from None
    count = sum(first.schemas.values())
    several = len(first.schemas) > 1
    shown = list(first.schemas.items())[:5]
    named = ", ".join(f"{name} ({n})" if several else name for name, n in shown)
    more = f" and {len(first.schemas) - 5} more" if len(first.schemas) > 5 else ""
    tables = "1 table" if count == 1 else f"{count:,} tables"
    terminal.print_line(f"wrote {config}: {tables} in {named or 'no schema yet'}{more}")
    terminal.print_line("next:")
    if first.password:
        terminal.print_line(f"  export {PASSWORD}=…       # the password is not in the file")
    terminal.print_line(f"  tidelog check {config}   # what the database still needs, with the SQL")
    terminal.print_line(f"  tidelog run {config}")
