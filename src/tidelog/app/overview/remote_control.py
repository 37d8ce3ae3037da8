"""Commands and queries for a running capture, over the state store and the event log."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from tidelog.app.base.elections import LEASE_NAME, pipeline_lease_name, request_handover
from tidelog.app.base.instances import pipeline_prefix
from tidelog.app.base.log_location import event_log_path
from tidelog.app.overview.build import overview
from tidelog.app.overview.dump_problems import block_reasons, reported_blocks
from tidelog.app.overview.reader import ENGINE_GROUPS, RUNS_S, StatusReader, process_of
from tidelog.app.sources.keys import discard_keys
from tidelog.capture.dumps.state import NO_KEY, UNFINISHED_DUMPS, DumpState
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.capture.pauses import PIPELINE_KEYS, pause_of
from tidelog.config import AnyConfig, Config, as_config
from tidelog.control.commands import Command, Handover
from tidelog.control.mailbox import Mailbox, Outcome
from tidelog.errors import (
    EventLogError,
    StorageError,
    TidelogError,
    UsageError,
    WaitTimeoutError,
)
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.option_values import is_url
from tidelog.model.patterns import matches
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.results import (
    DumpDelivery,
    DumpSummary,
    FailedRange,
    ForgottenEngine,
    HandoverResult,
    Status,
    TableDelivery,
)
from tidelog.state.opening import (
    ReadOnlyStateStore,
    open_election,
    open_state,
    pays_per_request,
    poll_interval_s,
    state_exists,
)
from tidelog.system.processes import has_ended, unix_ms

# The status, for callers that display it.

_POLL_EVERY_S = 0.5  # capture publishes about once a second
_LOG_EVERY_S = 1.0

OnStatus = Callable[[dict[str, Any]], None]


def ignore_status(_status: object) -> None:
    """The default of callbacks: does nothing."""


class StatusFeed:
    """A `StatusReader` for callers that poll. A context manager, for one thread.

    Attributes:
        poll_interval_s: seconds between two polls; longer if the state store's requests cost money.
        pays_per_request: whether they cost money.
    """

    def __init__(self, config: Config) -> None:
        self.poll_interval_s = max(_POLL_EVERY_S, poll_interval_s(config.state.location))
        self.pays_per_request = pays_per_request(config.state.location)
        self._reader = StatusReader(config, log_every_s=max(_LOG_EVERY_S, self.poll_interval_s))
        self._log_status: dict[str, Any] = {"outputs": []}

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    def latest(self, *, last: bool = False) -> dict[str, Any]:
        """Return a status as `tidelog.app.status` does; ``capture`` is None before the first
        capture.

        If the event log can't be read now, its part is that of the last call. ``last``: for a
        process that ends; where reading the log costs money, outputs are left out.
        """
        status = self._reader.from_state()
        if last and self.pays_per_request:
            return {**status, "outputs": []}
        with suppress(EventLogError, StorageError, OSError):
            self._log_status = self._reader.from_log(at_once=last)
        return {**status, **self._log_status}


# Commands and queries.

COMMAND_S: Final = 10.0


def command_timeout_s(config: Config) -> float:
    """Return a timeout in seconds in which a leader reads and handles a command."""
    return max(COMMAND_S, 2 * poll_interval_s(config.state.location))


def send_command(config: Config, command: Command, *, timeout_s: float) -> Outcome:
    """Send a command to the leader; return its outcome, or that it still waits."""
    state = open_state(config.state.location)
    try:
        mailbox = Mailbox(state)
        command_id = mailbox.send(command)
        outcome = mailbox.wait(command_id, timeout_s) or Outcome(command_id, handled=False)
        if outcome.error is not None:
            discard_keys(state, command)
        return outcome
    finally:
        state.close()


def hand_over(
    config: Config, to: str | None, *, timeout_s: float, pipeline: str | None = None
) -> HandoverResult:
    """Ask the leader to hand over to another process; return both.

    Args:
        config: the configuration of the capture.
        to: the standby that takes over; None: any.
        timeout_s: the longest time to wait.
        pipeline: the name of the pipeline to hand over; None: the capture.

    Raises:
        UsageError: nobody leads, or no such process stands by.
        WaitTimeoutError: it took longer than ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    if not state_exists(config.state.location):
        raise UsageError("no capture has run here: there is no state store yet")
    lease = LEASE_NAME if pipeline is None else pipeline_lease_name(pipeline)
    election = open_election(config.state.location, lease, "handover", 10)
    try:
        leader = election.leader()
        if leader is None and pipeline is not None:
            raise UsageError(f"nobody delivers a pipeline {pipeline} (pipeline.name)")
        if leader is None:
            raise UsageError("no capture leads")
        if pipeline is None:
            _request_handover(config, leader, to, timeout_s)
        else:
            with closing(open_state(config.state.location)) as state:
                request_handover(state, lease, pipeline_prefix(pipeline), leader, to)
        while time.monotonic() < deadline:
            new_leader = election.leader()
            if new_leader is not None and new_leader != leader:
                return HandoverResult(leader, new_leader)
            time.sleep(0.1)
    finally:
        election.close()
    what = "capture" if pipeline is None else "process of the pipeline"
    raise WaitTimeoutError(
        f"no other {what} took over from {leader} within {timeout_s:g} s; it leads again if none "
        "does"
    )


def _request_handover(config: Config, leader: str, to: str | None, timeout_s: float) -> None:
    answer = send_command(config, Handover(leader=leader, to=to), timeout_s=timeout_s)
    if answer.error is not None:
        raise (UsageError if answer.usage else TidelogError)(answer.error)


def forget_engine(config: Config, name: str) -> ForgottenEngine:
    """Delete and return the progress of all engines of this name; a later one is new.

    Raises:
        UsageError: there is none, it is a pipeline's name, or an engine of the name runs.
        EventLogError: there is no event log.
    """
    consumers = Consumers(EventLog.open(event_log_path(config)).storage)
    consumer = consumers.find(name)
    with closing(open_state(config.state.location)) as state:
        document = state.get(f"{ENGINE_GROUPS}{name}")
        if consumer is None and document is None:
            known = ", ".join(each.name for each in consumers.all() if each.engine) or "none"
            raise UsageError(f"no engine named {name} has progress in this event log: {known}")
        if consumer is not None and not consumer.engine:
            raise UsageError(f"{name} is a pipeline, no engine")
        group = {} if document is None else document.value
        noted_ms = 0 if consumer is None else consumer.updated_ms
        if unix_ms() - group.get("seen_ms", noted_ms) < RUNS_S * 1000:
            processes = group.get("processes", {})
            running = [each for each in group.get("members", ()) if not _has_ended(processes, each)]
            if running or document is None:
                who = ", ".join(map(process_of, running)) or "somebody"
                raise UsageError(
                    f"an engine named {name} runs, or ran less than {RUNS_S:.0f} s ago: {who}."
                    " End it first"
                )
        if document is not None:
            state.delete(f"{ENGINE_GROUPS}{name}")
    consumers.forget(name)
    return ForgottenEngine(name, None if consumer is None else consumer.offset)


def _has_ended(processes: dict[str, Any], holder: str) -> bool:
    return has_ended(processes.get(holder, {}))


def failed_ranges(config: Config) -> list[FailedRange]:
    """Return key ranges ``(low, high]`` that dumps could not read; they have key values."""
    state = ReadOnlyStateStore(config.state.location)
    try:
        ranges = []
        for name in state.keys(DUMP_PREFIX):
            document = state.get(name)
            if document is None:
                continue
            dump = DumpState.from_json(document.value)
            for progress in dump.tables:
                ranges += [
                    FailedRange(
                        dump.dump_id, progress.table, progress.key_columns, failed.low, failed.high
                    )
                    for failed in progress.failed
                ]
        return ranges
    finally:
        state.close()


def status(config: AnyConfig, *, ranges: bool = False) -> Status:
    """Return what capture, pipelines, outputs and engines do, and what is wrong.

    ``ranges``: also the key ranges that dumps could not read, which have key values.
    """
    config = as_config(config)
    with StatusReader(config) as reader:
        document = reader.read()
    if ranges:
        document["failed_ranges"] = [each.to_dict() for each in failed_ranges(config)]
    summary = overview(document, unix_ms())
    return Status(summary, {**document, "overview": summary.to_dict()})


def dump_wait(
    config: Config,
    dump_id: str,
    *,
    on_progress: OnStatus | None = None,
    timeout_s: float | None = None,
) -> DumpSummary:
    """Wait until the dump has finished; return its summary.

    ``on_progress`` is called with summaries; their ``held`` says what blocks the dump, see
    `tidelog.app.overview.dump_problems.blocks_of`.

    Raises:
        UsageError: there is no such dump, and no pending command asks for it.
        WaitTimeoutError: it took longer than ``timeout_s``.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    blocks: list[dict[str, Any]] = []
    check_at = 0.0
    interval_s = _wait_interval_s(config, 0.1)
    state = ReadOnlyStateStore(config.state.location)
    try:
        while deadline is None or time.monotonic() < deadline:
            asked_for = Mailbox(state).has_command_for(dump_id)
            document = state.get(DUMP_PREFIX + dump_id)
            if document is not None:
                dump = DumpState.from_json(document.value)
                summary = dump.summary()
                if dump.finished:
                    blocks = []
                elif time.monotonic() >= check_at:
                    check_at = time.monotonic() + max(1.0, poll_interval_s(config.state.location))
                    blocks = reported_blocks(state, summary)
                if on_progress is not None:
                    on_progress({**summary, "held": blocks})
                if dump.finished:
                    return DumpSummary(summary)
            elif not asked_for:
                raise UsageError(f"there is no dump {dump_id} (any more)")
            _sleep(interval_s, deadline)
    finally:
        state.close()
    why = f" {block_reasons(blocks)}" if blocks else ""
    raise WaitTimeoutError(
        f"dump {dump_id} did not finish within {timeout_s} s; it continues.{why}"
    )


def _wait_interval_s(config: Config, seconds: float) -> float:
    """Return the seconds between two polls of a long wait: ``seconds``, or more where state store
    or event log cost money for each request.
    """
    paid = pays_per_request(config.state.location) or is_url(config.log.path)
    return PAID_WAIT_INTERVAL_S if paid else seconds


def _sleep(seconds: float, deadline: float | None) -> None:
    """Sleep at most until the deadline, by the monotonic clock."""
    left_s = seconds if deadline is None else deadline - time.monotonic()
    time.sleep(max(0.0, min(seconds, left_s)))


def _name_in_log(wanted: str, tables: Sequence[TableName], *, follow: bool) -> str:
    """Return the table's name as in the event log; with ``follow``, also of a table to come."""
    for table in tables:
        if wanted in (str(table), f"{table.namespace}.{table.name}"):
            return str(table)
    if follow and "." in wanted:
        return wanted
    known = ", ".join(str(table) for table in tables) or "none"
    raise UsageError(f"the event log holds no table {wanted!r}; it holds {known}")


def read_log(
    config: Config,
    *,
    table: str | None = None,
    start: int | None = None,
    follow: bool = False,
    dumps: bool = False,
) -> Iterator[dict[str, Any]]:
    """As `log_lines`, but parsed."""
    lines_of_log = log_lines(config, table=table, start=start, follow=follow, dumps=dumps)
    return map(json.loads, lines_of_log)


def log_lines(
    config: Config,
    *,
    table: str | None = None,
    start: int | None = None,
    tail: int | None = None,
    follow: bool = False,
    dumps: bool = False,
) -> Iterator[str]:
    """Yield change events in Debezium's envelope as JSON texts.

    They start at ``start`` (the head if None), or are the last ``tail`` ones. With ``dumps``, the
    log's records about dumps are included: ``op`` is ``dump``, and ``dump`` has the record, e.g.
    that a table's dump is complete (docs/how-to/dump-a-table.md#wait-for-a-dump).
    """
    from tidelog.spark.sessions.installation import check_pyspark

    check_pyspark()  # the readers use types of pyspark; no Java is needed
    from tidelog.spark.log_lines import lines

    path = event_log_path(config)
    if not EventLog.exists(path):
        raise EventLogError(f"{path} holds no event log; `tidelog capture` creates one")
    log = EventLog.open(path)
    if table is not None:
        table = _name_in_log(table, log.schemas.tables(), follow=follow)
    offset = log.head_offset if start is None else start
    if offset < 0:
        raise UsageError("--from: an offset is not negative")
    if offset > (end := log.latest_offset(durable=False)):
        raise UsageError(f"--from: the event log ends at offset {end}, before {offset}")
    log.check_offsets(offset)
    if tail is not None:
        end = log.latest_offset(durable=False)
        last = lines(log, path, _tail_start(log, end, table, tail), end, table, dumps=dumps)
        yield from deque(last if tail else (), maxlen=tail)
        offset = end
        if not follow:
            return
    while True:
        end = offset
        if not follow or log.poll(offset):
            end = log.latest_offset(durable=False, after=offset)
        if end > offset:
            yield from lines(log, path, offset, end, table, dumps=dumps)
            offset = end
        elif end < offset:
            log.check_offsets(offset)
        if not follow:
            return
        time.sleep(0.1)


def _tail_start(log: EventLog, end: int, table: str | None, count: int) -> int:
    """Return an offset after which there are at least ``count`` events, if the log has so many."""
    count_so_far = 0
    chain = log.chain()
    for meta in reversed(chain.between(chain.head, end)):
        if count_so_far >= count:
            return meta.next
        rows = meta.rows_by_table
        count_so_far += sum(rows.values()) if table is None else rows.get(table, 0)
    return log.head_offset


POLL_S = 0.2
PAID_WAIT_INTERVAL_S: Final = 5.0


def wait_delivered(
    config: AnyConfig,
    dump_id: str,
    output: str | None = None,
    timeout_s: float | None = None,
    *,
    on_progress: Callable[[DumpDelivery], object] | None = None,
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
        on_progress: called with the state of the wait, about five times a second; every five
            seconds where requests cost money.

    Returns:
        The state of the wait. Tables that failed or were cancelled are not waited for.

    Raises:
        UsageError: there is no such dump or output, or no output takes a table of the dump.
        WaitTimeoutError: it took longer than ``timeout_s``.
    """
    config = as_config(config)
    if not config.outputs and output is None:
        raise UsageError("there are no outputs to wait for; add one under 'outputs'")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    progress = _DeliveryProgress(config, dump_id, output)
    interval_s = _wait_interval_s(config, POLL_S)
    try:
        while True:
            state = progress.read()
            if state is not None:
                if on_progress is not None:
                    on_progress(state)
                if progress.is_complete(state):
                    return state
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"dump {dump_id} was not delivered within {timeout_s:g} s: "
                    f"{_state_text(state)}. The dump continues."
                )
            _sleep(interval_s, deadline)
    finally:
        progress.close()


def _state_text(state: DumpDelivery | None) -> str:
    if state is None:
        return "no capture has begun it"
    if state.status in UNFINISHED_DUMPS:
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
        self._state = ReadOnlyStateStore(config.state.location)
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
        return state.status not in UNFINISHED_DUMPS and all(
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
