"""The ``tidelog`` command line (DESIGN, public surface).

Every command reads the configuration, calls one function of `tidelog.runtime` and shows what it
returns. What is slow to import is imported inside the commands: ``tidelog --help`` is quick.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog import __version__, terminal
from tidelog.errors import TidelogError, UsageError
from tidelog.exits import EXIT_FAILED, exit_code_of, stopping

if TYPE_CHECKING:
    from tidelog.config import Config
    from tidelog.control.commands import Command

app = typer.Typer(
    name="tidelog",
    help="Capture a database's row changes, dump its tables without locks, deliver both through "
    "Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration file, e.g. tidelog.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one document a line.")]
DumpArgument = Annotated[
    str | None, typer.Argument(metavar="[DUMP]", help="The dump's id; default: all dumps.")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="TABLE", help="namespace.table; may be repeated."),
]
Wait = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", help="How long to wait until capture has acted on it."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"tidelog {__version__}")
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
) -> None:
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"{log_level!r} is not a level", param_hint="--log-level")
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("py4j", "numba"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


# ---------------------------------------------------------------- long-running


@app.command()
def demo(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Where it works; emptied first if it is a demo's."
        ),
    ] = Path("tidelog-demo"),
    rows: Annotated[
        int, typer.Option(min=1000, metavar="N", help="Rows in the shop at the start.")
    ] = 300_000,
    seconds: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many seconds the workload writes.")
    ] = 45,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory afterwards.")] = False,
    as_json: Json = False,
) -> None:
    """Run everything embedded: PostgreSQL, a workload, capture, a dump, Spark, Delta; then verify.

    Exits 0 only if every table equals its Delta copy.
    """
    from tidelog.demo import demo as run_demo

    with stopping() as stop, terminal.Progress("demo", as_json=as_json) as progress:
        report = run_demo(
            directory=directory,
            rows=rows,
            seconds=seconds,
            keep=keep,
            on_status=progress.update,
            stop_event=stop,
        )
    terminal.show(report, as_json=as_json)
    _exit_unless(report["equal"])


@app.command()
def run(config: ConfigFile, as_json: Json = False) -> None:
    """Run capture and pipeline together on this host, until interrupted."""
    loaded = _load(config)
    from tidelog import runtime

    with stopping() as stop, terminal.Progress("run", as_json=as_json) as progress:
        runtime.run(loaded, on_status=progress.update, stop_event=stop)


@app.command()
def capture(config: ConfigFile, as_json: Json = False) -> None:
    """Read the source's log into the event log; stand by while another capture leads."""
    loaded = _load(config)
    from tidelog import runtime

    with stopping() as stop, terminal.Progress("capture", as_json=as_json) as progress:
        runtime.capture(loaded, on_status=progress.update, stop_event=stop)


@app.command()
def pipeline(
    config: ConfigFile,
    once: Annotated[
        bool, typer.Option("--once", help="Deliver what the event log holds now, then end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Deliver the event log to the outputs with Spark."""
    loaded = _load(config)
    if not loaded.outputs:
        raise UsageError(f"{config}: there are no outputs; add one under 'outputs'")
    from tidelog import runtime

    with stopping() as stop, terminal.Progress("pipeline", as_json=as_json) as progress:
        runtime.pipeline(loaded, once=once, on_progress=progress.update, stop_event=stop)


# ---------------------------------------------------------------- dumps


@app.command()
def dump(
    config: ConfigFile,
    table: Tables = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that meet it; needs one --table.")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE=SQL", help="Only rows of this table that meet it; may be repeated."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Only these keys: [1, 2], [["a", 1]] or [{"id": 1}].'),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Keys in a .csv, .parquet, .jsonl or .json file; columns by name.",
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(metavar="delete|list", help="What becomes of given keys the table lacks."),
    ] = "delete",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="incremental: chunks beside the log; blocking: one snapshot while the log waits.",
        ),
    ] = "incremental",
    dump_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Names the dump; the same id again does nothing."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the dump is complete.")] = False,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="With --wait: when the outputs hold it as well.")
    ] = False,
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Dump all captured tables, some, or some of a table's rows, while the log goes on."""
    from tidelog.control.commands import ExecuteSnapshot, build
    from tidelog.control.key_files import parse_keys
    from tidelog.control.mailbox import new_id
    from tidelog.control.option_texts import parse_conditions

    if keys is not None and keys_file is not None:
        raise UsageError("give --keys or --keys-file, not both")
    if missing != "delete" and keys is None and keys_file is None:
        raise UsageError("--missing is about given keys: give --keys or --keys-file")
    if delivered and not wait:
        raise UsageError("--delivered goes with --wait; later, use `tidelog wait`")
    data: dict[str, Any] = {
        "dump_id": dump_id or new_id().lower(),
        "tables": table or [],
        "where": where,
        "conditions": parse_conditions(condition or []),
        "mode": mode,
        "missing": missing,
    }
    if keys is not None:
        data["keys"], data["key_columns"] = parse_keys(keys)
    elif keys_file is not None:
        data["key_set"] = str(keys_file)  # checked with the rest, before the file is read
    command = build(ExecuteSnapshot, data)
    loaded = _load(config)
    if keys_file is not None:
        from tidelog import runtime

        data |= runtime.store_key_file(loaded, keys_file, data["tables"])
        command = build(ExecuteSnapshot, data)
    _send(loaded, command, timeout, as_json=as_json, name=data["dump_id"], quiet=wait and as_json)
    if wait:
        from tidelog import runtime

        with terminal.Progress("dump", as_json=as_json) as progress:
            report = runtime.dump_wait(loaded, data["dump_id"], on_progress=progress.update)
            if delivered:
                finalized = runtime.wait_finalized(
                    loaded, data["dump_id"], on_progress=progress.update
                )
                report["delivered"] = finalized["delivered"]
        if missing == "list":
            report["missing_keys"] = list(runtime.missing_keys(loaded, data["dump_id"]))
        terminal.show_with_keys(report, as_json=as_json)
        failed = any(table["status"] == "failed" for table in report.get("tables", ()))
        done = report["status"] == "completed" and not failed
        _exit_unless(done and report.get("delivered", True))


@app.command()
def wait(
    config: ConfigFile,
    dump: Annotated[str, typer.Argument(metavar="DUMP", help="The dump's id.")],
    output: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this output; or a consumer of the event log."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long to wait; default: for ever.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until the outputs hold a dump's tables completely. Exits 1 if one of them failed."""
    loaded = _load(config)
    from tidelog import runtime

    with terminal.Progress("wait", as_json=as_json, quiet=as_json) as progress:
        report = runtime.wait_finalized(
            loaded, dump, output, timeout_s=timeout, on_progress=progress.update
        )
    terminal.show(report, as_json=as_json)
    _exit_unless(report["delivered"])


@app.command()
def pause(
    config: ConfigFile, dump: DumpArgument = None, timeout: Wait = 10.0, as_json: Json = False
) -> None:
    """Pause a dump, or all; it stays paused over restarts."""
    from tidelog.control.commands import PauseSnapshot, build

    command = build(PauseSnapshot, {"dump_id": dump})
    _send(_load(config), command, timeout, as_json=as_json)


@app.command()
def resume(
    config: ConfigFile, dump: DumpArgument = None, timeout: Wait = 10.0, as_json: Json = False
) -> None:
    """Go on with a paused dump, or all."""
    from tidelog.control.commands import ResumeSnapshot, build

    command = build(ResumeSnapshot, {"dump_id": dump})
    _send(_load(config), command, timeout, as_json=as_json)


@app.command()
def cancel(
    config: ConfigFile,
    dump: DumpArgument = None,
    table: Tables = None,
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Cancel a dump, all, or some of their tables; what is read already stays."""
    from tidelog.control.commands import StopSnapshot, build

    command = build(StopSnapshot, {"dump_id": dump, "tables": table or []})
    _send(_load(config), command, timeout, as_json=as_json)


@app.command("set")
def set_options(
    config: ConfigFile,
    options: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="chunk_rows, parallelism, rows_per_second, delay (50ms), max_lag (64MiB), "
            "max_replica_lag (10s), max_select (2s); off is 0.",
        ),
    ],
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Change how dumps read, running ones too."""
    from tidelog.control.option_texts import parse_options

    command = parse_options(options)
    _send(_load(config), command, timeout, as_json=as_json)


@app.command("signal")
def send_signal(
    config: ConfigFile,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="execute-snapshot, stop-snapshot, log, …")
    ],
    data: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="As in the signal table's column data.")
    ] = None,
    signal_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Names the dump; default: a new id.")
    ] = None,
    timeout: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Send a signal as Debezium has it."""
    from tidelog.control.debezium import Signal, parse
    from tidelog.control.mailbox import new_id

    command = parse(Signal(signal_id or new_id().lower(), kind, data), coordinates="tidelog signal")
    _send(_load(config), command, timeout, as_json=as_json)


# ---------------------------------------------------------------- looking


@app.command()
def check(config: ConfigFile, as_json: Json = False) -> None:
    """Check that the source is ready for capture; each failure comes with the SQL that mends it.

    Exits 2 if capture could not start.
    """
    loaded = _load(config)
    from tidelog import runtime

    findings = runtime.check(loaded)
    terminal.show_findings(findings, as_json=as_json)
    if terminal.any_error(findings):
        raise typer.Exit(UsageError.exit_code)


@app.command()
def plan(
    config: ConfigFile,
    table: Tables = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that meet it; needs one --table.")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="N", help="Readers; default: as set now.")
    ] = None,
    chunk_rows: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, metavar="N", help="Rows of a chunk; default: as set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the chunks, rows, bytes and time of a dump before it starts.

    Reads statistics and a few rows; writes nothing.
    """
    loaded = _load(config)
    from tidelog import runtime

    report = runtime.plan(
        loaded, tables=table or [], where=where, parallelism=parallelism, chunk_rows=chunk_rows
    )
    terminal.show(report, as_json=as_json)


@app.command()
def status(
    config: ConfigFile,
    ranges: Annotated[
        bool,
        typer.Option("--ranges", help="Also the key ranges that could not be read: key values."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show position, lag, leader, and dumps with their progress."""
    loaded = _load(config)
    from tidelog import runtime

    terminal.show(runtime.status(loaded, ranges=ranges), as_json=as_json)


@app.command()
def watch(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="The configuration file; not with --replay."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append each status to FILE, a JSON line each."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play a recorded run; needs no server.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show one picture (of a recording: the last) and end.")
    ] = False,
    speed: Annotated[
        float, typer.Option(min=0.01, metavar="X", help="How many times as fast to replay.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Show the log in motion: open windows, chunks, superseded rows, throttle and lag."""
    from tidelog import watching

    if (config is None) == (replay is None):
        raise UsageError("give a configuration, or --replay FILE")
    with stopping() as stop:
        if replay is not None:
            if record is not None or as_json:
                raise UsageError(
                    "--replay plays a recording; --record and --json do not go with it"
                )
            watching.replay(replay, stop, speed=speed, once=once)
            return
        assert config is not None
        loaded = _load(config)
        from tidelog import runtime

        with runtime.StatusFeed(loaded) as feed:
            watching.watch(feed.latest, stop, record=record, once=once, as_json=as_json)


@app.command()
def log(
    config: ConfigFile,
    table: Annotated[
        str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table's events.")
    ] = None,
    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", help="First offset; default: oldest.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events.")] = False,
    dumps: Annotated[
        bool, typer.Option("--dumps", help="Also where dumps of tables began and were complete.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Write change events as JSON lines, in Debezium's envelope."""
    loaded = _load(config)
    from tidelog import runtime

    try:
        events = runtime.read_log(loaded, table=table, start=start, follow=follow, dumps=dumps)
        for event in events:
            terminal.emit(event)
    except BrokenPipeError:
        # Whoever reads has enough (`| head`). Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.command()
def verify(
    config: ConfigFile,
    table: Tables = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Dump the keys that differ, and only those.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare source and outputs, and list the keys that differ. Exits 1 if any does."""
    loaded = _load(config)
    from tidelog import runtime

    report = runtime.verify(loaded, tables=table or [], repair=repair)
    terminal.show(report, as_json=as_json)
    _exit_unless(report["equal"])


# ---------------------------------------------------------------- shared by the commands


def _load(path: Path) -> Config:
    from tidelog.config import load_config

    return load_config(path)


def _send(
    config: Config,
    command: Command,
    timeout_s: float,
    *,
    as_json: bool,
    name: str | None = None,
    quiet: bool = False,
) -> None:
    """Give a command to capture and show what became of it."""
    from tidelog import runtime

    result = runtime.send_command(config, command, timeout_s=timeout_s)
    if result["error"] is not None:
        raise (UsageError if result.get("usage") else TidelogError)(result["error"])
    if quiet:
        return
    if as_json:
        terminal.emit({"dump": name, **result} if name else result)
    elif result["state"] == "waiting":
        terminal.say(
            f"{name or command.type}: waiting. No capture has acted on it within {timeout_s:g} s; "
            "the next one that leads will."
        )
    else:
        terminal.show(
            {"dump": name, **result["details"]} if name else result["details"], as_json=False
        )


def _exit_unless(done: bool) -> None:
    if not done:
        raise typer.Exit(EXIT_FAILED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage or configuration."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=arguments, prog_name="tidelog")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place for errors
        sys.exit(exit_code_of(error, as_json="--json" in arguments))
