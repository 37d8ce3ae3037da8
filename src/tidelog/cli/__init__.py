"""The ``tidelog`` command line (docs/reference/cli.md).

Every command reads the configuration, calls one function of `tidelog.app` and shows the result.
Slow modules are imported inside the commands, so that ``tidelog --help`` is quick.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from typing import Annotated, Any

import typer

from tidelog.cli import arguments, demo, dump, init, inspect, run, state, terminal, watch
from tidelog.cli.terminal import CONFIG_FILES, LOG_FORMATS, exit_code_of
from tidelog.system.version import __version__

COMMANDS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "Run": {
        "demo": demo.demo,
        "init": init.init,
        "run": run.run,
        "capture": run.capture,
        "pipeline": run.pipeline,
        "serve": run.serve,
        "jars": run.jars,
        "handover": run.handover,
        "reset": state.reset,
        "forget-engine": state.forget_engine,
    },
    "Dump": {
        "dump": dump.dump,
        "wait": dump.wait,
        "pause": dump.pause,
        "resume": dump.resume,
        "cancel": dump.cancel,
        "set": dump.set_options,
        "signal": dump.send_signal,
    },
    "Inspect": {
        "check": inspect.check,
        "plan": inspect.plan,
        "status": inspect.status,
        "watch": watch.watch,
        "log": inspect.log,
        "verify": inspect.verify,
        "schema": inspect.schema,
    },
}
"""The commands by panel of ``--help``, in its order."""

GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "state": ("The state store.", {"copy": state.copy}),
}
"""Commands of two words: the first word, its help, and the second words."""

app = typer.Typer(
    name="tidelog",
    help="Capture a database's row changes, dump its tables without locks, deliver both through "
    "Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        terminal.print_line(f"tidelog {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            envvar="TIDELOG_LOG_LEVEL",
            metavar="LEVEL",
            help="debug, info, warning or error.",
        ),
    ] = "warning",
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            envvar="TIDELOG_LOG_FORMAT",
            metavar="FORMAT",
            help="text, or json: an object a line.",
        ),
    ] = "text",
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="NAME",
            help="The one of source.databases that the command is about.",
        ),
    ] = None,
) -> None:
    arguments.chosen_database.set(database)
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"{log_level!r} is not a level", param_hint="--log-level")
    if log_format not in LOG_FORMATS:
        raise typer.BadParameter(f"{log_format!r} is not a format", param_hint="--log-format")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LOG_FORMATS[log_format])
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("py4j", "numba"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def _unwrapped(command: Callable[..., Any]) -> str:
    """Return the docstring with a line for each paragraph: typer keeps the line breaks."""
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(
            _name, cls=arguments.ConfigCommand, help=_unwrapped(_command), rich_help_panel=_panel
        )(_command)


for _name, (_help, _commands) in GROUPS.items():
    _group = typer.Typer(help=_help, no_args_is_help=True, pretty_exceptions_enable=False)
    # Without a callback, typer makes a group of one command a command.
    _group.callback()(lambda: None)
    for _second, _command in _commands.items():
        _group.command(_second, help=_unwrapped(_command))(_command)
    app.add_typer(_group, name=_name, help=_help, rich_help_panel="Run")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage or configuration."""
    argv = list(sys.argv[1:] if argv is None else argv)
    CONFIG_FILES.clear()
    try:
        app(args=argv, prog_name="tidelog")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place for errors
        sys.exit(exit_code_of(error, as_json="--json" in argv))
