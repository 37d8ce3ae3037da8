"""The commands ``dump`` and ``wait``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import client, terminal
from tidelog.cli.arguments import ConfigFile, Json, Tables, Wait, exit_unless
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.config import Config


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
        typer.Option(
            metavar="delete|list", help="What to do with given keys that are not in the table."
        ),
    ] = "delete",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="incremental: chunks beside the log; blocking: one snapshot while the log waits.",
        ),
    ] = "incremental",
    priority: Annotated[
        int,
        typer.Option(
            min=-100, max=100, help="Dumps of the highest are read first: three chunks of four."
        ),
    ] = 0,
    dump_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Names the dump; the same id again does nothing."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the dump is complete.")] = False,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="With --wait: when the outputs hold it as well.")
    ] = False,
    timeout: Wait = None,
    as_json: Json = False,
) -> None:
    """Dump all captured tables, some, or some of a table's rows, while the log is read on."""
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
        "priority": priority,
    }
    if keys is not None:
        data["keys"], data["key_columns"] = parse_keys(keys)
    elif keys_file is not None:
        data["key_set"] = str(keys_file)  # checked with the rest, before the file is read
    command = build(ExecuteSnapshot, data, "dump")
    loaded = client.load(config, unread=client.STATE_ALONE)
    if keys_file is not None:
        from tidelog import app

        data |= app.store_key_file(loaded, keys_file, data["tables"])
        command = build(ExecuteSnapshot, data, "dump")
    shows_report = wait and (as_json or sys.stdout.isatty())
    client.send(loaded, command, timeout, as_json=as_json, name=data["dump_id"], quiet=shows_report)
    if wait:
        from tidelog.cli.watch.dump_wait import show_dump

        with explain_interrupt(config, data["dump_id"]):
            report = _wait_for(loaded, data["dump_id"], delivered=delivered, as_json=as_json)
        if missing == "list":
            from tidelog import app

            report["missing_keys"] = list(app.missing_keys(loaded, data["dump_id"]))
        show_dump(report, as_json=as_json)
        whole = all(table["status"] == "done" for table in report.get("tables", ()))
        done = report["status"] == "completed" and whole
        exit_unless(done and report.get("delivered", True))


def _wait_for(config: Config, dump_id: str, *, delivered: bool, as_json: bool) -> dict[str, Any]:
    from tidelog import app
    from tidelog.cli.watch.dump_wait import dump_bars

    with dump_bars(as_json=as_json) as bars:
        report = app.dump_wait(config, dump_id, on_progress=bars.update)
        if delivered:
            finalized = app.wait_finalized(config, dump_id, on_progress=bars.delivery)
            report["delivered"] = finalized["delivered"]
    return report


@contextmanager
def explain_interrupt(config: Path, dump_id: str) -> Iterator[None]:
    """On Ctrl-C, print that the dump continues, and how to wait for it again or cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.print_sentence(
            f"dump {dump_id} continues; to wait again: tidelog wait {config} {dump_id}; to end it: "
            f"tidelog cancel {config} {dump_id}",
            error=True,
        )
        raise


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
    """Wait until the outputs have a dump's tables completely. Exits 1 if one of them failed."""
    loaded = client.load(config, unread=client.STATE_ALONE)
    from tidelog import app
    from tidelog.cli.watch.dump_wait import delivery_sentence, dump_bars

    with explain_interrupt(config, dump), dump_bars(as_json=False, quiet=as_json) as bars:
        on_progress_or_none = None if as_json else bars.delivery
        report = app.wait_finalized(
            loaded,
            dump,
            output,
            timeout_s=timeout,
            on_progress=on_progress_or_none or (lambda _found: None),
        )
    if as_json:
        terminal.emit(report)
    else:
        terminal.print_sentence(delivery_sentence(report))
    exit_unless(report["delivered"])
