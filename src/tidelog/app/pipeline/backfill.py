"""What an output lacks of the time before: one that is new, or takes more tables than before, or
stands where retention has removed the event log.

It begins where the event log begins. Where that is not the beginning of a table's history, for
retention removed it, a dump of the table is asked for; as it is for tables that an output takes
from now on, and that it passed over so far.
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

_ACTED_ON_S = 5.0


def catch_up(config: Config, log: EventLog, copies: Collection[str] = ()) -> dict[str, int]:
    """Say of each output that is new what it begins with, and ask for the dumps that it needs.

    Before the pipeline notes the outputs: a crash between asks for the dumps again.

    Args:
        config: of the pipeline.
        log: the event log.
        copies: names of outputs whose tables a whole dump makes right, whatever they lack.

    Returns the outputs that stand before the log's head, and where they go on, as dumps make good
    what they lack. Raises OffsetGoneError if there is one that can't, OffsetAheadError if one has
    read what the log does not hold.
    """
    name = config.pipeline.name
    found = pipeline_consumers(config, log).find(name)
    head = log.head_offset
    known = {} if found is None else found.outputs
    if not known and found is not None and found.offset > head:
        return {}  # noted by a version that did not tell outputs apart
    for output in destinations(config):
        if output in known:
            log.check_offsets(known[output], who=f"output {output}")
    behind = {name for name in destinations(config) if known.get(name, head) < head}
    for output in sorted(behind):
        if output not in copies:
            raise OffsetGoneError(_lost(output, known[output], head) + _RENAMED)
    lacking: dict[TableName, list[str]] = {}
    removed = head > log.info.start_offset
    dumped = _dumped_tables(log) if removed else set()
    for output, its in destinations(config).items():
        taken = [table for table in log.schemas.tables() if matches(its.tables, table)]
        if output in behind:
            logger.warning("%s", _lost(output, known[output], head))
            taken = [table for table in taken if str(table) not in dumped]
        elif output not in known:
            if known or removed:
                logger.warning("output %s is new: it begins where the event log begins", output)
            taken = [table for table in taken if removed and str(table) not in dumped]
        else:
            before = found.destinations.get(output) if found is not None else None
            taken = [t for t in taken if before is not None and not matches(before.tables, t)]
        for table in taken:
            lacking.setdefault(table, []).append(output)
    asked = not lacking or _ask(config, lacking)
    for output in sorted(behind):
        tables = [str(table) for table, outputs in lacking.items() if output in outputs]
        if tables and not asked:
            raise OffsetGoneError(
                _lost(output, known[output], head)
                + f"It goes on once the log holds dumps of {', '.join(sorted(tables))}: run "
                "capture, and `tidelog dump` with these tables, then the pipeline again."
            )
    return dict.fromkeys(sorted(behind), head)


_RENAMED = (
    "What they held it can't have any more. Give the output a name that it never had: then it goes "
    "on where the event log begins, and dumps tell it the state of all rows."
)


def _lost(output: str, offset: int, head: int) -> str:
    return (
        f"output {output} stands at offset {offset}, but retention removed everything before "
        f"{head} (log.retention_cap): the changes between are lost to it. "
    )


def _dumped_tables(log: EventLog) -> set[str]:
    """Tables of which a whole dump lies between the log's head and its end."""
    from tidelog.spark.datasource.positions import dump_records

    head = log.head_offset
    found = dump_records(log, head, log.latest_offset())
    return {m.table for m in found if m.completed and m.whole and m.first_offset >= head}


def request_dumps(config: Config, output: str, tables: Sequence[str]) -> None:
    """Ask for dumps of tables that ``output`` left out and now takes."""
    _ask(config, {TableName.parse(table): [output] for table in tables})


def _ask(config: Config, lacking: dict[TableName, list[str]]) -> bool:
    """False: they are not dumped, and that was said."""
    outputs = ", ".join(sorted({output for each in lacking.values() for output in each}))
    tables = ", ".join(map(str, sorted(lacking)))
    source = config.source
    configured = source.snapshot == "configuration_based" and source.snapshot_configuration
    if source.snapshot == "no_data" or (configured and configured.data == "never"):
        logger.warning(
            "output %s: the event log does not hold all of %s, and source.snapshot dumps nothing: "
            "what is not in the log comes with `tidelog dump` alone",
            outputs,
            tables,
        )
        return False
    error = _send(config, lacking)
    if error is None:
        logger.warning(
            "output %s: the event log does not hold all of %s: dumps of them are asked for. "
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
    """The dump's id is in no other command: one that was asked for and done does not count."""
    dump_id = f"catch-up-{new_id().lower()}"
    named = tuple(str(table) for table in sorted(tables))
    command = build(ExecuteSnapshot, {"dump_id": dump_id, "tables": named})
    error: str | None = send_command(config, command, timeout_s=_ACTED_ON_S)["error"]
    return error
