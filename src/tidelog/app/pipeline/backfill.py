"""Dumps for the rows of the past that an output lacks.

An output lacks rows if it is new, takes more tables than before, or is at a position that retention
has removed from the event log. A new output starts at the event log's head. If retention removed
the start of a table's history, a dump of the table is requested; so it is for tables that an output
takes from now on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from tidelog.app.base.outputs import destinations, pipeline_consumers
from tidelog.app.overview.remote_control import send_command
from tidelog.capture.dumps.store import CATCH_UP
from tidelog.config import Config
from tidelog.control.commands import StartDump, build_command
from tidelog.control.mailbox import new_id
from tidelog.errors import OffsetGoneError, TidelogError
from tidelog.eventlog.consumers import Destination
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 5.0


class Backfill:
    """Requests the dumps that the outputs of a pipeline need.

    Args:
        config: the configuration of the pipeline.
        log: the event log.
        copies: the names of outputs that a dump of all rows repairs, whatever they miss.
    """

    def __init__(self, config: Config, log: EventLog, copies: Collection[str] = ()) -> None:
        self._config = config
        self._log = log
        self._copies = copies
        self._destinations = destinations(config)
        self._checked: dict[str, int | TidelogError] = {}
        self._requested: dict[TableName, int] = {}  # the log's end then: its dump is after it

    def request(self) -> None:
        """Request the dumps that outputs need, and log where new outputs start.

        Call it before the pipeline registers the outputs: after a crash in between, the dumps are
        requested again. An output that can't resume ends nothing: `resume_offset` raises its error.
        """
        consumer = pipeline_consumers(self._config, self._log).find(self._config.pipeline.name)
        offsets = {} if consumer is None else consumer.outputs
        if consumer is not None and not offsets and consumer.offset > self._log.head_offset:
            return  # written by a version that did not track outputs separately
        before = {} if consumer is None else {**consumer.former, **consumer.destinations}
        self._request(self._destinations, offsets, before)

    def resume_offset(self, output: str, done: int) -> int:
        """Return where an output resumes that has delivered up to ``done``, and is behind the log's
        head: at the head, as dumps replace what it misses. 0: it is not behind.

        The result of `request` is returned once; then the output is checked again. Raises
        OffsetGoneError if dumps can't replace what it misses, OffsetAheadError if it has read
        beyond the log's end.
        """
        if output not in self._checked:
            self._request({output: self._destinations[output]}, {output: done}, self._destinations)
        found = self._checked.pop(output)
        if isinstance(found, TidelogError):
            raise found
        return found

    def _request(
        self,
        wanted: Mapping[str, Destination],
        offsets: Mapping[str, int],
        before: Mapping[str, Destination],
    ) -> None:
        """Fill ``_checked`` for the outputs ``wanted``. ``before``: their destinations when they
        last ran.
        """
        head = self._log.head_offset
        self._checked |= dict.fromkeys(wanted, 0)
        removed = head > self._log.info.start_offset
        incomplete = removed and any(offsets.get(output, -1) < head for output in wanted)
        dumped = self._dumped_tables(head) if incomplete else None
        missing: dict[TableName, list[str]] = {}
        behind: list[str] = []
        for output in wanted:
            try:
                if self._is_behind(output, offsets, head):
                    behind.append(output)
            except TidelogError as error:
                self._checked[output] = error
                continue
            offset = offsets.get(output)
            if offset is None and (offsets or removed):
                logger.warning("output %s is new: it starts at the head of the event log", output)
            for table in self._missing_tables(output, offset, before.get(output), dumped):
                missing.setdefault(table, []).append(output)
        requested = True
        if missing:
            end = self._log.latest_offset()
            requested = _request_or_warn(self._config, missing)
            self._requested |= dict.fromkeys(missing if requested else (), end)
        for output in behind:
            self._checked[output] = head
            tables = sorted(table for table, outputs in missing.items() if output in outputs)
            if tables and not requested:
                self._checked[output] = OffsetGoneError(
                    _gap_text(output, offsets[output], head)
                    + f"It resumes once the log holds dumps of {', '.join(map(str, tables))}: run "
                    "capture, and `tidelog dump` with these tables."
                )

    def _is_behind(self, output: str, offsets: Mapping[str, int], head: int) -> bool:
        """Return whether an output is before the log's head. Raises OffsetGoneError if dumps can't
        replace what it misses, OffsetAheadError.
        """
        offset = offsets.get(output, head)
        if output in offsets:
            self._log.check_offsets(offset, who=f"output {output}")
        if offset >= head:
            return False
        gap = _gap_text(output, offset, head)
        if output not in self._copies:
            raise OffsetGoneError(gap + _RENAME_HINT)
        logger.warning("%s", gap)
        return True

    def _dumped_tables(self, head: int) -> set[str]:
        """Return the tables with a whole dump after the log's head, or one that was requested."""
        requested = {str(table) for table, end in self._requested.items() if end >= head}
        return requested | _dumped_tables(self._log)

    def _missing_tables(
        self, output: str, offset: int | None, before: Destination | None, dumped: set[str] | None
    ) -> list[TableName]:
        """Return the tables of which an output needs a dump. ``dumped``: those with a whole dump,
        where retention removed the log's start and an output lacks it, else None.
        """
        head, taken = self._log.head_offset, self._destinations[output].tables
        tables = [table for table in self._log.schemas.tables() if matches(taken, table)]
        if offset is not None and offset >= head:
            return [t for t in tables if before is not None and not matches(before.tables, t)]
        return [table for table in tables if dumped is not None and str(table) not in dumped]


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
    from tidelog.spark.datasource.options import dump_records

    head = log.head_offset
    records = dump_records(log, head, log.latest_offset())
    return {m.table for m in records if m.completed and m.whole and m.first_offset >= head}


def request_dumps(config: Config, output: str, tables: Sequence[str]) -> None:
    """Request dumps of tables of which ``output`` lacks rows."""
    _request_or_warn(config, {TableName.parse(table): [output] for table in tables})


def _request_or_warn(config: Config, missing: dict[TableName, list[str]]) -> bool:
    """Request dumps; return False, after a log line, if there will be none."""
    outputs = ", ".join(sorted({output for each in missing.values() for output in each}))
    tables = ", ".join(map(str, sorted(missing)))
    source = config.source
    configured = source.snapshot == "configuration_based" and source.snapshot_configuration
    if source.snapshot == "no_data" or (configured and configured.data == "never"):
        logger.warning(
            "output %s lacks rows of %s, and source.snapshot dumps nothing: rows that are not in "
            "the event log come only with `tidelog dump`",
            outputs,
            tables,
        )
        return False
    error = _send(config, missing)
    if error is None:
        logger.warning(
            "output %s lacks rows of %s until their dumps, which are requested now, are done "
            "(tidelog status)",
            outputs,
            tables,
        )
    else:
        logger.error(
            "output %s lacks rows of %s, and they can't be dumped: %s",
            outputs,
            tables,
            error,
        )
    return error is None


def _send(config: Config, tables: Collection[TableName]) -> str | None:
    """Send the command with a new dump id: an earlier dump does not count."""
    dump_id = CATCH_UP + new_id().lower()
    named = tuple(str(table) for table in sorted(tables))
    command = build_command(StartDump, {"dump_id": dump_id, "tables": named})
    return send_command(config, command, timeout_s=COMMAND_TIMEOUT_S).error
