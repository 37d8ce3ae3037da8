"""The pipeline's loop: one streaming query over the shape ``segments`` drives every output."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.errors import EventLogError, OutputError, Policy, TidelogError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.pipeline.failures import find_error
from tidelog.pipeline.source import register
from tidelog.pipeline.spark_versions import STREAMS_ARE_LIMITED
from tidelog.ports import DumpCompleted, Output, OutputBatch, TableRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

DUMP_COMPLETED = "dump-completed"  # type of the control record

# Payload bytes of a batch. A MERGE costs mostly by the keys it touches, so larger batches cost
# less a row; executors fold a batch in blocks, so its size is not what they need in memory.
MAX_BATCH_BYTES = 512 << 20

_WAIT_S = 0.2
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_RETRIES_ONCE = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """What a finished batch brought over."""

    batch_id: int
    start: int
    end: int
    rows: int
    rows_by_table: dict[str, int]
    seconds: float


def run_pipeline(
    spark: SparkSession,
    log_path: str,
    outputs: Sequence[Output],
    checkpoint: str,
    *,
    once: bool = False,
    name: str = "pipeline",
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    trigger_s: float = 0.0,
) -> int:
    """Bring the event log over to ``outputs``, until ``stop`` is set or, with ``once``, until
    everything is there that was in the log when it started.

    Args:
        spark: any session; Delta outputs need one with Delta.
        log_path: the event log's directory.
        outputs: each gets every batch, one after the other.
        checkpoint: directory of Spark's checkpoint. It may be lost: outputs know what they have.
        once: stop when caught up.
        name: registers the pipeline as a consumer of the log, so that retention waits for it.
        on_progress: called after each batch, from a thread of its own.
        stop: ends the run after the batch under way.
        max_batch_bytes: payload bytes of a batch.
        trigger_s: least time between the starts of two batches.

    Returns the offset below which everything was brought over.

    Raises the TidelogError that stopped it; errors whose policy is to retry are retried, for
    ever in a stream and three times with ``once``.
    """
    log = EventLog.open(log_path)
    register(spark)
    consumers = Consumers(log.storage)
    known = {consumer.name: consumer.offset for consumer in consumers.all()}
    if name not in known:
        consumers.register(name, log.head_offset)
    for output in outputs:
        output.prepare(log.generation)
    loop = _Loop(log, outputs, consumers, name, on_progress, known.get(name, log.head_offset))
    stop = stop or threading.Event()
    wait_s, failures = _FIRST_RETRY_S, 0
    while not stop.is_set():
        before = loop.done
        try:
            _run_query(spark, log_path, loop, checkpoint, once, stop, max_batch_bytes, trigger_s)
            break
        except TidelogError as error:
            if loop.done > before:
                wait_s, failures = _FIRST_RETRY_S, 0
            failures += 1
            if error.policy is not Policy.RETRY or (once and failures > _RETRIES_ONCE):
                raise
            logger.warning("the pipeline tries again in %.0f s: %s", wait_s, error)
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)
    return loop.done


def _run_query(
    spark: SparkSession,
    log_path: str,
    loop: _Loop,
    checkpoint: str,
    once: bool,
    stop: threading.Event,
    max_batch_bytes: int,
    trigger_s: float,
) -> None:
    reader = spark.readStream.format("tidelog").option("path", log_path).option("shape", "segments")
    reader = reader.option("maxBytesPerTrigger", str(max_batch_bytes))
    writer = reader.load().writeStream.foreachBatch(loop.batch)
    writer = writer.option("checkpointLocation", checkpoint).queryName(loop.name)
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(trigger_s * 1000)} milliseconds")
    until = loop.latest_offset()
    while True:
        loop.batch_end = until
        _await(writer.start(), loop, stop)
        # Spark 4.1 ends "once" after one batch.
        if STREAMS_ARE_LIMITED or not once or stop.is_set() or loop.batch_end >= until:
            return


def _await(query: StreamingQuery, loop: _Loop, stop: threading.Event) -> None:
    """Until it ends, or ``stop`` is set. Raises what ended it."""
    loop.failure = None
    try:
        while query.isActive and not stop.is_set():
            query.awaitTermination(_WAIT_S)  # type: ignore[arg-type]  # takes a float
            loop.release(query)
    except Exception as error:
        raise loop.explain(error) from error
    finally:
        if query.isActive:
            loop.finish_batch()
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
        outputs: Sequence[Output],
        consumers: Consumers,
        name: str,
        on_progress: Callable[[Progress], None] | None,
        done: int,
    ) -> None:
        self.name = name
        self.done = done
        self.batch_end = 0  # of the newest batch
        self.batch_id = -1
        self._released = done
        self.failure: TidelogError | None = None
        self._log = log
        self._outputs = outputs
        self._consumers = consumers
        self._on_progress = on_progress
        self._idle = threading.Event()
        self._idle.set()

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch to every output."""
        self._idle.clear()
        try:
            self._write(frame, batch_id)
        except TidelogError as error:
            self.failure = error
            raise
        except Exception as error:
            self.failure = find_error(str(error)) or OutputError(
                f"a batch failed with {type(error).__name__}; Spark's log has more"
            )
            raise
        finally:
            self._idle.set()

    def latest_offset(self) -> int:
        """Where the log ends."""
        return self._log.latest_offset()

    def explain(self, error: Exception) -> TidelogError:
        """What ended the query. Spark's own message may hold values of rows: it stays the cause."""
        found = self.failure or find_error(str(error))
        return found or EventLogError(
            f"the pipeline's query failed with {type(error).__name__}; Spark's log has more"
        )

    def finish_batch(self) -> None:
        """Wait for the batch under way: Spark stopped inside a commit would do it again."""
        self._idle.wait(30)

    def release(self, query: StreamingQuery) -> None:
        """Let retention have what Spark will not plan again: its checkpoint has the batch."""
        done = self.done  # first: a batch that begins now is not committed
        if done > self._released and self._committed(query):
            self._released = done
            self._consumers.register(self.name, done)

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

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        self.batch_id = batch_id
        started = time.monotonic()
        rows = frame.collect()
        if not rows:
            return
        batch = output_batch(self._log, rows)
        for output in self._outputs:
            output.write(batch)
        self.batch_end = batch.end
        self.done = max(self.done, batch.end)
        if self._on_progress is not None:
            by_table = {str(each.table): each.rows for each in batch.tables}
            self._on_progress(
                Progress(
                    batch_id,
                    batch.start,
                    batch.end,
                    sum(by_table.values()),
                    by_table,
                    time.monotonic() - started,
                )
            )


def output_batch(log: EventLog, rows: Sequence[Row | Mapping[str, Any]]) -> OutputBatch:
    """Rows of the shape ``segments`` as what outputs take."""
    totals: dict[TableName, list[Any]] = {}
    completed = []
    for row in rows:
        if row["table"] is None:
            done = _completed(row["control"], row["first"] + 1)
            completed += [] if done is None else [done]
            continue
        table = log.schemas.get(row["schema_ids"][0]).table
        total = totals.setdefault(table, [set(), 0, 0])
        total[0] |= set(row["schema_ids"])
        total[1] += row["rows"]
        total[2] += row["bytes"]
    return OutputBatch(
        generation=log.generation,
        start=min(row["first"] for row in rows),
        end=max(row["next"] for row in rows),
        tables=tuple(
            TableRange(table, frozenset(ids), count, size)
            for table, (ids, count, size) in sorted(totals.items())
        ),
        completed=tuple(completed),
    )


def _completed(control: str, finalized_until: int) -> DumpCompleted | None:
    record = json.loads(control)
    if record.get("type") != DUMP_COMPLETED:
        return None
    return DumpCompleted(
        record["dump_id"],
        record["table"],
        record["first_offset"],
        record["delete_absent"],
        finalized_until,
    )
