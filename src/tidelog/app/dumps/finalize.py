"""Waits until outputs have what a dump has read, and reads a dump's chunks in the event log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tidelog.app.base.log_location import event_log_path
from tidelog.app.overview.problems import block_reasons, reported_blocks
from tidelog.app.overview.remote_control import ignore_status
from tidelog.capture.dumps.state import NO_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.capture.pauses import PIPELINE_KEYS, pause_of
from tidelog.config import AnyConfig, Config, as_config
from tidelog.control.mailbox import Mailbox
from tidelog.errors import TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.results import DumpDelivery, TableDelivery
from tidelog.state.wrappers import ReadOnlyStateStore

FINISHED = ("completed", "aborted")
POLL_S = 0.2


def wait_finalized(
    config: AnyConfig,
    dump_id: str,
    output: str | None = None,
    timeout_s: float | None = None,
    *,
    on_progress: Callable[[DumpDelivery], object] = ignore_status,
) -> DumpDelivery:
    """Wait until outputs have a dump's tables completely: all rows and changes at its end.

    An output has a table when it has delivered everything below the table's ``finalized_until``:
    the record that ends the table's dump in the event log is the last before it. Consumers write
    their progress into the event log's directory, so neither Spark nor the source is needed.

    Args:
        config: the configuration of capture and pipeline.
        dump_id: the dump; it may still run, or wait for a capture.
        output: the name of a configured output, or of a consumer that registered itself with the
            event log; None: every configured output.
        timeout_s: the longest time to wait; None: for ever.
        on_progress: called with the state of the wait, about five times a second.

    Returns:
        The state of the wait. Tables that failed or were cancelled are not waited for.

    Raises:
        UsageError: there is no such dump or output, or no output takes a table of the dump.
        TidelogError: it took longer than ``timeout_s``.
    """
    config = as_config(config)
    if not config.outputs and output is None:
        raise UsageError("there are no outputs to wait for; add one under 'outputs'")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    progress = _DeliveryProgress(config, dump_id, output)
    try:
        while True:
            state = progress.read()
            if state is not None:
                on_progress(state)
                if progress.is_complete(state):
                    return state
            if deadline is not None and time.monotonic() >= deadline:
                raise TidelogError(
                    f"dump {dump_id} was not delivered within {timeout_s:g} s: "
                    f"{_state_text(state)}. The dump continues."
                )
            time.sleep(POLL_S)
    finally:
        progress.close()


def _state_text(state: DumpDelivery | None) -> str:
    if state is None:
        return "no capture has begun it"
    if state.status not in FINISHED:
        return f"the dump is {state.status}" + (f" ({state.stands})" if state.stands else "")
    return state.stands or "the outputs are behind; is the pipeline running?"


class _DeliveryProgress:
    """Reads the progress of the dump and of the outputs."""

    def __init__(self, config: Config, dump_id: str, output: str | None) -> None:
        self._dump_id = dump_id
        self._path = event_log_path(config)
        self._consumer = self._pipeline = config.pipeline.name
        # None: all of the pipeline's outputs; the consumer's offset is that of the last one
        self._output: str | None = None
        patterns = {each.name: each.tables for each in config.outputs}
        if output is None:
            self._taken = list(patterns.values())
        elif output in patterns:
            self._output, self._taken = output, [patterns[output]]
        else:
            self._consumer, self._taken = output, [["*.*"]]
        self._state = ReadOnlyStateStore(config.state.place)
        if output is not None and output not in patterns and self._offset() is None:
            self._state.close()
            known = ", ".join(patterns) or "none"
            raise UsageError(f"there is no output or consumer {output!r}; outputs: {known}")

    def close(self) -> None:
        self._state.close()

    def read(self) -> DumpDelivery | None:
        """Return the progress of dump and outputs; None if no capture has begun the dump."""
        document = self._state.get(DUMP_PREFIX + self._dump_id)
        if document is None:
            if not self._is_requested():
                raise UsageError(f"there is no dump {self._dump_id} (any more)")
            return None
        dump = document.value
        offset = self._offset()
        tables = [self._table(table, offset) for table in dump["tables"]]
        if not any(table.taken for table in tables):
            raise UsageError(f"no output takes a table of dump {self._dump_id}: see outputs.tables")
        expected = [each for each in tables if each.taken and each.reason != NO_KEY]
        return DumpDelivery(
            self._dump_id,
            dump["status"],
            delivered=bool(expected) and all(table.delivered for table in expected),
            offset=offset,
            tables=tuple(tables),
            stands=self._obstacle(dump),
        )

    def _obstacle(self, dump: dict[str, Any]) -> str:
        """Return why nothing moves, in sentences; empty: it moves, as far as is known."""
        if blocks := reported_blocks(self._state, dump):
            return block_reasons(blocks)
        paused = pause_of(self._state, PIPELINE_KEYS + self._pipeline)
        if paused is None or self._consumer != self._pipeline:
            return ""
        return f"Pipeline {self._pipeline} is {paused.sentence()}."

    def is_complete(self, state: DumpDelivery) -> bool:
        """Return whether there is nothing more to wait for."""
        return state.status in FINISHED and all(
            table.delivered or not table.taken or table.status != "done" for table in state.tables
        )

    def _table(self, table: dict[str, Any], offset: int | None) -> TableDelivery:
        until = table.get("finalized_until")
        name = TableName.parse(table["table"])
        is_taken = any(matches(patterns, name) for patterns in self._taken)
        passed = offset is not None and until is not None and offset >= until
        return TableDelivery(
            table["table"],
            table["status"],
            table.get("reason") or "",
            finalized_until=until,
            taken=is_taken,
            delivered=is_taken and passed and table["status"] == "done",
        )

    def _offset(self) -> int | None:
        if not EventLog.exists(self._path):
            return None
        consumer = Consumers(EventLog.open(self._path).storage).find(self._consumer)
        if consumer is None or self._output is None or not consumer.outputs:
            return None if consumer is None else consumer.offset
        return consumer.outputs.get(self._output)  # None: it was added, and has not begun

    def _is_requested(self) -> bool:
        """Return whether a command for the dump is pending, or was handled just now."""
        waits = Mailbox(self._state).has_command_for(self._dump_id)
        return waits or self._state.get(DUMP_PREFIX + self._dump_id) is not None


def chunks_of(config: Config, dump_id: str) -> Iterator[ChunkMeta]:
    """Yield chunks of key ranges in the log's order, without chunks of keys that were read again.

    Raises:
        EventLogError: there is no event log.
    """
    for _, chunk in EventLog.open(event_log_path(config)).chunks():
        if chunk.dump_id == dump_id and not chunk.keys_requested:
            yield chunk
