"""One output's streaming query over the shape ``segments``: from the event log to the output."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import (
    AccessRefusedError,
    OutputBusyError,
    OutputError,
    Policy,
    TidelogError,
    UsageError,
)
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Output, OutputBatch, RejectingOutput
from tidelog.spark.changes.batches import output_batch, rest_of
from tidelog.spark.datasource.options import READER, RESUME
from tidelog.spark.failures import QueryFailedError, known_failure, output_failed, query_failed
from tidelog.spark.queries.progress import QueryProgress, UnderWay
from tidelog.spark.queries.starts import StartTurn, spread
from tidelog.spark.sessions.versions import STREAMS_ARE_LIMITED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_TWO_DRIVERS = "CONCURRENT_STREAM_LOG_UPDATE"  # Spark's error class

_WAIT_S = 0.2
_STOPPING_S = 0.5
_FINISH_S = 30.0
LONG_S = 10.0
"""How long a batch is under way before it is reported."""
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_RETRIES_ONCE, _RETRIES_BUSY = 3, 10


@dataclass(frozen=True)
class StreamOptions:
    """See `tidelog.spark.queries.run.run_pipeline`."""

    once: bool
    max_batch_bytes: int
    trigger_s: float
    on_progress: Callable[[QueryProgress], None] | None
    on_failure: Callable[[str, TidelogError], None]
    lost: threading.Event = field(default_factory=threading.Event)
    is_paused: Callable[[], bool] = lambda: False
    on_long_batch: Callable[[str, UnderWay | None], None] = lambda _output, _batch: None
    """Told of an output's batch that takes long, and None when that has ended."""
    check_offsets: Callable[[Output], None] = lambda _output: None
    ask: Callable[[str, Sequence[str]], None] = lambda _output, _tables: None
    """Asks for dumps of tables that an output lacks."""
    ask_for_rows: Callable[[Output, OutputBatch], None] = lambda _output, _batch: None
    """Asks, before a batch is written, for the rows that its records do not tell in full."""


class OutputStream:
    """Brings the log over to one output, and tries again what may pass.

    Args:
        spark: any session.
        log: the event log, at ``log_path``.
        output: gets every batch.
        checkpoint: directory of the query's checkpoint.
        name: of the query.
        released: called with an offset: Spark will not plan what is before it again.
        done: everything before it was brought over in earlier runs.
        options: of all outputs.
        resume: what lies before it, the output goes without: dumps make it good.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: EventLog,
        log_path: str,
        output: Output,
        checkpoint: str,
        name: str,
        released: Callable[[int], None],
        done: int,
        options: StreamOptions,
        resume: int = 0,
    ) -> None:
        self.output = output
        self._spark = spark
        self._log_path = log_path
        self._checkpoint = checkpoint
        self._options = options
        self._resume = resume
        self._prepared = False
        self._log = log
        self._loop = _Loop(log, output, released, name, options, done, resume)

    @property
    def name(self) -> str:
        """The output's."""
        return self.output.name

    @property
    def done(self) -> int:
        """The offset below which everything was brought over."""
        return self._loop.done

    def prepare(self) -> None:
        """Check the output. What may pass is passed over: `run` prepares it again."""
        try:
            self._prepare()
        except AccessRefusedError as error:  # whoever starts ends by it
            raise UsageError(str(error)) from error
        except TidelogError as error:
            if error.policy is not Policy.RETRY:
                raise
            self._options.on_failure(self.output.name, error)
            logger.warning("output %s is not ready: %s", self.output.name, error)

    def _prepare(self) -> None:
        if self._prepared:
            return
        try:
            self.output.prepare(self._log.generation)
            self._options.check_offsets(self.output)
            if isinstance(self.output, RejectingOutput):
                self.output.take_again(partial(self._options.ask, self.output.name))
        except AccessRefusedError as error:
            raise AccessRefusedError(f"output {self.output.name}: {error}") from error
        except TidelogError:
            raise
        except Exception as error:
            found = known_failure(error)
            if found is None:
                raise
            raise type(found)(f"output {self.output.name}: {found}") from error
        self._prepared = True

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set or, with ``once``, everything is there that was in the log.

        Raises the TidelogError that ended it, once it was retried as often as `_retries` says.
        """
        wait_s, failures = _FIRST_RETRY_S, 0
        while not stop.is_set():
            before = self._loop.done
            try:
                self._prepare()
                self._query(stop)
                break
            except TidelogError as error:
                if stop.wait(_STOPPING_S):  # whoever ends a service ends Spark's workers as well
                    logger.info("output %s stopped amid a batch: %s", self.output.name, error)
                    break
                if self._loop.done > before:
                    wait_s, failures = _FIRST_RETRY_S, 0
                failures += 1
                if failures > self._retries(error):
                    self._prepared = False  # whoever tries again wants it checked again
                    raise
                self._options.on_failure(self.output.name, error)
                logger.warning("the pipeline tries again in %.0f s: %s", wait_s, error)
                stop.wait(spread(wait_s))
                wait_s = min(2 * wait_s, _LAST_RETRY_S)

    def _retries(self, error: TidelogError) -> float:
        """How often what fails with it is tried again; what Spark fails with may pass."""
        if isinstance(error, QueryFailedError):
            return _RETRIES_ONCE
        if error.policy is not Policy.RETRY:
            return 0
        if not self._options.once:
            return math.inf
        return _RETRIES_BUSY if isinstance(error, OutputBusyError) else _RETRIES_ONCE

    def _query(self, stop: threading.Event) -> None:
        """Raises what ended it."""
        loop = self._loop
        loop.failure = None
        try:
            with StartTurn(stop) as loop.turn:
                self._start(stop)
        except TidelogError:
            raise
        except Exception as error:
            raise loop.explain(error) from error

    def _start(self, stop: threading.Event) -> None:
        once, loop = self._options.once, self._loop
        loop.stop = stop
        reader = self._spark.readStream.format("tidelog").option("shape", "segments")
        reader = reader.option("path", self._log_path)
        reader = reader.option(READER, f"output {self.output.name}")
        if self._resume:
            reader = reader.option(RESUME, str(self._resume))
        reader = reader.option("maxBytesPerTrigger", str(self._options.max_batch_bytes))
        writer = reader.load().writeStream.foreachBatch(loop.batch)
        writer = writer.option("checkpointLocation", self._checkpoint).queryName(loop.name)
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            pause_ms = int(self._options.trigger_s * 1000)
            writer = writer.trigger(processingTime=f"{pause_ms} milliseconds")
        until = loop.latest_offset()
        while True:
            loop.batch_end = until
            _await(writer.start(), loop, stop, self._options.lost)
            # Spark 4.1 ends "once" after one batch.
            if STREAMS_ARE_LIMITED or not once or stop.is_set() or loop.batch_end >= until:
                return


def _await(
    query: StreamingQuery, loop: _Loop, stop: threading.Event, lost: threading.Event
) -> None:
    """Until it ends, or ``stop`` is set: then the batch under way is finished, unless ``lost`` is
    set too. Raises what ended it.
    """
    loop.failure = None
    try:
        while query.isActive and not stop.is_set():
            query.awaitTermination(_WAIT_S)  # type: ignore[arg-type]  # takes a float
            loop.turn.release_if_started(query)
            loop.release(query)
            loop.tell_if_long()
    except Exception as error:
        raise loop.explain(error) from error
    finally:
        if query.isActive:
            if loop.finish_batch(lost):
                loop.wait_for_commit(query)
            query.stop()
        loop.release(query)
    ended_by = query.exception()
    if ended_by is not None and not stop.is_set():
        raise loop.explain(ended_by) from ended_by


class _Loop:
    """Spark calls `batch` for every micro-batch, in order."""

    def __init__(
        self,
        log: EventLog,
        output: Output,
        released: Callable[[int], None],
        name: str,
        options: StreamOptions,
        done: int,
        resume: int = 0,
    ) -> None:
        self.name = name
        self.stop = threading.Event()  # of the query that runs
        self.turn = StartTurn(self.stop)
        self.done = done
        self._resume = resume
        self.batch_end = 0  # of the newest batch
        self.batch_id = -1
        self._released = done
        self.failure: TidelogError | None = None
        self._log = log
        self._output = output
        self._when_released = released
        self._on_progress = options.on_progress
        self._is_paused = options.is_paused
        self._on_long_batch = options.on_long_batch
        self._ask_for_rows = options.ask_for_rows
        self._asked = 0  # below this offset
        self._under_way: UnderWay | None = None
        self._is_told = False
        self._idle = threading.Event()
        self._idle.set()

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch to the output."""
        self._wait_while_paused()
        self._idle.clear()
        try:
            self._write(frame, batch_id)
        except Exception as error:
            self.failure = known_failure(error) or output_failed("a batch", error)
            raise
        finally:
            self._under_way = None
            if self._is_told:
                self._is_told = False
                self._on_long_batch(self._output.name, None)
            self._idle.set()

    def tell_if_long(self) -> None:
        """Report each long batch once. Called from another thread than the batch's."""
        found = self._under_way
        if found and time.monotonic() - found.begun >= LONG_S:
            self._under_way, self._is_told = None, True
            self._on_long_batch(self._output.name, found)

    def _wait_while_paused(self) -> None:
        """A batch that is planned is written once the pipeline goes on. It must not seem to be
        done: if the query is to end before, it fails, so that Spark plans it again.
        """
        while self._is_paused():
            if self.stop.wait(_WAIT_S):
                raise OutputError("the pipeline ends while it is paused")

    def latest_offset(self) -> int:
        return self._log.latest_offset()

    def explain(self, error: Exception) -> TidelogError:
        """What ended the query. Spark's own message may hold values of rows: it stays the cause."""
        found = self.failure or known_failure(error)
        if found is None and _TWO_DRIVERS in str(error):
            return OutputError(
                "another process wrote to the pipeline's checkpoint, as a former leader may that "
                "was frozen"
            )
        return found or query_failed(error)

    def finish_batch(self, lost: threading.Event) -> bool:
        """Is the batch under way done? Waits until ``lost``, as Spark would repeat its commit."""
        deadline = time.monotonic() + _FINISH_S
        while not lost.is_set() and time.monotonic() < deadline:
            if self._idle.wait(_WAIT_S):
                return True
        return False

    def release(self, query: StreamingQuery) -> None:
        """Let retention have what Spark will not plan again: its checkpoint has the batch."""
        done = self.done  # first: a batch that begins now is not committed
        if done > self._released and self._committed(query):
            self._released = done
            self._when_released(done)

    def wait_for_commit(self, query: StreamingQuery) -> None:
        """Spark notes that a batch is done after `batch` has returned."""
        deadline = time.monotonic() + 10
        while query.isActive and not self._committed(query) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _committed(self, query: StreamingQuery) -> bool:
        last = query.lastProgress
        if self.batch_id < 0 or last is None:
            return self.batch_id < 0
        # An idle query reports the number of the batch that comes next.
        ran = "addBatch" in last["durationMs"]
        return bool(last["batchId"] >= self.batch_id + (not ran))

    def _rejected(self) -> tuple[int, Mapping[str, str]]:
        """Records, and tables."""
        if not isinstance(self._output, RejectingOutput):
            return 0, {}
        return self._output.rejected(), self._output.refused_tables()

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        self.batch_id = batch_id
        started = time.monotonic()
        rows = frame.collect()
        if not rows:
            return
        batch = replace(output_batch(self._log, rows), resume=self._resume)
        records = sum(each.rows for each in batch.tables)
        self._under_way = UnderWay(started, time.time_ns() // 1_000_000, records)
        if batch.end > self._asked:  # it may come again
            self._ask_for_rows(self._output, batch)
            self._asked = batch.end
        self._output.write(batch)
        self.batch_end = batch.end
        # Spark runs a batch again whose end it could not note: it was told of before.
        before = self.done
        told = batch.end <= before
        self.done = max(self.done, batch.end)
        if self._on_progress is not None and not told:
            counted = batch
            if batch.start < before:  # cut otherwise than before: that part was told of
                counted = rest_of(self._log, before, batch.end)
            by_table = {str(each.table): each.rows for each in counted.tables}
            self._on_progress(
                QueryProgress(
                    batch_id,
                    counted.start,
                    batch.end,
                    sum(by_table.values()),
                    by_table,
                    time.monotonic() - started,
                    self._output.name,
                    *self._rejected(),
                )
            )
