"""The pipeline: delivers the event log to each output, in its own loop.

Outputs do not wait for each other: one that fails or is slow delays no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidelog.errors import LeaseLostError, TableLeftOutError, TidelogError
from tidelog.eventlog.consumers import Consumers, DeliveryStats, Destination, OutputFailure
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.ports import Output, RejectingOutput, WriteLease
from tidelog.spark.datasource.segment_rows import DUMP_COMPLETED as DUMP_COMPLETED
from tidelog.spark.datasource.source import prepare_workers
from tidelog.spark.output_loop import BatchProgress as BatchProgress
from tidelog.spark.output_loop import (
    LeftOutTables,
    LoopCallbacks,
    OutputLoop,
    RunningBatch,
    captured_alone,
)
from tidelog.spark.output_loop import LoopOptions as LoopOptions
from tidelog.spark.sessions.errors import SparkGoneError
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# An error that is not transient needs an operator; after that the output continues without a
# restart, and soon: until then it is reported as stopped.
_RETRY_S = Backoff(first=15.0, longest=60.0)
_POLL_S = 0.2

OnState = Callable[[str, BaseException | None], None]


class Stream(Protocol):
    """The interface of `tidelog.spark.output_loop.OutputLoop`."""

    @property
    def name(self) -> str: ...

    def run(self, stop: threading.Event) -> None: ...


class OutputGroup:
    """Runs the streams of a pipeline.

    Args:
        on_state: called with an output's name and the error that stopped it, and with None once it
            runs again.
        once: whether no stopped stream is retried.
        ends_when_all_stop: whether the run ends once all streams have stopped, and raises the error
            of one that is stopped in the end; else each is retried until the run is stopped.
        retry_s: seconds until the first retry of a stopped stream, and the most seconds between
            retries.
    """

    def __init__(
        self,
        on_state: OnState,
        *,
        once: bool,
        ends_when_all_stop: bool = True,
        retry_s: Backoff = _RETRY_S,
    ) -> None:
        self._on_state = on_state
        self._once = once
        self._ends_when_all_stop = ends_when_all_stop or once
        self._retry_s = retry_s
        self._stopped: dict[str, BaseException] = {}
        self._waiting: set[str] = set()  # those of them that are not being retried now
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended_by: TidelogError | None = None

    def runs(self, name: str) -> None:
        """Report that a batch was delivered to the output, or that it has nothing to deliver: if it
        had stopped, it runs again.
        """
        with self._lock:
            if self._stopped.pop(name, None) is None:
                return
        logger.warning("output %s runs again", name)
        self._on_state(name, None)

    def run(self, streams: Sequence[Stream], stop: threading.Event) -> None:
        """Run until all streams have ended. Raises the error that ended them or, with
        ``ends_when_all_stop``, that of the first stopped one.
        """
        if len(streams) == 1 and self._ends_when_all_stop:
            try:
                streams[0].run(stop)
            except TidelogError as error:
                self._on_state(streams[0].name, error)
                raise
            return
        with ThreadPoolExecutor(len(streams), thread_name_prefix="output") as pool:
            running = [pool.submit(self._run, each, len(streams), stop) for each in streams]
            try:
                for future in running:
                    future.result()
            except BaseException:
                self._ended.set()
                stop.set()  # before the pool waits for them
                raise
        if self._ended_by is not None:
            raise self._ended_by
        if self._ends_when_all_stop:
            for stopped in self._stopped.values():
                raise stopped

    def _run(self, stream: Stream, of: int, stop: threading.Event) -> None:
        failures = 0
        while True:
            try:
                stream.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised when all have ended
                with self._lock:
                    before = stream.name in self._stopped
                    self._stopped.pop(stream.name, None)
                    self._stopped[stream.name] = error
                    self._waiting.add(stream.name)
                    all_stopped = len(self._waiting) == of
                failures = failures + 1 if before else 1
                wait_s = self._retry_s.after(failures)
                self._on_state(stream.name, error)
                over = all_stopped and self._ends_when_all_stop
                if over:
                    self._ended.set()
                if isinstance(error, LeaseLostError | SparkGoneError):  # applies to all of them
                    self._ended_by = error
                    self._ended.set()
                    stop.set()
                retried = TidelogError if self._ends_when_all_stop else Exception
                ends = self._once or not isinstance(error, retried)
                if not over:
                    others = "" if all_stopped else ", the others continue"
                    again = "" if ends else f"; it is retried in {wait_s:.0f} s"
                    logger.error("output %s has stopped%s: %s%s", stream.name, others, error, again)
                if ends or self._ends_within(wait_s, stop):
                    return
                with self._lock:
                    self._waiting.discard(stream.name)
            else:
                return

    def _ends_within(self, wait_s: float, stop: threading.Event) -> bool:
        """Wait until the time is over or the run ends. Returns True if it ends."""
        for _ in range(max(1, round(wait_s / _POLL_S))):
            if self._ended.is_set() or stop.wait(_POLL_S):
                return True
        return self._ended.is_set()


def run_output_loops(
    spark: SparkSession,
    log_path: str,
    outputs: Sequence[Output],
    options: LoopOptions | None = None,
    *,
    name: str = "pipeline",
    consumers: Consumers | None = None,
    on_progress: Callable[[BatchProgress], None] | None = None,
    stop: threading.Event | None = None,
    destinations: Mapping[str, Destination] | None = None,
    on_state: OnState | None = None,
    resume_offset: Callable[[str, int], int] | None = None,
    lease: WriteLease | None = None,
    ends_when_all_stop: bool = True,
) -> int:
    """Deliver the event log to ``outputs``, until ``stop`` is set or, with ``options.once``, until
    everything is delivered that was in the log at the start.

    Each output has its own offset, which the log keeps (`tidelog.eventlog.consumers`). A new output
    starts at the log's head; one that fails is retried by itself. One that can't continue stops
    alone: it is retried now and then, and its error is raised when the others have ended.

    Args:
        spark: any session.
        log_path: the event log's directory.
        outputs: outputs, each of which receives every batch.
        options: of each output's loop; whoever sets its ``lost`` also sets ``stop``.
        name: name of the pipeline, a consumer of the log: retention waits for it. Outputs of a new
            name start at the log's head, and skip what their destination has.
        consumers: consumers of the log, if the caller keeps more of them than the log does.
        on_progress: called after each batch of each output, one call at a time.
        stop: ends the run after the current batches.
        destinations: destination of each output, by name; stored for other pipelines.
        on_state: called when an output has stopped, with its error, and when it runs again.
        resume_offset: called with an output's name and the offset up to which it has delivered,
            whenever it starts. Returns where it resumes if retention has removed the log there, as
            whole dumps repair the rows between; else 0. A TidelogError stops that output.
        lease: the pipeline's lease, without which it does not write.
        ends_when_all_stop: see `OutputGroup`.

    Returns the offset below which everything was delivered. Raises the TidelogError that ended it;
    with ``options.once`` and ``ends_when_all_stop`` also, before the first batch, the error of an
    output that can't be used.
    """
    log = EventLog.open(log_path)
    prepare_workers(spark)
    options = options or LoopOptions()
    progress_store = _ProgressStore(
        log,
        consumers or Consumers(log.storage),
        name,
        [output.name for output in outputs],
        destinations or {},
        lease,
    )

    def report_state(output: str, error: BaseException | None) -> None:
        progress_store.note(output, error)
        if on_state is not None:
            on_state(output, error)

    group = OutputGroup(report_state, once=options.once, ends_when_all_stop=ends_when_all_stop)

    def delivered(progress: BatchProgress) -> None:
        progress_store.delivered(progress)
        group.runs(progress.output)
        if on_progress is not None:
            on_progress(progress)

    callbacks = LoopCallbacks(
        on_batch=_one_at_a_time(delivered),
        on_failure=progress_store.failed,
        on_long_batch=progress_store.report_long_batch,
        on_up_to_date=group.runs,
        on_tables=progress_store.report_tables,
        check_offsets=partial(_check_offsets, log, destinations or {}),
    )
    loops = [
        OutputLoop(
            log,
            output,
            progress_store.offsets[output.name],
            options,
            callbacks,
            None if resume_offset is None else partial(resume_offset, output.name),
        )
        for output in outputs
    ]
    for loop in loops:
        loop.prepare(refuses=options.once and ends_when_all_stop)
    group.run(loops, stop or threading.Event())
    if options.once:
        _raise_if_left_out(outputs, options.captured)
    return min(loop.done for loop in loops)


def _one_at_a_time(report: Callable[[BatchProgress], None]) -> Callable[[BatchProgress], None]:
    lock = threading.Lock()

    def locked(progress: BatchProgress) -> None:
        with lock:
            report(progress)

    return locked


def _check_offsets(log: EventLog, destinations: Mapping[str, Destination], output: Output) -> None:
    """Raise OffsetAheadError if a destination is ahead of the log: new records would be skipped as
    already written.
    """
    known = destinations.get(output.name)
    if known is None:
        return
    tables = [table for table in log.schemas.tables() if matches(known.tables, table)]
    offsets: set[int] = set()
    for table in tables:
        with suppress(TableLeftOutError):  # its offset can't be read
            if (offset := output.committed(table)) is not None:
                offsets.add(offset)
    log.check_offsets(*sorted(offsets), who=f"output {output.name}")


def _raise_if_left_out(
    outputs: Sequence[Output], captured: Callable[[], Collection[str] | None]
) -> None:
    """Raise TableLeftOutError if tables were left out; the others were delivered."""
    rejecting = [each for each in outputs if isinstance(each, RejectingOutput)]
    left_out = [captured_alone(each.left_out_tables(), captured) for each in rejecting]
    found = [text for each in left_out for text in each.values()]
    if found:
        raise TableLeftOutError("; ".join(found))


class _ProgressStore:
    """Stores the progress of each output, for retention and for programs that wait for it."""

    def __init__(
        self,
        log: EventLog,
        consumers: Consumers,
        name: str,
        outputs: Sequence[str],
        destinations: Mapping[str, Destination],
        lease: WriteLease | None,
    ) -> None:
        self._lease = lease
        self._destinations = dict(destinations)
        self._consumers = consumers
        self._name = name
        self._lock = threading.Lock()
        found = self._consumers.find(name)
        known = {} if found is None else found.outputs
        self._stopped: dict[str, OutputFailure] = {}
        delivered = {} if found is None else found.delivered
        self._delivered = {
            output: replace(delivered.get(output, DeliveryStats()), begun_ms=None)
            for output in outputs
        }
        before = {} if found is None else {**found.former, **found.destinations}
        self._former = {
            output: each for output, each in before.items() if output not in destinations
        }
        self.offsets = {output: known.get(output, log.head_offset) for output in outputs}
        # Earlier versions stored one offset for all outputs: then outputs read the log once more,
        # which must still have it, and skip what their destinations have.
        self._register()

    def note(self, output: str, error: BaseException | None) -> None:
        """Store the error that stopped an output; None: it runs again."""
        with self._lock:
            self._stopped.pop(output, None)
            if error is not None:
                self._stopped[output] = self._failed(output, error)
            with suppress(TidelogError):  # the next batch stores it, and fails if it can't
                self._register()

    def failed(self, output: str, error: BaseException) -> None:
        """Store an error that is retried."""
        with self._lock:
            self._failed(output, error)
            with suppress(TidelogError):  # as above
                self._register()

    def report_long_batch(self, output: str, batch: RunningBatch | None) -> None:
        """Store that a batch takes long, for status displays; None: it has ended."""
        with self._lock:
            before = self._delivered[output]
            if batch is None:
                self._delivered[output] = replace(before, begun_ms=None)
                return  # stored with the next batch
            failed_ms = 0 if before.failure is None else before.failure.since_ms
            if max(before.committed_ms or 0, failed_ms) >= batch.begun_ms:
                return  # it has ended
            self._delivered[output] = replace(
                before, begun_ms=batch.begun_ms, begun_records=batch.records
            )
            with suppress(TidelogError):  # as above
                self._register()

    def report_tables(self, output: str, tables: LeftOutTables) -> None:
        """Store which tables are left out, have no key or are not registered, if it has changed:
        between batches.
        """
        with self._lock:
            before = self._delivered[output]
            now = replace(before, **asdict(tables))
            if now == before:
                return
            self._delivered[output] = now
            with suppress(TidelogError):  # as above
                self._register()

    def delivered(self, progress: BatchProgress) -> None:
        """Store that a batch was delivered, and the output's new offset. If that fails, it may be
        called again.
        """
        with self._lock:
            if self.offsets[progress.output] != progress.end:
                self.offsets[progress.output] = progress.end
                self._count(progress)
            self._register()

    def _count(self, progress: BatchProgress) -> None:
        now_ms, before = unix_ms(), self._delivered[progress.output]
        more = progress.rejected > before.rejected
        self._delivered[progress.output] = replace(
            before,
            records=progress.rows,
            batch_s=round(progress.seconds, 3),
            committed_ms=now_ms,
            rejected=progress.rejected,
            **asdict(progress.left_out),
            rejected_ms=now_ms if more else before.rejected_ms,
            batches=before.batches + 1,
            all_records=before.all_records + progress.rows,
            all_s=round(before.all_s + progress.seconds, 3),
            begun_ms=None,
        )

    def _failed(self, output: str, error: BaseException) -> OutputFailure:
        message = str(error) if isinstance(error, TidelogError) else "an internal error"
        found = OutputFailure(type(error).__name__, message, unix_ms())
        self._delivered[output] = replace(self._delivered[output], failure=found, begun_ms=None)
        return found

    def _register(self) -> None:
        if self._lease is not None:
            self._lease.check()
        self._consumers.register(
            self._name,
            min(self.offsets.values()),
            self.offsets,
            self._destinations,
            self._stopped,
            self._former,
            0 if self._lease is None else self._lease.epoch,
            self._delivered,
        )
