"""The command ``state copy``."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.cli import terminal
from tidelog.cli.arguments import Json
from tidelog.cli.client import load


def copy(
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="A configuration file, whose state it is, or a URL."),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Likewise; it must hold no state yet.")
    ],
    as_json: Json = False,
) -> None:
    """Copy a stopped capture's state to another store; refuse if it runs.

    With several databases, name one: `tidelog --database NAME state copy`.
    docs/how-to/state-store.md.
    """
    from tidelog import app

    terminal.show(app.copy_state(source, target, load), as_json=as_json)
