"""The first configuration."""

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
    """Look at a database and write a first configuration for it.

    Reads the list of tables and changes nothing. A password in the url is not written down.
    """
    if config.exists():
        raise UsageError(f"{config} is there already; name another file")
    if url is None:
        if not sys.stdin.isatty():
            raise UsageError("--url is missing, e.g. postgresql://user:password@host:5432/shop")
        url = typer.prompt("The database's url (not shown)", hide_input=True)
    from tidelog.app.first_config import PASSWORD, first_config

    found = first_config(url)
    try:
        with config.open("x", encoding="utf-8") as file:
            file.write(found.text)
    except OSError as error:
        raise UsageError(f"{config} can't be written: {error.strerror}") from None
    count = sum(found.schemas.values())
    several = len(found.schemas) > 1
    shown = list(found.schemas.items())[:5]
    named = ", ".join(f"{name} ({n})" if several else name for name, n in shown)
    more = f" and {len(found.schemas) - 5} more" if len(found.schemas) > 5 else ""
    tables = "1 table" if count == 1 else f"{count:,} tables"
    terminal.say(f"wrote {config}: {tables} in {named or 'no schema yet'}{more}")
    terminal.say("next:")
    if found.password:
        terminal.say(f"  export {PASSWORD}=…       # the password is not in the file")
    terminal.say(f"  tidelog check {config}   # what the database still needs, with the SQL")
    terminal.say(f"  tidelog run {config}")
