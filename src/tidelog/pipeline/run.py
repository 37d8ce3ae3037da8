"""The pipeline: a streaming query over the shape ``segments`` for each output.

Outputs go on one by one: what one of them can't take now, or is slow with, holds up no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.reader import EventLog
from tidelog.pipeline.batches import DUMP_COMPLETED as DUMP_COMPLETED
from tidelog.pipeline.output_stream import OutputStream, StreamOptions
from tidelog.pipeline.output_stream import Progress as Progress
from tidelog.pipeline.source import register
from tidelog.ports import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Payload bytes of a batch. A MERGE costs mostly by the keys it touches, so larger batches cost
# less a row; executors fold a batch in blocks, so its size is not what they need in memory.
MAX_BATCH_BYTES = 512 << 20


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
    destinations: Mapping[str, Destination] | None = None,
) -> int:
    """Bring the event log over to ``outputs``, until ``stop`` is set or, with ``once``, until
    everything is there that was in the log when it started.

    Each output is at a place of its own. One that is new begins where the log begins; one that
    fails is tried again by itself, and one that can't go on ends alone: the others go on, and what
    ended it is raised when they have ended.

    Args:
        spark: any session; Delta outputs need one with Delta.
        log_path: the event log's directory.
        outputs: each gets every batch.
        checkpoint: directory of Spark's checkpoints, one for each output's name. It may be lost:
            outputs know what they have.
        once: stop when caught up.
        name: registers the pipeline as a consumer of the log, so that retention waits for it.
        on_progress: called after each batch of each output, one call at a time.
        stop: ends the run after the batches under way.
        max_batch_bytes: payload bytes of a batch.
        trigger_s: least time between the starts of two batches of an output.
        destinations: by output's name, where it writes: kept for other pipelines to see.

    Returns the offset below which everything was brought over.

    Raises the TidelogError that stopped it, before anything is begun if an output can't be used.
    """
    log = EventLog.open(log_path)
    register(spark)
    stop = stop or threading.Event()
    book = _Book(log, name, [output.name for output in outputs], destinations or {})
    options = StreamOptions(once, max_batch_bytes, trigger_s, _one_at_a_time(on_progress))
    streams = [
        OutputStream(
            spark,
            log,
            log_path,
            output,
            f"{checkpoint.rstrip('/')}/{output.name}",
            name if len(outputs) == 1 else f"{name}/{output.name}",
            book.mover(output.name),
            book.offsets[output.name],
            options,
        )
        for output in outputs
    ]
    for stream in streams:
        stream.prepare()
    _run_all(streams, stop)
    return min(stream.done for stream in streams)


def _run_all(streams: Sequence[OutputStream], stop: threading.Event) -> None:
    if len(streams) == 1:
        streams[0].run(stop)
        return
    failures: list[BaseException] = []
    with ThreadPoolExecutor(len(streams), thread_name_prefix="output") as pool:
        running = {pool.submit(stream.run, stop): stream for stream in streams}
        try:
            for future in as_completed(running):
                error = future.exception()
                if error is None:
                    continue
                failures.append(error)
                if len(failures) < len(streams):
                    name = running[future].output.name
                    logger.error("output %s has stopped, the others go on: %s", name, error)
        except BaseException:
            stop.set()  # before the pool waits for them
            raise
    if failures:
        raise failures[0]


def _one_at_a_time(
    report: Callable[[Progress], None] | None,
) -> Callable[[Progress], None] | None:
    if report is None:
        return None
    lock = threading.Lock()

    def locked(progress: Progress) -> None:
        with lock:
            report(progress)

    return locked


class _Book:
    """How far each output is, for retention and for whoever waits for it."""

    def __init__(
        self,
        log: EventLog,
        name: str,
        outputs: Sequence[str],
        destinations: Mapping[str, Destination],
    ) -> None:
        self._destinations = dict(destinations)
        self._consumers = Consumers(log.storage)
        self._name = name
        self._lock = threading.Lock()
        found = next((each for each in self._consumers.all() if each.name == name), None)
        known = {} if found is None else found.outputs
        self.offsets = {output: known.get(output, log.head_offset) for output in outputs}
        # A version before this one noted one place for all: they know what they have, and go
        # through the log once more, which must be there.
        self._register()

    def mover(self, output: str) -> Callable[[int], None]:
        def move(offset: int) -> None:
            with self._lock:
                self.offsets[output] = offset
                self._register()

        return move

    def _register(self) -> None:
        self._consumers.register(
            self._name, min(self.offsets.values()), self.offsets, self._destinations
        )
