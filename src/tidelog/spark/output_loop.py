"""Delivers the event log to one output, batch by batch, in offset order."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from tidelog.errors import AccessRefusedError, OutputBusyError, Policy, TidelogError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import (
    BoundedOutput,
    CopyingOutput,
    MaintainedOutput,
    Output,
    OutputBatch,
    RegisteringOutput,
    RejectingOutput,
)
from tidelog.spark.datasource.partitions import check_start, whole_segments
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.sessions.errors import (
    Py4JNetworkError,
    SparkGoneError,
    known_error,
    output_error,
    spark_gone_error,
)
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

_POLL_S = 0.05
"""Seconds between two polls of the end of a log whose storage does not charge for them."""
_WAIT_S = 0.2
_STOPPING_S = 0.5
_FINISH_S = 30.0
"""Seconds that a batch may continue after the pipeline was asked to stop."""
LONG_S = 10.0
"""Seconds after which a batch is reported before its end."""
_RETRY_S = Backoff(first=1.0, longest=60.0)
_RETRIES_ONCE, _RETRIES_BUSY = 3, 10
_TAKE_AGAIN_S = 60.0
"""Seconds after which tables that are left out are tried again."""
# Payload bytes of a batch. The cost of an output depends mostly on the keys in a batch, so larger
# batches cost less per row; executors fold a batch in blocks, so its size does not determine their
# memory.
MAX_BATCH_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class LeftOutTables:
    """An output's tables that are left out (``refused``), have no key (``keyless``) or are not in
    its catalog (``unregistered``), and why; as in `tidelog.eventlog.consumers.DeliveryStats`.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    keyless: Mapping[str, str] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch that was delivered to ``output``: offsets ``[start, end)``.

    ``number`` counts the batches of this run. ``rejected``: records that the destination rejected,
    in all runs.
    """

    number: int
    start: int
    end: int
    rows: int
    rows_by_table: dict[str, int]
    seconds: float
    output: str = ""
    rejected: int = 0
    left_out: LeftOutTables = field(default_factory=LeftOutTables)


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that is being written."""

    begun: float  # monotonic
    begun_ms: int
    records: int


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of a pipeline's loops.

    Attributes:
        once: whether to stop when everything is delivered that was in the log at the start.
        max_batch_bytes: bytes of a batch: the payload, and `RECORD_BYTES` of each record.
        trigger_s: least seconds between the starts of two batches of an output.
        frequent_s: the same of an output with the attribute ``frequent``; where a batch takes more
            than half of it, twice that, at most ``trigger_s``.
        lost: set when the pipeline's lease has ended: no batch is waited for.
        is_paused: called before each batch, which waits while it returns True.
        ask: requests dumps of tables of which an output, by name, lacks rows: it left them out
            until now, or somebody dropped its copy.
        captured: returns the tables that capture captures now; None: not known.
        ask_for_rows: requests, before a batch is written, the rows that are incomplete in its
            records and that the output may need.
    """

    once: bool = False
    max_batch_bytes: int = MAX_BATCH_BYTES
    trigger_s: float = 0.0
    frequent_s: float = 0.0
    lost: threading.Event = field(default_factory=threading.Event)
    is_paused: Callable[[], bool] = lambda: False
    ask: Callable[[str, Sequence[str]], None] = lambda _output, _tables: None
    captured: Callable[[], Collection[str] | None] = lambda: None
    ask_for_rows: Callable[[Output, OutputBatch], None] = lambda _output, _batch: None


@dataclass(frozen=True, kw_only=True)
class LoopCallbacks:
    """What a loop reports, mostly with its output's name.

    Attributes:
        on_batch: called when a batch was delivered; stores the output's progress.
        on_failure: called with an error that is retried.
        on_long_batch: called with a batch that takes long, and with None when it has ended.
        on_up_to_date: called when there is nothing to deliver, after each start.
        on_tables: called with the left-out tables once those were tried again, or the unregistered
            ones have changed.
        check_offsets: raises OffsetAheadError if the destination is ahead of the log.
    """

    on_batch: Callable[[BatchProgress], None]
    on_failure: Callable[[str, TidelogError], None]
    on_long_batch: Callable[[str, RunningBatch | None], None] = lambda _output, _batch: None
    on_up_to_date: Callable[[str], None] = lambda _output: None
    on_tables: Callable[[str, LeftOutTables], None] = lambda _output, _tables: None
    check_offsets: Callable[[Output], None] = lambda _output: None


class OutputLoop:
    """Delivers the log to one output and retries transient errors.

    Args:
        log: the event log.
        output: the output that receives every batch.
        done: the offset up to which earlier runs have delivered everything.
        options: the options of all outputs.
        callbacks: get what the loop reports.
        resume_offset: called with ``done`` before the output starts. The output skips everything
            before the offset that it returns: dumps repair it.
    """

    def __init__(
        self,
        log: EventLog,
        output: Output,
        done: int,
        options: LoopOptions,
        callbacks: LoopCallbacks,
        resume_offset: Callable[[int], int] | None = None,
    ) -> None:
        self.output = output
        self.done = done
        """Everything before this offset was delivered, or is left to dumps."""
        self._log = log
        self._options = options
        self._callbacks = callbacks
        self._resume_offset = resume_offset
        self._resume = 0
        self._prepared = False
        self._number = 0
        self._asked = 0  # rows of batches that end by this offset were requested
        self._unstored: BatchProgress | None = None  # delivered, but storing that failed
        self._under_way: RunningBatch | None = None
        self._tried = 0.0  # when tables that are left out were tried last
        self._unregistered: Mapping[str, str] = {}  # reported last
        self._refusal: Exception | None = None  # of `prepare`; `run` raises it

    @property
    def name(self) -> str:
        """The output's name."""
        return self.output.name

    def prepare(self, *, refuses: bool = False) -> None:
        """Check the output. A transient error is only reported: `run` checks again. Any other error
        is raised by `run`, so that the other outputs run; with ``refuses`` here, before any output
        writes.
        """
        try:
            self._prepare()
        except AccessRefusedError as error:  # at the start, credentials or a name are wrong
            self._refusal = UsageError(str(error))
        except Exception as error:  # noqa: BLE001 - also a mistake of ours is this output's alone
            if isinstance(error, TidelogError) and error.policy is Policy.RETRY:
                self._callbacks.on_failure(self.name, error)
                logger.warning("output %s is not ready: %s", self.name, error)
            else:
                self._refusal = error
        if refuses:
            self._raise_refusal()

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _prepare(self) -> None:
        if self._prepared:
            return
        try:
            self.output.prepare(self._log.generation)
            if self._resume_offset is not None:
                self._resume = max(self._resume, self._resume_offset(self.done))
                self.done = max(self.done, self._resume)
            self._callbacks.check_offsets(self.output)
            self._take_again()
            self._replace_dropped()
        except AccessRefusedError as error:
            raise AccessRefusedError(f"output {self.name}: {error}") from error
        except TidelogError:
            raise
        except Exception as error:
            found = known_error(error)
            if found is None:
                raise
            raise type(found)(f"output {self.name}: {found}") from error
        self._prepared = True

    def _take_again(self) -> None:
        """Try tables again that are left out: what was in the way may be gone."""
        self._tried = time.monotonic()
        if isinstance(self.output, RejectingOutput):
            self.output.take_again(partial(self._options.ask, self.name))
            self._report_tables()

    def _replace_dropped(self) -> None:
        """Have copies that somebody dropped created and dumped again: a reader would take one that
        has only the rows since then for the table.
        """
        if isinstance(self.output, CopyingOutput) and (tables := self._tables_before()):
            self.output.replace_dropped(tables, partial(self._options.ask, self.name))

    def _tables_before(self) -> set[str]:
        """Return the tables of which records were delivered before; all that capture captures, if
        retention has removed some of the log.
        """
        chain = self._log.chain()
        if self.done <= chain.head:
            return set()
        parts = chain.between(chain.head, self.done)
        tables = {name for part in parts if part.next <= self.done for name in part.rows_by_table}
        if chain.head > self._log.info.start_offset:
            tables |= {str(table) for table in self._log.schemas.tables()}
        captured = self._options.captured()
        return tables if captured is None else tables & set(captured)

    def _take_again_if_due(self) -> None:
        if time.monotonic() - self._tried < _TAKE_AGAIN_S:
            return
        if isinstance(self.output, RejectingOutput) and self.output.left_out_tables():
            self._take_again()

    def _report_tables(self) -> None:
        self._callbacks.on_tables(self.name, self._left_out())

    def _report_unregistered(self) -> None:
        """Report the tables that are not in the output's catalog, if others are: they are
        registered beside the batches.
        """
        if isinstance(self.output, RegisteringOutput):
            found = self.output.unregistered_tables()
            if found != self._unregistered:
                self._unregistered = found
                self._report_tables()

    def run(self, stop: threading.Event) -> None:
        """Deliver until ``stop`` is set or, with ``once``, until everything is delivered that was
        in the log.

        Raises the TidelogError that ended it, after as many retries as `_retries` returns.
        """
        failures = 0
        while not stop.is_set():
            before = self.done
            try:
                self._raise_refusal()
                self._prepare()
                self._deliver_watched(stop)
                break
            except TidelogError as error:
                if stop.wait(_STOPPING_S):  # a service that is stopped ends Spark's workers too
                    logger.info("output %s stopped during a batch: %s", self.name, error)
                    break
                failures = 1 if self.done > before else failures + 1
                if failures > self._retries(error):
                    self._prepared = False  # the next run checks the output again
                    raise
                self._callbacks.on_failure(self.name, error)
                wait_s = _RETRY_S.after(failures)
                logger.warning("the pipeline retries in %.0f s: %s", wait_s, error)
                stop.wait(_spread(wait_s))

    def _retries(self, error: TidelogError) -> float:
        """Return how many retries may follow ``error`` without a batch between them."""
        if isinstance(error, SparkGoneError):
            return _RETRIES_ONCE
        if error.policy is not Policy.RETRY:
            return 0
        if not self._options.once:
            return math.inf
        return _RETRIES_BUSY if isinstance(error, OutputBusyError) else _RETRIES_ONCE

    def _deliver_watched(self, stop: threading.Event) -> None:
        """Run `_deliver` in its own thread, so that a batch that hangs is reported, and abandoned
        if the lease is lost or it does not end in time. Raises the error that ended it.
        """
        ended_by: list[BaseException] = []
        abandoned = threading.Event()

        def deliver() -> None:
            try:
                self._deliver(stop, abandoned)
            except BaseException as error:  # noqa: BLE001 - raised below
                ended_by.append(error)

        thread = threading.Thread(target=deliver, name=f"deliver-{self.name}", daemon=True)
        thread.start()
        deadline = math.inf
        reported: RunningBatch | None = None
        while thread.is_alive():
            thread.join(_WAIT_S)
            reported = self._report_if_long(reported)
            if stop.is_set():
                deadline = min(deadline, time.monotonic() + _FINISH_S)
            if self._options.lost.is_set() or time.monotonic() > deadline:
                abandoned.set()
                return
        if ended_by:
            raise ended_by[0]

    def _report_if_long(self, reported: RunningBatch | None) -> RunningBatch | None:
        """Report once a batch that takes long, and its end. Returns the batch that was reported."""
        found = self._under_way
        if reported is not None and found is not reported:
            self._callbacks.on_long_batch(self.name, None)
            reported = None
        if found is None or found is reported or time.monotonic() - found.begun < LONG_S:
            return reported
        self._callbacks.on_long_batch(self.name, found)
        return found

    def _deliver(self, stop: threading.Event, abandoned: threading.Event) -> None:
        """Deliver batch after batch. Raises TidelogError."""
        options = self._options
        self._store(self._unstored)
        reported = False
        until = self._log.latest_offset() if options.once else None
        while not stop.is_set():
            begun = time.monotonic()
            end = None
            if not options.is_paused():
                self._take_again_if_due()
                self._report_unregistered()
                end = self._next_end(until)
            if end is not None:
                self._write(end, abandoned)
                if not options.once:
                    stop.wait(self._pause_s(time.monotonic() - begun))
            elif until is not None and self.done >= until:
                if isinstance(self.output, MaintainedOutput):
                    self.output.finish(stop)
                self._report_unregistered()
                return
            else:
                if not (reported or options.is_paused()):
                    reported = True
                    self._callbacks.on_up_to_date(self.name)
                stop.wait(_POLL_S)

    def _pause_s(self, took_s: float) -> float:
        """Return how long to wait for the next batch after one that took ``took_s``."""
        apart_s = self._options.trigger_s
        if getattr(self.output, "frequent", False):
            apart_s = min(apart_s, max(self._options.frequent_s, 2 * took_s))
        return max(0.0, apart_s - took_s)

    def _next_end(self, until: int | None) -> int | None:
        """Return the end of the next batch; None: there is nothing to deliver. Raises
        OffsetGoneError, OffsetAheadError if the log does not continue at our offset.
        """
        start = self.done
        if until is None and not self._log.poll(start, _WAIT_S):
            return None
        end = self._log.latest_offset(after=start)
        check_start(self._log, start, f"output {self.name}")
        if until is not None:
            end = min(end, until)
        if end <= start:
            return None
        found = whole_segments(self._log, start, end, self._options.max_batch_bytes)
        if isinstance(self.output, BoundedOutput):
            return self.output.end_of_batch(start, found)
        return found

    def _write(self, end: int, abandoned: threading.Event) -> None:
        started = time.monotonic()
        batch = replace(batch_of(self._log, self.done, end), resume=self._resume)
        by_table = {str(each.table): each.rows for each in batch.tables}
        rows = sum(by_table.values())
        self._under_way = RunningBatch(started, unix_ms(), rows)
        try:
            if end > self._asked:  # a failed batch is written again
                self._options.ask_for_rows(self.output, batch)
                self._asked = end
            self.output.write(batch)
        except Exception as error:
            raise _error_to_raise(error) from error
        finally:
            self._under_way = None
        if abandoned.is_set():  # another process may deliver now
            return
        failpoints.hit(f"output.{self.name}.written")
        self._number += 1
        self.done = end
        seconds = time.monotonic() - started
        self._store(
            BatchProgress(
                number=self._number,
                start=batch.start,
                end=end,
                rows=rows,
                rows_by_table=by_table,
                seconds=seconds,
                output=self.name,
                rejected=self.output.rejected() if isinstance(self.output, RejectingOutput) else 0,
                left_out=self._left_out(),
            )
        )

    def _store(self, progress: BatchProgress | None) -> None:
        """Store the progress. If that fails, a later batch or the next run stores it."""
        self._unstored = progress
        if progress is not None:
            self._callbacks.on_batch(progress)
        self._unstored = None

    def _left_out(self) -> LeftOutTables:
        output = self.output
        missing = output.unregistered_tables() if isinstance(output, RegisteringOutput) else {}
        if not isinstance(output, RejectingOutput):
            return LeftOutTables(unregistered=dict(missing))
        captured = self._options.captured
        return LeftOutTables(
            captured_alone(output.left_out_tables(), captured),
            captured_alone(output.keyless_tables(), captured),
            dict(missing),
        )


def captured_alone(
    messages: Mapping[str, str], captured: Callable[[], Collection[str] | None]
) -> dict[str, str]:
    """Return ``messages``, by table, without those of tables that the source has no longer: what
    an output lacks of them never comes. ``captured``: see `LoopOptions`.
    """
    tables = None
    if messages:
        with suppress(TidelogError):  # the state store is away
            tables = captured()
    return {name: text for name, text in messages.items() if tables is None or name in tables}


def _error_to_raise(error: Exception) -> TidelogError:
    """Return the error to raise for a batch that failed. The message of Spark's own errors may
    contain values of rows: they are only its cause.
    """
    if (known := known_error(error)) is not None:
        return known
    if isinstance(error, ConnectionError | Py4JNetworkError):  # the JVM does not answer
        return spark_gone_error()
    return output_error("a batch", error)


def _spread(seconds: float) -> float:
    """Return about ``seconds``, so that outputs that failed together do not retry together."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - nothing is secret
