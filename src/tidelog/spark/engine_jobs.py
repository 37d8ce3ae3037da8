"""``record_processing_on: spark``: runs an engine's jobs on Spark's executors.

Each is a Spark job of one task. Events are sent as Arrow; Spark broadcasts what is larger than a
megabyte by itself.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tidelog.engine.events import Events
from tidelog.engine.options import StoppingError
from tidelog.engine.workers import EventWork, JobResult, answer_to, failed_answer, read_answer
from tidelog.errors import ConfigError, ConsumerError
from tidelog.spark.sessions.errors import describe_error

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.core.broadcast import Broadcast
    from pyspark.sql import SparkSession

_CANCELLED_S: Final = 10.0  # Spark ends a hanging Python worker after four seconds
_POLL_S: Final = 0.05
_MOST_WORKS: Final = 8


class SparkWorkers:
    """`tidelog.engine.workers.Workers` by Spark tasks, ``count`` at once.

    Args:
        session: returns the session, if none runs. It ends with the last engine that uses it.
        count: number of tasks.
        work: the work of each task.

    Raises:
        ConfigError: a part of the work can't be sent.
    """

    jobs_are_dear = True

    def __init__(self, session: Callable[[], SparkSession], count: int, work: EventWork) -> None:
        self._session, self._count = session, count
        self._consumes = work.consumer is not None
        self._pickled = _pickled(work)
        self._name = f"tidelog-engine-{uuid.uuid4()}"
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._context: SparkContext | None = None
        self._work: Broadcast[bytes] | None = None

    def open(self) -> None:
        context = _shared.take(self._session)
        self._context = context
        if self._consumes and context.getConf().get("spark.speculation", "false") == "true":
            raise ConfigError(
                "record_processing_on: spark with consume_records_async consumes events in Spark's "
                "tasks, and spark.speculation could run two at once: set it to false"
            )
        self._work = context.broadcast(self._pickled)

    def call(self, events: Events) -> JobResult:
        context, work = self._context, self._work
        assert context is not None
        assert work is not None
        job = _Job(self._name, work, pickle.dumps(events))
        with self._changed:
            if self._closed:
                raise StoppingError("spark")
            self._running += 1
        try:
            # The group is this thread's. Tasks are not interrupted: Spark forgets a Python worker
            # whose task was interrupted, and a hanging one would survive.
            context.setJobGroup(self._name, "events of an engine", interruptOnCancel=False)
            [answer] = context.parallelize([0], 1).map(job).collect()
        except Exception as error:
            if self._closed:
                raise StoppingError("spark") from error
            raise ConsumerError(
                f"Spark could not process records: {describe_error(error)}"
            ) from error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        return read_answer(answer)

    def close(self) -> None:
        context, self._context = self._context, None
        with self._changed:
            self._closed = True
        if context is None:
            return
        try:
            if not _is_stopped(context):
                self._cancel(context)
        finally:
            _shared.release(context)

    def _cancel(self, context: SparkContext) -> None:
        """Cancel the jobs and wait for executors: the next engine has the same events."""
        until = time.monotonic() + _CANCELLED_S
        with self._changed:
            cancelled = self._running > 0
            while self._running and time.monotonic() < until:
                # Again: a job may have been about to start.
                context.cancelJobGroup(self._name)
                self._changed.wait(_POLL_S)
        while cancelled and self._has_tasks(context) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _has_tasks(self, context: SparkContext) -> bool:
        tracker = context.statusTracker()
        jobs = sorted(tracker.getJobIdsForGroup(self._name))[-2 * self._count :]
        infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
        stages = [tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
        return any(stage is not None and stage.numActiveTasks for stage in stages)


class _Job:
    """The function of a task; `pickle` finds it by its name there."""

    def __init__(self, name: str, work: Broadcast[bytes], events: bytes) -> None:
        self._name, self._work, self._events = name, work, events

    def __call__(self, _nothing: int) -> bytes:
        work = _works.get(self._name)
        if work is None:
            try:
                work = pickle.loads(self._work.value)  # noqa: S301 - from the engine's process
            except ModuleNotFoundError as error:
                return failed_answer(_missing_module(error))
            except Exception as error:  # noqa: BLE001 - raised where the job comes from
                return failed_answer(error)
            while len(_works) >= _MOST_WORKS:  # of engines that ended long ago
                del _works[next(iter(_works))]
            _works[self._name] = work
        return answer_to(self._events, work)


_works: Final[dict[str, EventWork]] = {}
"""In a Python worker of Spark, which is reused from task to task: the work of each engine."""


class _SharedContext:
    """The Spark context of engines: the running one, or one that they start, and stop together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: SparkContext | None = None
        self._users = 0

    def take(self, session: Callable[[], SparkSession]) -> SparkContext:
        """Return the context. Raises ConfigError for Spark Connect, which has no executors to
        offer.
        """
        from pyspark import SparkContext

        with self._lock:
            context: SparkContext | None = SparkContext._active_spark_context
            if context is None:
                if os.environ.get("SPARK_REMOTE"):
                    raise ConfigError(
                        "record_processing_on: spark needs a classic Spark session, not one of "
                        "Spark Connect: unset SPARK_REMOTE"
                    )
                context = self._ours = session().sparkContext
                self._users = 0
            self._users += context is self._ours
            return context

    def release(self, context: SparkContext) -> None:
        with self._lock:
            if context is not self._ours:
                return
            self._users -= 1
            if not self._users:
                self._ours = None
                context.stop()


_shared: Final = _SharedContext()


def _is_stopped(context: Any) -> bool:
    """Return True if the program, or the end of the JVM, stopped the context."""
    if context._jsc is None:
        return True
    with suppress(Exception):  # Py4J's, if the Java process has ended
        return bool(context._jsc.sc().isStopped())
    return True


def _pickled(work: EventWork) -> bytes:
    from pyspark import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever its __reduce__ raises
        raise ConfigError(
            "record_processing_on: spark sends transforms, and with consume_records_async the "
            "consumer, to executors: they must contain nothing that belongs to this process (a "
            f"lock, a connection): {type(error).__name__}"
        ) from None
    return pickled


def _missing_module(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"record_processing_on: spark: executors have no module {error.name}, which transforms or "
        "the consumer need: give it to them by spark.submit.pyFiles, PYTHONPATH, or as a package "
        "that is installed there"
    )
