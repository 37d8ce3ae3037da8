"""One leadership of a pipeline: its queries, from the takeover to the end of the lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.app.dumps.keys import store_keys
from tidelog.app.elections import pipeline_lease_name
from tidelog.app.instances import PIPELINE_PREFIX
from tidelog.app.log_location import event_log_path
from tidelog.app.pipeline.backfill import request_backfill, request_dumps
from tidelog.app.pipeline.destinations import check_places, destinations
from tidelog.app.pipeline.idle_check import check_result_of, record_delivered
from tidelog.app.pipeline.outputs import make_outputs
from tidelog.app.pipeline.pause import PipelinePause
from tidelog.app.pipeline.progress import pipeline_consumers
from tidelog.app.remote_control import send_command
from tidelog.app.status_stream import OnStatus
from tidelog.capture.handover import end_later
from tidelog.capture.leadership import Leader, LeaseKeeper
from tidelog.codecs.wire_formats import source_spellings
from tidelog.config import Config
from tidelog.control.commands import ExecuteSnapshot, build
from tidelog.control.mailbox import new_id
from tidelog.errors import LeaseLostError, StateError, TidelogError, ValueRefusedError
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.executors.lease_file import LeaseFile
from tidelog.outputs.base.ranges import refs_of, schema_in, split_by_key
from tidelog.outputs.base.sections import SteppedSection
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.ports import Output, OutputBatch, StateStore, WriteLease
from tidelog.spark.changes.filtered_rows import rows_to_read_again
from tidelog.spark.delivery.run import BatchProgress, run_pipeline
from tidelog.spark.key_frames import keys_of_frame
from tidelog.spark.sessions.class_archive import ClassArchive
from tidelog.spark.sessions.errors import known_error
from tidelog.spark.transforms import Step, steps_of
from tidelog.state.opening import fenced, look_every_s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_COMMAND_TIMEOUT_S = 5.0


class FilteredRows:
    """Requests rows again that a filter can't judge by partial records.

    It is called with each batch before the write: the request is durable then, and its rows follow
    the batch.
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
        if output.name not in self._steps or not getattr(output, "keyed", False):
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
            table_of = getattr(output, "table_of", None)
            typed = schema if table_of is None else table_of(schema).schema
            try:
                with rows_to_read_again(self._spark, log, path, typed, refs, steps) as rows:
                    if rows is not None:
                        self._ask(output.name, schema, rows)
            except Exception as error:
                if not isinstance(known_error(error), ValueRefusedError):  # left out by the output
                    raise

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
        command = build(ExecuteSnapshot, data)
        error = send_command(self._config, command, timeout_s=_COMMAND_TIMEOUT_S)["error"]
        subject = f"output {output}: {count} rows of {schema.table} may pass its filter by records"
        if error is None:
            logger.info("%s that lack columns: they are read again (%s)", subject, data["dump_id"])
        else:
            logger.error("%s that lack columns, and can't be read again: %s", subject, error)


_CHECK_S: Final = 0.05
_CANCEL_S: Final = 0.5
_HANDOVER_POLL_S: Final = 0.5
"""How often to poll for a handover request, where requests cost nothing."""


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
        on_progress: called with batches, and with outputs that stop and resume.
    """

    def __init__(
        self,
        config: Config,
        spark: SparkSession,
        state: StateStore,
        holder: str,
        keeper: LeaseKeeper,
        handover_requested: Callable[[], bool],
        file: LeaseFile,
        *,
        once: bool,
        ends_when_all_stop: bool,
        on_progress: OnStatus,
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
        self._archive = ClassArchive(settings) if alone and not once else None
        self._has_delivered = False
        self._report = _Report(on_progress)
        self._lost: LeaseLostError | None = None
        epoch, name = keeper.lease.epoch, config.pipeline.name
        leader = Leader(holder, epoch, config.capture.zone, int(time.time() * 1000))
        self._pause = PipelinePause(state, name, look_every_s(config.state.place))
        self._fenced_state = led = fenced(state, pipeline_lease_name(name), epoch)
        led.put(PIPELINE_PREFIX + name, asdict(leader), None)
        check_places(config)
        fence = file.fence(epoch, event_log_path(config), name)
        self._lease = WriteLease(epoch, keeper.check, fence)
        self._outputs = make_outputs(config, spark, self._lease)
        _sessions.add(self)

    def run(self, stop: threading.Event) -> bool:
        """Deliver until ``stop``, or, with ``once``, until everything is delivered.

        Raises LeaseLostError, after all queries have ended without waiting for their batches.
        """
        config, path = self._config, event_log_path(self._config)
        log = EventLog.open(path)
        copies = [output.name for output in self._outputs if getattr(output, "keyed", False)]
        checked = check_result_of(config, log)
        resume = request_backfill(config, log, copies)
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
            run_pipeline(
                self._spark,
                path,
                self._outputs,
                once=self._once,
                name=config.pipeline.name,
                consumers=pipeline_consumers(config, log),
                on_progress=self._delivered,
                stop=ending,
                max_batch_bytes=config.pipeline.batch_bytes,
                trigger_s=config.pipeline.trigger_ms / 1000,
                destinations=destinations(config),
                on_state=self._report.changed,
                resume=resume,
                lease=self._lease,
                lost=lost,
                # A run without waiting has begun: a pause holds for the next one.
                is_paused=lambda: not self._once and self._pause.now,
                ask=partial(request_dumps, config),
                ask_for_rows=FilteredRows(config, self._spark, log),
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
        if self._once and not ending.is_set():
            record_delivered(self._fenced_state, config.pipeline.name, checked)
        return self._once

    def close(self) -> None:
        _sessions.discard(self)
        if self._archive is not None:
            self._archive.close()
        self._file.end()
        for output in self._outputs:
            output.close()

    def _delivered(self, progress: BatchProgress) -> None:
        self._report.batch(progress)
        first = bool(progress.rows) and not self._has_delivered
        self._has_delivered = self._has_delivered or first
        if first and self._archive is not None:
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
            if stop.is_set():
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
                self._spark.sparkContext.cancelAllJobs()
            done.wait(_CANCEL_S)  # other jobs end when their tasks next check the lease

    def _listen(self, ending: threading.Event, done: threading.Event) -> None:
        """Poll for a handover request, and then set ``ending``.

        Not in `_watch`: the state store may be slow to answer.
        """
        every_s = look_every_s(self._config.state.place) or _HANDOVER_POLL_S
        while not done.wait(every_s):
            with suppress(StateError):  # it is polled again
                if self._handover_requested():
                    end_later(ending.set, self._keeper.announce)


class _Report:
    """Reports the progress of the pipeline."""

    def __init__(self, on_progress: OnStatus) -> None:
        self._on_progress = on_progress
        self._totals: dict[str, int] = {}
        self._stopped: dict[str, str] = {}

    def changed(self, output: str, error: BaseException | None) -> None:
        self._stopped.pop(output, None)
        if error is not None:
            text = str(error) if isinstance(error, TidelogError) else "internal error"
            self._stopped[output] = text
        state = "stopped" if error else "following"
        self._on_progress({"output": output, "state": state, **self._stopped_outputs()})

    def batch(self, progress: BatchProgress) -> None:
        total = self._totals.get(progress.output, 0) + progress.rows
        self._totals[progress.output] = total
        self._on_progress(
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
