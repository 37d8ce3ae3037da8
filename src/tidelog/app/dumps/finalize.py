"""Waiting until outputs hold what a dump has read."""

from __future__ import annotations

import time
from typing import Any

from tidelog.app.log_location import log_place
from tidelog.app.overview.dump_problems import reasons, told_holds
from tidelog.app.status_stream import OnStatus, ignore
from tidelog.capture.dumps.coordinator import DUMP_PREFIX
from tidelog.capture.limits.pauses import PIPELINE_KEYS, pause_of
from tidelog.config import Config
from tidelog.control.mailbox import Mailbox
from tidelog.errors import TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.state.wrappers import ReadOnlyStateStore

FINISHED = ("completed", "aborted")
POLL_S = 0.2


def wait_finalized(
    config: Config,
    dump_id: str,
    output: str | None = None,
    timeout_s: float | None = None,
    *,
    on_progress: OnStatus = ignore,
) -> dict[str, Any]:
    """Wait until outputs hold a dump's tables completely: all they held when each was finished.

    That is when an output has taken in everything below the table's ``finalized_until``: the
    record that ends the table's dump in the event log is the last before it. A consumer writes into
    the event log's directory how far it is, so neither Spark nor the source is asked.

    Args:
        config: of capture and pipeline.
        dump_id: the dump; it may be running still, or wait for a capture.
        output: the name of one configured output, or of a consumer that registered itself with the
            event log; None: every configured output.
        timeout_s: None: for ever.
        on_progress: called with the state of the wait, about five times a second.

    Returns:
        ``dump_id``, ``status`` of the dump, ``delivered`` (is every table that an output takes done
        and delivered?), ``offset`` (everything before it was taken in) and ``tables``: each with
        ``table``, ``status``, ``finalized_until``, ``taken`` (does an output take it?) and
        ``delivered``. Tables that failed or were cancelled are not waited for. ``stands``: why
        nothing moves, if capture holds the dump or somebody paused the pipeline; else empty.

    Raises:
        UsageError: there is no such dump or output, or no output takes a table of the dump.
        TidelogError: it took longer than ``timeout_s``.
    """
    if not config.outputs and output is None:
        raise UsageError("there are no outputs to wait for; add one under 'outputs'")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    waiting = _Waiting(config, dump_id, output)
    try:
        while True:
            found = waiting.look()
            if found is not None:
                on_progress(found)
                if waiting.over(found):
                    return found
            if deadline is not None and time.monotonic() >= deadline:
                raise TidelogError(
                    f"dump {dump_id} was not delivered within {timeout_s:g} s: "
                    f"{_where(found)}. It goes on."
                )
            time.sleep(POLL_S)
    finally:
        waiting.close()


def _where(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no capture has begun it"
    if found["status"] not in FINISHED:
        return f"the dump is {found['status']}" + (
            f" ({found['stands']})" if found["stands"] else ""
        )
    return found["stands"] or "the outputs are behind; is the pipeline running?"


class _Waiting:
    """What is looked at, again and again."""

    def __init__(self, config: Config, dump_id: str, output: str | None) -> None:
        self._dump_id = dump_id
        self._path = log_place(config)
        self._consumer = self._pipeline = config.pipeline.name
        self._output: str | None = None  # None: all of the pipeline's, which is as far as the last
        patterns = {each.name: each.tables for each in config.outputs}
        if output is None:
            self._patterns = [pattern for each in patterns.values() for pattern in each]
        elif output in patterns:
            self._output, self._patterns = output, list(patterns[output])
        else:
            self._consumer, self._patterns = output, ["*.*"]
        self._state = ReadOnlyStateStore(config.state.place)
        if output is not None and output not in patterns and self._offset() is None:
            self._state.close()
            known = ", ".join(patterns) or "none"
            raise UsageError(f"there is no output or consumer {output!r}; outputs: {known}")

    def close(self) -> None:
        self._state.close()

    def look(self) -> dict[str, Any] | None:
        """How far dump and outputs are; None if no capture has begun the dump."""
        document = self._state.get(DUMP_PREFIX + self._dump_id)
        if document is None:
            if not self._asked_for():
                raise UsageError(f"there is no dump {self._dump_id} (any more)")
            return None
        dump = document.value
        offset = self._offset()
        tables = [self._table(table, offset) for table in dump["tables"]]
        if not any(table["taken"] for table in tables):
            raise UsageError(f"no output takes a table of dump {self._dump_id}: see outputs.tables")
        return {
            "dump_id": self._dump_id,
            "status": dump["status"],
            "delivered": all(table["delivered"] for table in tables if table["taken"]),
            "offset": offset,
            "tables": tables,
            "stands": self._stands(dump),
        }

    def _stands(self, dump: dict[str, Any]) -> str:
        """Sentences; empty: it goes on, as far as is known."""
        if held := told_holds(self._state, dump):
            return reasons(held)
        paused = pause_of(self._state, PIPELINE_KEYS + self._pipeline)
        if paused is None or self._consumer != self._pipeline:
            return ""
        return f"Pipeline {self._pipeline} is {paused.sentence()}."

    def over(self, found: dict[str, Any]) -> bool:
        """Is there nothing more to wait for?"""
        return found["status"] in FINISHED and all(
            table["delivered"] or not table["taken"] or table["status"] != "done"
            for table in found["tables"]
        )

    def _table(self, table: dict[str, Any], offset: int | None) -> dict[str, Any]:
        until = table.get("finalized_until")
        taken = matches(self._patterns, TableName.parse(table["table"]))
        passed = offset is not None and until is not None and offset >= until
        return {
            "table": table["table"],
            "status": table["status"],
            "finalized_until": until,
            "taken": taken,
            "delivered": taken and passed and table["status"] == "done",
        }

    def _offset(self) -> int | None:
        if not EventLog.exists(self._path):
            return None
        found = Consumers(EventLog.open(self._path).storage).find(self._consumer)
        if found is None or self._output is None or not found.outputs:
            return None if found is None else found.offset
        return found.outputs.get(self._output)  # None: it was added, and has not begun

    def _asked_for(self) -> bool:
        """Does a command for the dump wait, or was it acted on only now?"""
        waits = Mailbox(self._state).has_command_for(self._dump_id)
        return waits or self._state.get(DUMP_PREFIX + self._dump_id) is not None
