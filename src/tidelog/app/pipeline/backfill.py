"""Requests dumps for what an output misses of the past.

An output is new, or takes more tables than before, or is at a position that retention has removed
from the event log. A new output starts at the event log's head. If retention removed the start of a
table's history, a dump of the table is requested; so it is for tables that an output takes from now
on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from tidelog.app.pipeline.destinations import destinations
from tidelog.app.pipeline.progress import pipeline_consumers
from tidelog.app.remote_control import send_command
from tidelog.config import Config
from tidelog.control.commands import ExecuteSnapshot, build
from tidelog.control.mailbox import new_id
from tidelog.errors import OffsetGoneError
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName

logger = logging.getLogger(__name__)

_COMMAND_TIMEOUT_S = 5.0


def request_backfill(config: Config, log: EventLog, copies: Collection[str] = ()) -> dict[str, int]:
    """Log where each new output starts, and request the dumps that it needs.

    Call it before the pipeline registers the outputs: after a crash in between, the dumps are
    requested again.

    Args:
        config: the configuration of the pipeline.
        log: the event log.
        copies: the names of outputs that a dump of all rows repairs, whatever they miss.

    Returns the outputs that are before the log's head, and where they resume, as dumps replace what
    they miss. Raises OffsetGoneError if dumps can't replace it, OffsetAheadError if an output has
    read beyond the log's end.
    """
    name = config.pipeline.name
    consumer = pipeline_consumers(config, log).find(name)
    head = log.head_offset
    offsets = {} if consumer is None else consumer.outputs
    if not offsets and consumer is not None and consumer.offset > head:
        return {}  # written by a version that did not track outputs separately
    for output in destinations(config):
        if output in offsets:
            log.check_offsets(offsets[output], who=f"output {output}")
    behind = {name for name in destinations(config) if offsets.get(name, head) < head}
    for output in sorted(behind):
        if output not in copies:
            raise OffsetGoneError(_gap_text(output, offsets[output], head) + _RENAME_HINT)
    missing: dict[TableName, list[str]] = {}
    removed = head > log.info.start_offset
    dumped = _dumped_tables(log) if removed else set()
    for output, its in destinations(config).items():
        tables_taken = [table for table in log.schemas.tables() if matches(its.tables, table)]
        if output in behind:
            logger.warning("%s", _gap_text(output, offsets[output], head))
            tables_taken = [table for table in tables_taken if str(table) not in dumped]
        elif output not in offsets:
            if offsets or removed:
                logger.warning("output %s is new: it starts at the head of the event log", output)
            tables_taken = [table for table in tables_taken if removed and str(table) not in dumped]
        else:
            before = consumer.destinations.get(output) if consumer is not None else None
            tables_taken = [
                t for t in tables_taken if before is not None and not matches(before.tables, t)
            ]
        for table in tables_taken:
            missing.setdefault(table, []).append(output)
    requested = not missing or _request_or_warn(config, missing)
    for output in sorted(behind):
        tables = [str(table) for table, outputs in missing.items() if output in outputs]
        if tables and not requested:
            raise OffsetGoneError(
                _gap_text(output, offsets[output], head)
                + f"It resumes once the log holds dumps of {', '.join(sorted(tables))}: run "
                "capture, and `tidelog dump` with these tables, then the pipeline again."
            )
    return dict.fromkeys(sorted(behind), head)


_RENAME_HINT = (
    "They can't be delivered to it any more. Give the output a name that it never had: then it "
    "starts at the head of the event log, and dumps give it the state of all rows."
)


def _gap_text(output: str, offset: int, head: int) -> str:
    return (
        f"output {output} is at offset {offset}, but retention removed everything before "
        f"{head} (log.retention_cap): the changes between are lost to it. "
    )


def _dumped_tables(log: EventLog) -> set[str]:
    """Return the tables with a whole dump between the log's head and its end."""
    from tidelog.spark.datasource.positions import dump_records

    head = log.head_offset
    records = dump_records(log, head, log.latest_offset())
    return {m.table for m in records if m.completed and m.whole and m.first_offset >= head}


def request_dumps(config: Config, output: str, tables: Sequence[str]) -> None:
    """Request dumps of tables that ``output`` left out and now takes."""
    _request_or_warn(config, {TableName.parse(table): [output] for table in tables})


def _request_or_warn(config: Config, missing: dict[TableName, list[str]]) -> bool:
    """Request dumps; return False, after a log line, if there will be none."""
    outputs = ", ".join(sorted({output for each in missing.values() for output in each}))
    tables = ", ".join(map(str, sorted(missing)))
    source = config.source
    configured = source.snapshot == "configuration_based" and source.snapshot_configuration
    if source.snapshot == "no_data" or (configured and configured.data == "never"):
        logger.warning(
            "output %s: the event log does not hold all of %s, and source.snapshot dumps nothing: "
            "what is not in the log comes only with `tidelog dump`",
            outputs,
            tables,
        )
        return False
    error = _send(config, missing)
    if error is None:
        logger.warning(
            "output %s: the event log does not hold all of %s: dumps of them are requested. "
            "Until they are done (tidelog status) the output lacks rows",
            outputs,
            tables,
        )
    else:
        logger.error(
            "output %s: the event log does not hold all of %s, and they can't be dumped: %s",
            outputs,
            tables,
            error,
        )
    return error is None


def _send(config: Config, tables: Collection[TableName]) -> str | None:
    """Send the command with a new dump id: an earlier dump does not count."""
    dump_id = f"catch-up-{new_id().lower()}"
    named = tuple(str(table) for table in sorted(tables))
    command = build(ExecuteSnapshot, {"dump_id": dump_id, "tables": named})
    error: str | None = send_command(config, command, timeout_s=_COMMAND_TIMEOUT_S)["error"]
    return error
