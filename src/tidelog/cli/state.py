"""The commands that change the state store: ``state copy``, ``reset``, ``forget-engine``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from tidelog.cli import arguments, terminal
from tidelog.cli.arguments import ConfigFile, Json
from tidelog.errors import UsageError
from tidelog.model.units import printable
from tidelog.results import ResetPlan

_NAMED = 10


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

    terminal.show(app.copy_state(source, target, arguments.load).to_dict(), as_json=as_json)


def forget_engine(
    config: ConfigFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the engine.")],
    as_json: Json = False,
) -> None:
    """Forget an engine that will not run again, so that the event log is no longer kept for it.

    Its progress is deleted: a later engine of the same name is a new one.
    """
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    terminal.show(app.forget_engine(loaded, name).to_dict(), as_json=as_json)


def reset(
    config: ConfigFile,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Accept a gap (GapError, LogResetError): show what is lost and what is dumped again, then ask.

    Changes nothing but a document in the state store: the next start acts on it, if there is a gap.
    Exits 2 while a capture leads.
    """
    loaded = arguments.load(config)
    from tidelog import app

    plan = app.reset_plan(loaded)
    if not as_json:
        for line in _plan_lines(plan):
            terminal.print_sentence(line)
    if not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("nothing was changed: no one can be asked here. Add --yes to do it")
        if not typer.confirm("Go on without what is lost?"):
            terminal.print_line("nothing is changed")
            return
    app.reset(loaded)
    if as_json:
        terminal.emit(plan.to_dict())
    else:
        terminal.print_line(f"next: tidelog run {config}   # or tidelog capture")


def _plan_lines(plan: ResetPlan) -> Iterator[str]:
    until = plan.captured_until_ms
    at = (
        ""
        if until is None
        else time.strftime(
            ", whose newest transaction is of %Y-%m-%d %H:%M:%S", time.localtime(until / 1000)
        )
    )
    if not plan.log_exists:
        yield (
            f"{plan.log} holds no event log{at}. If it is not mounted here, stop, and mount it: "
            "else capture creates a new one, of another generation, which outputs refuse until "
            "they have other names and places (docs/how-to/restore.md)."
        )
        yield f"Dumped into it: {_name_tables(plan.tables)}."
        return
    yield f"The event log is {plan.log}{at}."
    yield (
        "Lost: each change after that which the server no longer has. It will never be in the "
        "event log: it is missing in outputs that keep every change (Kafka, files, HTTP)."
    )
    yield f"Dumped again, so that copies are right: {_name_tables(plan.tables)}."
    if left := plan.not_dumped:
        reasons = [f"{each.table} ({each.reason})" for each in left]
        yield (
            f"Not dumped, because no dump can read them: {_name_tables(reasons)}. Their lost "
            "changes stay lost, in copies, too: fix the reason first (tidelog check shows how), "
            "so that they are dumped with the others."
        )
    yield (
        "Until that dump (gap-…) is delivered, copies may have rows that are no longer in the "
        "source. The event log, the outputs and their progress stay; if there is no gap, capture "
        "resumes as usual."
    )


def _name_tables(tables: Sequence[str]) -> str:
    """Return the number of tables, and the names of the first ones."""
    if not tables:
        return "none"
    named = ", ".join(map(printable, tables[:_NAMED]))
    more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return f"{len(tables)} {'table' if len(tables) == 1 else 'tables'}: {named}{more}"
