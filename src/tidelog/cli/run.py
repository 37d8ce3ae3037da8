"""The commands that run processes (``run``, ``capture``, ``pipeline``, ``serve``), and what these
need: ``jars``, ``handover``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli import arguments, terminal
from tidelog.cli.arguments import ConfigFile, Json
from tidelog.cli.terminal import stop_on_signals
from tidelog.cli.watch import show_beside
from tidelog.errors import UsageError


def run(config: ConfigFile, as_json: Json = False) -> None:
    """Run capture and pipeline together on this host, until interrupted."""
    loaded = arguments.load(config, several=True)
    from tidelog import app
    from tidelog.config.loading import databases_of

    parts = ("capture", *(("pipeline",) if loaded.outputs else ()))
    shown = show_beside(loaded, config, "run", parts, as_json=as_json)
    with stop_on_signals() as stop, shown as on_status:
        if databases_of(loaded):
            app.capture_databases(loaded, on_status=on_status, stop_event=stop)
        else:
            app.run_capture_and_pipeline(loaded, on_status=on_status, stop_event=stop)


def capture(config: ConfigFile, as_json: Json = False) -> None:
    """Read the source's log into the event log; stand by while another capture leads."""
    loaded = arguments.load(config, several=True)
    from tidelog import app
    from tidelog.config.loading import databases_of

    shown = show_beside(loaded, config, "capture", ("capture",), as_json=as_json)
    with stop_on_signals() as stop, shown as on_status:
        work = app.capture_databases if databases_of(loaded) else app.run_capture
        work(loaded, on_status=on_status, stop_event=stop)


def serve(
    configs: Annotated[
        list[Path],
        typer.Argument(
            metavar="CONFIG",
            help=f"Configuration files; default: {arguments.DEFAULT_FILE} in the current "
            "directory. The first one's control.rest says who may log in.",
        ),
    ],
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen; default: control.rest.host.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="N", help="Default: control.rest.port."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the web page of one or several Tidelogs, apart from their captures."""
    loaded = [(file, arguments.load(file, several=True)) for file in configs]
    from tidelog import app

    def on_start(url: str) -> None:
        if as_json:
            terminal.emit({"url": url})
        else:
            terminal.print_line(f"The page is at {url}")

    with stop_on_signals() as stop:
        app.serve_page(loaded, host=host, port=port, stop_event=stop, on_start=on_start)


def pipeline(
    config: ConfigFile,
    once: Annotated[
        bool, typer.Option("--once", help="Deliver what the event log holds now, then end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Deliver the event log to the outputs with Spark."""
    loaded = arguments.load(config, unread=("control",))
    if not loaded.outputs:
        raise UsageError(f"{config}: there are no outputs; add one under 'outputs'")
    from tidelog import app

    shown = show_beside(loaded, config, "pipeline", ("pipeline",), as_json=as_json)
    with stop_on_signals() as stop, shown as on_status:
        app.run_pipeline(loaded, once=once, on_status=on_status, stop_event=stop)


def jars(
    parts: Annotated[
        str,
        typer.Option("--for", metavar="PARTS", help="Of delta, iceberg and s3, with commas."),
    ],
    spark: Annotated[
        str | None,
        typer.Option("--spark", metavar="VERSION", help="E.g. 4.2; else the installed pyspark's."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Where to put them; else `$TIDELOG_JARS`."),
    ] = None,
    as_list: Annotated[
        bool,
        typer.Option("--list", help="Only print coordinates and SHA-256; fetch nothing."),
    ] = False,
) -> None:
    """Fetch jars that Spark itself needs for Delta, Iceberg or `s3a://`, and print their paths.

    Tidelog's own outputs on S3 need none. Where they are fetched from: docs/how-to/spark.md.
    """
    from tidelog.spark.sessions.installation import check_pyspark
    from tidelog.spark.sessions.jars import fetch_jars, installed_spark, pinned_jars

    if spark is None:
        check_pyspark()
        spark = installed_spark()
    wanted = [part.strip() for part in parts.split(",")]
    version = ".".join(spark.split(".")[:2])
    if as_list:
        for part in wanted:
            for jar in pinned_jars(part, version):
                terminal.print_line(f"{jar} {jar.sha256}")
        return
    for path in fetch_jars(wanted, version, directory):
        terminal.print_line(str(path))


def handover(
    config: ConfigFile,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOLDER", help="One of the standbys in `tidelog status`."),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of this pipeline (pipeline.name), not of capture."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait until capture has handled it."),
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Have another process capture, or deliver, for example before an upgrade."""
    loaded = arguments.load(config, unread=arguments.STATE_ALONE)
    from tidelog import app

    result = app.hand_over(loaded, to, timeout_s=timeout, pipeline=pipeline)
    terminal.show(result.to_dict(), as_json=as_json)
