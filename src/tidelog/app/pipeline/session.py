"""One leadership of a pipeline, from the takeover to the end of the lease.

At its start dumps are requested for rows that an output lacks: it is new, takes more tables than
before, or is at a position that retention has removed from the event log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.app.base.elections import pipeline_lease_name
from tidelog.app.base.instances import PIPELINE_PREFIX
from tidelog.app.base.log_location import event_log_path
from tidelog.app.base.outputs import (
    destinations,
    make_outputs,
    misplaced_outputs,
    pipeline_consumers,
)
from tidelog.app.overview.remote_control import OnStatus, send_command
from tidelog.app.pipeline.idle_check import check_result_of, record_delivered
from tidelog.app.sources.keys import store_keys
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.dumps.store import CATCH_UP
from tidelog.capture.leadership import Leader, LeaseKeeper, end_later
from tidelog.capture.pauses import PipelinePause
from tidelog.codecs.wire_formats import source_spellings
from tidelog.config import Config
from tidelog.control.commands import StartDump, build_command
from tidelog.control.mailbox import new_id
from tidelog.errors import (
    ConfigError,
    LeaseLostError,
    OffsetGoneError,
    StateError,
    TableLeftOutError,
    TidelogError,
)
from tidelog.eventlog.consumers import Destination
from tidelog.eventlog.reader import EventLog
from tidelog.model.option_values import is_url
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.lease_file import LeaseFile
from tidelog.outputs.base.ranges import refs_of, schema_in, split_by_key
from tidelog.outputs.base.sections import SteppedSection
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.ports import KeyedOutput, Output, OutputBatch, ReshapingOutput, StateStore, WriteLease
from tidelog.spark.changed_keys import keys_of_frame, rows_to_read_again
from tidelog.spark.pipeline import BatchProgress, LoopOptions, run_output_loops
from tidelog.spark.sessions.class_archive import ClassArchive
from tidelog.spark.sessions.connect import (
    cancel_jobs,
    cancel_own_tasks,
    is_open,
    is_remote,
    start_failure,
)
from tidelog.spark.sessions.errors import known_error, lasting_reason
from tidelog.spark.transforms import Step, steps_of
from tidelog.state.opening import fenced, pays_per_request, poll_interval_s
from tidelog.system.processes import unix_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def captured_tables(state: StateStore) -> Collection[str] | None:
    """Return the tables that capture captures now; None: no capture has run."""
    shapes = state.get(SHAPES_KEY)
    return None if shapes is None else shapes.value.keys()


def _is_keyed(output: Output) -> bool:
    return isinstance(output, KeyedOutput) and output.keyed


class FilteredRows:
    """Requests rows again that a filter can't judge by partial records. It is called with each
    batch before the write: the request is durable then, and its rows follow the batch.
    """

    def __init__(self, config: Config, spark: SparkSession, log: EventLog) -> None:
        self._config = config
        self._spark = spark
        self._log = log
        self._steps: dict[str, tuple[Step, ...]] = {
            section.name: transform_steps(section)
            for section in config.outputs
            if isinstance(section, SteppedSection)
            and any(step.action == "filter" for step in section.steps)
        }
        self._tables = {section.name: tuple(section.tables) for section in config.outputs}

    def __call__(self, output: Output, batch: OutputBatch) -> None:
        """Request the rows of the batch that must be read again."""
        if output.name not in self._steps or not _is_keyed(output):
            return
        for piece in split_by_key(self._log, batch):
            self._ask_for(output, piece)

    def _ask_for(self, output: Output, batch: OutputBatch) -> None:
        log, path = self._log, event_log_path(self._config)
        for table in (each.table for each in batch.tables):
            steps = steps_of(self._steps[output.name], table)
            filtered = any(step.action == "filter" for step in steps)
            if not filtered or not matches(self._tables[output.name], table):
                continue
            schema = schema_in(log, table, batch.start, batch.end)
            if schema is None or not schema.match_key:
                continue
            refs = refs_of(log, table, batch.start, batch.end)
            try:
                typed = schema
                if isinstance(output, ReshapingOutput):
                    typed = output.table_of(schema).schema
                with rows_to_read_again(self._spark, log, path, typed, refs, steps) as rows:
                    if rows is not None:
                        self._ask(output.name, schema, rows)
            except Exception as error:
                known = known_error(error)
                if not (
                    isinstance(known, ConfigError | TableLeftOutError) or lasting_reason(error)
                ):
                    raise  # else the output leaves the table out

    def _ask(self, output: str, schema: TableSchema, rows: DataFrame) -> None:
        keys = (
            tuple(part for part in key if part is not None)
            for texts in keys_of_frame(rows, schema.match_key)
            for key in source_spellings(texts, schema, schema.match_key)
        )
        name, count = store_keys(self._config, keys, distinct=True)
        if not count:
            return
        data = {
            "dump_id": f"filter-{new_id().lower()}",
            "tables": (str(schema.table),),
            "key_set": name,
            "key_columns": schema.match_key,
            "missing": "list",  # the log has their deletes
        }
        command = build_command(StartDump, data)
        error = send_command(self._config, command, timeout_s=COMMAND_TIMEOUT_S).error
        subject = (
            f"output {output}: {count} changed rows of {schema.table} lack columns that the filter "
            "needs"
        )
        if error is None:
            logger.info("%s: they are read again (%s)", subject, data["dump_id"])
        else:
            logger.error("%s, and can't be read again: %s", subject, error)


# The leadership, from the takeover to the end of the lease.

_CHECK_S: Final = 0.05
_CANCEL_S: Final = 0.5
_HANDOVER_POLL_S: Final = 0.5
"""How often to poll for a handover request, where requests cost nothing."""


_TRIGGER_S, _FREQUENT_S = 1.0, 0.2


def trigger_s(config: Config, *, frequent: bool) -> float:
    """Return the least seconds between two batches of an output."""
    if config.pipeline.trigger_ms is not None:
        return config.pipeline.trigger_ms / 1000
    paid = is_url(event_log_path(config)) or pays_per_request(config.state.location)
    return _FREQUENT_S if frequent and not paid else _TRIGGER_S


_sessions: set[PipelineSession] = set()
"""The sessions of this process, which share Spark's context."""


class PipelineSession:
    """A `tidelog.capture.leadership.LeaderSession` that delivers to the outputs.

    Args:
        config: the configuration of the pipeline.
        spark: the session that runs the queries.
        state: the state store, for the leader's document; the caller closes it.
        holder: the id of this process.
        keeper: the keeper of the lease.
        handover_requested: returns True once an operator asked this leader to give up the lease.
        file: the lease file that tasks read.
        once: whether to deliver what the log has now, and end.
        ends_when_all_stop: whether to end once all outputs have stopped; else they are retried.
        alone: whether nobody else runs jobs in ``spark``.
        on_status: called with batches, and with outputs that stop and resume.
    """

    def __init__(
        self,
        *,
        config: Config,
        spark: SparkSession,
        state: StateStore,
        holder: str,
        keeper: LeaseKeeper,
        handover_requested: Callable[[], bool],
        file: LeaseFile,
        once: bool,
        ends_when_all_stop: bool,
        on_status: OnStatus,
        alone: bool,
    ) -> None:
        self._config = config
        self._spark = spark
        self._keeper = keeper
        self._handover_requested = handover_requested
        self._file = file
        self._once = once
        self._ends_when_all_stop = ends_when_all_stop
        self._alone = alone
        settings = {name: str(value) for name, value in config.pipeline.conf.items()}
        here = alone and not once and not is_remote(spark)
        self._archive = ClassArchive(settings) if here else None
        self._archived = False
        self._report = _StatusReport(on_status)
        self._lost: LeaseLostError | None = None
        epoch, name = keeper.lease.epoch, config.pipeline.name
        leader = Leader(holder, epoch, config.capture.zone, unix_ms())
        self._pause = PipelinePause(state, name, poll_interval_s(config.state.location))
        self._fenced_state = led = fenced(state, pipeline_lease_name(name), epoch)
        led.put(PIPELINE_PREFIX + name, asdict(leader), None)
        self._misplaced = misplaced_outputs(config)
        fence = file.fence(epoch, event_log_path(config), name)
        self._lease = WriteLease(epoch, keeper.check, fence)
        self._outputs = make_outputs(config, spark, self._lease, self._misplaced)
        _sessions.add(self)

    def run(self, stop: threading.Event) -> bool:
        """Deliver until ``stop``, or, with ``once``, until everything is delivered. Raises
        LeaseLostError, after all queries have ended without waiting for their batches.
        """
        config, path = self._config, event_log_path(self._config)
        log = EventLog.open(path)
        copies = [output.name for output in self._outputs if _is_keyed(output)]
        checked = check_result_of(config, log)
        backfill = Backfill(config, log, copies)
        backfill.request()
        ending, lost, done = threading.Event(), threading.Event(), threading.Event()
        threads = [
            threading.Thread(
                target=self._watch, args=(stop, ending, lost, done), name="tidelog-pipeline-lease"
            )
        ]
        if not self._once:
            threads.append(
                threading.Thread(
                    target=self._listen, args=(ending, done), name="tidelog-pipeline-handover"
                )
            )
        pause_watch = threading.Thread(
            target=self._pause.watch, args=(done,), name="tidelog-pipeline-pause", daemon=True
        )
        for thread in (*threads, pause_watch):
            thread.start()
        try:
            run_output_loops(
                self._spark,
                path,
                self._outputs,
                LoopOptions(
                    once=self._once,
                    max_batch_bytes=config.pipeline.batch_bytes,
                    trigger_s=trigger_s(config, frequent=False),
                    frequent_s=trigger_s(config, frequent=True),
                    lost=lost,
                    # A run without waiting has begun: a pause holds for the next one.
                    is_paused=lambda: not self._once and self._pause.now,
                    ask=partial(request_dumps, config),
                    captured=partial(captured_tables, self._fenced_state),
                    ask_for_rows=FilteredRows(config, self._spark, log),
                ),
                name=config.pipeline.name,
                consumers=pipeline_consumers(config, log),
                on_progress=self._delivered,
                stop=ending,
                destinations={
                    output: its
                    for output, its in destinations(config).items()
                    if output not in self._misplaced
                },
                on_state=self._report.changed,
                resume_offset=backfill.resume_offset,
                lease=self._lease,
                ends_when_all_stop=self._ends_when_all_stop,
            )
        except TidelogError:
            if self._lost is None:  # else an output had stopped before: stand by
                raise
        finally:
            done.set()
            for thread in threads:
                thread.join()
            pause_watch.join(_CANCEL_S)
        if self._lost is not None:
            raise self._lost
        if (failure := start_failure(self._spark)) is not None:
            raise failure
        if self._once and not ending.is_set():
            record_delivered(self._fenced_state, config.pipeline.name, checked)
        return self._once

    def close(self) -> None:
        _sessions.discard(self)
        if self._archive is not None:
            self._archive.close()
        self._file.end()
        cancel_own_tasks(self._spark)
        for output in self._outputs:
            output.close()

    def _delivered(self, progress: BatchProgress) -> None:
        self._report.batch(progress)
        if self._archive is not None and not self._archived and is_open(self._spark):
            self._archived = True
            self._archive.make()

    def _watch(
        self,
        stop: threading.Event,
        ending: threading.Event,
        lost: threading.Event,
        done: threading.Event,
    ) -> None:
        """Watch the lease: set ``ending`` on ``stop``; once it may be lost, cancel all jobs."""
        while not done.wait(_CHECK_S):
            if stop.is_set() or start_failure(self._spark) is not None:
                ending.set()
            try:
                self._keeper.check()
            except LeaseLostError as error:
                self._lost = error
                break
        if self._lost is None:
            return
        lost.set()
        ending.set()
        while not done.is_set():  # a query may be about to start a job
            if self._alone and len(_sessions) == 1:
                cancel_jobs(self._spark)
            else:
                cancel_own_tasks(self._spark)
            done.wait(_CANCEL_S)  # other jobs end when their tasks next check the lease

    def _listen(self, ending: threading.Event, done: threading.Event) -> None:
        """Poll for a handover request, and then set ``ending``. Not in `_watch`: the state store
        may be slow to answer.
        """
        every_s = poll_interval_s(self._config.state.location) or _HANDOVER_POLL_S
        while not done.wait(every_s):
            with suppress(StateError):  # it is polled again
                if self._handover_requested():
                    end_later(ending.set, self._keeper.announce)


class _StatusReport:
    """Reports the progress of the pipeline."""

    def __init__(self, on_status: OnStatus) -> None:
        self._on_status = on_status
        self._totals: dict[str, int] = {}
        self._stopped: dict[str, str] = {}

    def changed(self, output: str, error: BaseException | None) -> None:
        self._stopped.pop(output, None)
        if error is not None:
            text = str(error) if isinstance(error, TidelogError) else "internal error"
            self._stopped[output] = text
        state = "stopped" if error else "following"
        self._on_status({"output": output, "state": state, **self._stopped_outputs()})

    def batch(self, progress: BatchProgress) -> None:
        total = self._totals.get(progress.output, 0) + progress.rows
        self._totals[progress.output] = total
        self._on_status(
            {
                "batch": progress.number,
                "output": progress.output,
                "offset": progress.end,
                "rows": progress.rows,
                "total_rows": total,
                "rows_per_s": progress.rows / max(progress.seconds, 1e-9),
                **self._stopped_outputs(),
            }
        )

    def _stopped_outputs(self) -> dict[str, Any]:
        return {"stopped": dict(self._stopped)} if self._stopped else {}
