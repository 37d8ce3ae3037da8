"""Assembles an engine and runs it: all tasks start or none polls, one failure ends all.

When it has ended, all is freed. The API for programs is `tidelog.app.async_engine`; this module
does not depend on databases or logs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from tidelog.engine.chain import DeadLetterFile, ProcessorChain
from tidelog.engine.options import EngineOptions, Retries
from tidelog.engine.ports import (
    ChangeConsumer,
    Clock,
    Connector,
    ConnectorContext,
    ConnectorEvent,
    Consumer,
    OnCompletion,
    OnConnector,
    RecordProcessor,
    RecordService,
    Serializer,
    SourceTask,
    TaskContext,
    Transform,
)
from tidelog.engine.processors import BatchProcessor, InOrderProcessor, ParallelProcessor
from tidelog.engine.running_task import MOST_OPEN_BATCHES, RecordHandler, RunningTask, TaskCommitter
from tidelog.engine.workers import (
    ConsumerLoop,
    EventWork,
    MakeWorkers,
    ThreadPool,
    WorkerChain,
    WorkerProcesses,
    Workers,
)
from tidelog.errors import (
    ConfigError,
    ConsumerError,
    EngineStateError,
    TaskStartError,
    message_without_values,
)
from tidelog.system.callbacks import (
    WorkNotDoneError,
    is_awaited_transform,
    is_coroutine_function,
    refuse_coroutine,
    refuse_coroutine_function,
    require_function,
)

# The states of an engine, and the only code that changes them.


class EngineState(Enum):
    """The states of an engine's life, in this order."""

    CREATING = "creating"
    INITIALIZING = "initializing"
    CREATING_TASKS = "creating tasks"
    STARTING_TASKS = "starting tasks"
    POLLING_TASKS = "polling tasks"
    STOPPING = "stopping"
    STOPPED = "stopped"


NEXT_STATES: Final = {
    EngineState.CREATING: {EngineState.INITIALIZING, EngineState.STOPPING},
    EngineState.INITIALIZING: {EngineState.CREATING_TASKS, EngineState.STOPPING},
    EngineState.CREATING_TASKS: {EngineState.STARTING_TASKS, EngineState.STOPPING},
    EngineState.STARTING_TASKS: {EngineState.POLLING_TASKS, EngineState.STOPPING},
    EngineState.POLLING_TASKS: {EngineState.STOPPING},
    EngineState.STOPPING: {EngineState.STOPPED},
    EngineState.STOPPED: set[EngineState](),
}


class StateCell:
    """The state of one engine. Thread-safe: each change is one atomic step along `NEXT_STATES`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = EngineState.CREATING

    @property
    def now(self) -> EngineState:
        return self._state

    def advance(self, expected: EngineState, to: EngineState) -> bool:
        """Change the state from ``expected`` to ``to``. False, without a change, if the state is
        another one by now.

        Raises:
            EngineStateError: if the step is not in `NEXT_STATES`.
        """
        if to not in NEXT_STATES[expected]:
            raise EngineStateError(f"an engine does not go from {expected.value} to {to.value}")
        with self._lock:
            if self._state is not expected:
                return False
            self._state = to
            return True

    def stop(self) -> EngineState:
        """Change to STOPPING, unless it is there or beyond; returns the state before."""
        with self._lock:
            before = self._state
            if EngineState.STOPPING in NEXT_STATES[before]:
                self._state = EngineState.STOPPING
            return before


# The life cycle.

logger = logging.getLogger(__name__)

MakeProcessor = Callable[[RecordService, TaskCommitter, Retries, threading.Event], RecordHandler]


_INSIDE: ContextVar[tuple[EngineCore, ...]] = ContextVar("inside", default=())
"""The engines that the current thread or coroutine is part of: it can't wait for their end."""


def _ignore(*_args: Any) -> None:
    """The default of callbacks: does nothing."""


class EngineCore:
    """Runs a connector's tasks. Thread-safe.

    `run` goes through the states in the thread that calls it; `close` requests the end and waits
    for it. The engine ends by itself when every task has delivered all its events. Callbacks are
    called in the thread of `run`. Their exceptions are logged and ignored; SystemExit and the like
    end the engine, and are raised by `run`.

    Args:
        connector: creates the tasks.
        options: the configured options.
        processor: creates the processor of one task's events.
        on_connector: called when the connector and each task has started and stopped.
        on_completion: called once, with success, a message and the error.
        transforms: transforms for the contexts.
        clock: monotonic seconds.
        workers: workers, opened before the connector starts, closed once the pool has ended.
        consumer_loop: loop of a consumer that is a coroutine function; closed when no task uses it.
    """

    def __init__(
        self,
        connector: Connector,
        options: EngineOptions,
        processor: MakeProcessor,
        *,
        on_connector: OnConnector = _ignore,
        on_completion: OnCompletion = _ignore,
        transforms: Sequence[Transform] = (),
        clock: Clock = time.monotonic,
        workers: Workers | None = None,
        consumer_loop: ConsumerLoop | None = None,
    ) -> None:
        self._connector, self._options, self._make_processor = connector, options, processor
        self._on_connector, self._on_completion = on_connector, on_completion
        self._transforms, self._clock, self._workers = tuple(transforms), clock, workers
        self._states = StateCell()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._polling = threading.Event()
        self._consumer_loop = consumer_loop
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._retries = Retries(options, self._stopping)
        threads = options.record_processing_threads
        if consumer_loop is not None and consumer_loop.in_pool:
            threads = options.concurrent_coroutines  # each waits for one
        self._pool = ThreadPool(threads, self._mark_thread)
        self._tasks: list[RunningTask] = []
        self._delivered = 0
        self._connector_touched = False
        self._reported_started: set[str | None] = set()

    @property
    def state(self) -> EngineState:
        return self._states.now

    @property
    def context(self) -> ConnectorContext:
        """The context of the connector and its tasks."""
        policy = self._options.offset_commit_policy
        tasks = [
            TaskContext(each.name, each.task, policy, self._clock, self._transforms)
            for each in self._tasks
        ]
        return ConnectorContext(self._options, self._clock, self._transforms, tasks)

    def run(self) -> None:
        """Run until `close`, until all tasks have delivered all events, or until an error.

        Raises:
            EngineStateError: if it runs or has run already.
            BaseException: the error that ended it.
        """
        if not self._states.advance(EngineState.CREATING, EngineState.INITIALIZING):
            raise EngineStateError(
                f"the engine is {self.state.value}; make a new one to run it again"
            )
        outside = self._mark_thread()
        try:
            try:
                self._start_and_wait()
            except BaseException as error:  # noqa: BLE001 - raised below, after all has stopped
                self._fail(error)
            self._shut_down()
        finally:
            if self.state is not EngineState.STOPPED:  # shutting down was itself interrupted
                self._finish()
            _INSIDE.reset(outside)
        if self._failure is not None:
            raise self._failure

    def close(self, *, wait: bool = True) -> None:
        """End the engine, whatever it does, and wait for its end, unless this is one of its
        threads, such as the consumer's; or do not ``wait``. Does nothing once it has stopped.
        """
        before = self._states.stop()
        if before is EngineState.STOPPED:
            return
        if before is EngineState.CREATING:
            self._finish()
            return
        self._stopping.set()
        if wait and self not in _INSIDE.get():
            self._ended.wait()

    def wait_for_polling(self, timeout_s: float | None = None) -> bool:
        """Wait until the engine polls (True), has ended or the timeout is over."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.is_set():
            left = until - time.monotonic()
            if self._polling.wait(max(0.0, min(left, 0.05))):
                return True
            if left <= 0:
                return False
        return self._polling.is_set() and not self._ended.is_set()

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the consumer's coroutines, if any, on this loop, unless one was given."""
        if self._consumer_loop is not None:
            self._consumer_loop.use(loop)

    # ------------------------------------------------ start

    def _start_and_wait(self) -> None:
        if self._workers is not None:
            self._workers.open()
        if self._consumer_loop is not None:
            self._consumer_loop.open()
        self._connector_touched = True
        self._connector.start()
        self._report("started", None)
        if not self._advance(EngineState.INITIALIZING, EngineState.CREATING_TASKS):
            return
        tasks = self._connector.tasks()
        if not tasks:
            raise ConfigError("the connector has no task")
        self._tasks = [self._running(task) for task in tasks]
        if not self._advance(EngineState.CREATING_TASKS, EngineState.STARTING_TASKS):
            self._tasks = []  # no task was started, so none is stopped
            return
        self._start_tasks()
        if not self._advance(EngineState.STARTING_TASKS, EngineState.POLLING_TASKS):
            return
        for task in self._tasks:
            task.poll()
        self._polling.set()
        self._stopping.wait()

    def _advance(self, expected: EngineState, to: EngineState) -> bool:
        """Change the state. False: the engine was closed in the meantime."""
        return self._states.advance(expected, to)

    def _running(self, task: SourceTask) -> RunningTask:
        committer = TaskCommitter(self._options, self._clock)
        retries = Retries(self._options, self._stopping, self._options.retry_on)
        processor = self._make_processor(self._pool, committer, retries, self._stopping)
        return RunningTask(
            task,
            processor,
            committer,
            self._retries,
            self._stopping,
            self._on_end,
            self._mark_thread,
        )

    def _start_tasks(self) -> None:
        """Start the tasks. Raises the first error, after every start has returned or timed out."""
        deadline = time.monotonic() + self._timeout_s
        for task in self._tasks:
            task.start()
        failure: BaseException | None = None
        for task in self._tasks:
            error: BaseException | None
            if _wait_for(task.started, deadline, None if failure else self._stopping):
                error = task.started.exception()
            elif self._stopping.is_set():
                return  # closed: shutting down waits for the rest
            else:
                trouble = task.task.trouble
                error = TaskStartError(
                    f"task {task.name} had not started after "
                    f"{self._options.task_management_timeout_ms} ms{trouble and f': {trouble}'}"
                )
            if error is None:
                self._report("started", task.name)
            elif failure is None:
                failure = error
                for each in self._tasks:
                    each.cancel()
        if failure is not None:
            raise failure

    # ------------------------------------------------ stop

    def _on_end(self, error: BaseException | None) -> None:
        """A task's polling has ended. The engine ends when all tasks have delivered all events."""
        if error is not None:
            self._fail(error)
            return
        with self._lock:
            self._delivered += 1
            if not self._all_delivered:
                return
        self._states.stop()
        self._stopping.set()

    @property
    def _all_delivered(self) -> bool:
        return 0 < len(self._tasks) == self._delivered

    def _fail(self, error: BaseException) -> None:
        """Note an error; the first one ends the engine. Callable in any thread."""
        with self._lock:
            first = self._failure is None
            if first:
                self._failure = error
        if not first:
            logger.error("another error while the engine stops: %s", type(error).__name__)
        self._states.stop()
        self._stopping.set()

    def _shut_down(self) -> None:
        """Stop the pool, then the tasks, then the connector, whatever fails in between."""
        self._states.stop()
        self._stopping.set()
        processing_s = self._options.polling_shutdown_timeout_ms / 1000
        processing_until = time.monotonic() + processing_s
        self._guarded(lambda: self._close_pool(processing_s))
        if self._workers is not None:
            self._guarded(self._workers.close)
        until = time.monotonic() + self._timeout_s
        threads = [self._stop_in_thread(task, processing_until, until) for task in self._tasks]
        for task, thread, errors in threads:
            if thread.ident is None:
                thread.run()
            else:
                # It bounds its own waits by `until`; the task's own commit and stop may hang.
                thread.join(max(0.0, until - time.monotonic()) + self._timeout_s)
            if thread.is_alive():
                self._fail(TaskStartError(f"task {task.name} did not stop in time"))
            for error in errors:
                self._fail(error)
            self._report("stopped", task.name)
        if self._consumer_loop is not None:
            self._guarded(self._consumer_loop.close)
        if self._connector_touched:
            self._guarded(self._connector.stop)
        self._report("stopped", None)
        self._finish()

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Execute a step. Its error is raised by `run`, after all other steps."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised by run
            self._fail(error)

    def _close_pool(self, within_s: float) -> None:
        if not self._pool.close(within_s):
            logger.warning("records are still processed after %.1f s: given up", within_s)

    def _stop_in_thread(
        self, task: RunningTask, processing_until: float, until: float
    ) -> tuple[RunningTask, threading.Thread, list[BaseException]]:
        """Stop a task in a thread; one that could not be started has no ``ident``."""
        errors: list[BaseException] = []

        def stop() -> None:
            self._mark_thread()
            try:
                task.stop(processing_until, until)
            except BaseException as error:  # noqa: BLE001 - raised by run
                errors.append(error)

        thread = threading.Thread(target=stop, name=f"tidelog-stop-{task.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            logger.warning("task %s is stopped without a thread: no more can be started", task.name)
        return task, thread, errors

    def _finish(self) -> None:
        self._states.advance(EngineState.STOPPING, EngineState.STOPPED)
        error = self._failure
        text = "all events were delivered" if self._all_delivered else "the engine was closed"
        if error is not None:
            text = f"the engine failed: {message_without_values(error)}"
        try:
            refuse_coroutine(self._on_completion(error is None, text, error))
        except WorkNotDoneError as raised:
            self._fail(ConsumerError(f"on_completion {raised}"))
        except Exception as raised:  # noqa: BLE001 - as for every callback
            logger.error("on_completion raised %s", type(raised).__name__)
        finally:  # also if it ends the program
            self._ended.set()

    @property
    def _timeout_s(self) -> float:
        return self._options.task_management_timeout_ms / 1000

    def _mark_thread(self) -> Token[tuple[EngineCore, ...]]:
        return _INSIDE.set((*_INSIDE.get(), self))

    def _report(self, what: Literal["started", "stopped"], task: str | None) -> None:
        """Call the callback; ``stopped`` only if the task has started."""
        if what == "started":
            self._reported_started.add(task)
        elif task not in self._reported_started:
            return
        try:
            refuse_coroutine(self._on_connector(ConnectorEvent(what, task)))
        except WorkNotDoneError as error:
            self._fail(ConsumerError(f"on_connector {error}"))
        except Exception as error:  # noqa: BLE001 - as for every callback
            logger.error("on_connector raised %s", type(error).__name__)
        except BaseException as error:  # noqa: BLE001 - raised by run, after all has stopped
            self._fail(error)  # it ends the program


def _wait_for(future: Future[None], deadline: float, stopping: threading.Event | None) -> bool:
    """Wait for the future, until the deadline or, if given, ``stopping``; False: it is not done."""
    while not future.done():
        left = deadline - time.monotonic()
        if left <= 0 or (stopping is not None and stopping.is_set()):
            return future.done()
        wait([future], timeout=min(left, 0.02))
    return True


# An engine in the mode that its arguments select.

MakeRecordProcessor = Callable[[], RecordProcessor]


def _no_spark(count: int, work: EventWork) -> Workers:
    del count, work
    raise ConfigError("record_processing_on: spark is for engines of a configuration")


def assemble(
    connector: Connector,
    options: EngineOptions,
    *,
    consumer: Consumer | None = None,
    change_consumer: ChangeConsumer | None = None,
    record_processor: RecordProcessor | MakeRecordProcessor | None = None,
    serializer: Serializer | None = None,
    transforms: Sequence[Transform] = (),
    consume_records_async: bool = False,
    on_connector: OnConnector | None = None,
    on_completion: OnCompletion | None = None,
    dead_letters: DeadLetterFile | None = None,
    clock: Clock = time.monotonic,
    on_spark: MakeWorkers = _no_spark,
    event_loop: asyncio.AbstractEventLoop | None = None,
    most_open_batches: int = MOST_OPEN_BATCHES,
) -> EngineCore:
    """Build an engine over any connector, in the mode that the arguments select.

    ``on_spark`` creates workers on executors: this package does not import Spark. ``event_loop``
    runs coroutines of the consumer and of transforms. At most ``most_open_batches`` batches are
    polled and not completed.

    Raises:
        ConfigError: if the arguments do not fit together.
    """
    consumers = (consumer, change_consumer, record_processor)
    if sum(each is not None for each in consumers) != 1:
        raise ConfigError("give one of consumer, change_consumer and record_processor")
    for each in transforms:
        require_function("transforms", each)
    awaited = is_coroutine_function(consumer) or is_coroutine_function(change_consumer)
    prepares = any(map(is_awaited_transform, transforms))
    consumer_loop = _consumer_loop(
        options, event_loop, awaited=awaited, prepares=prepares, in_parallel=consume_records_async
    )
    if consumer_loop is not None:
        if awaited:
            consumer = consumer and consumer_loop.as_function(consumer)
            change_consumer = change_consumer and consumer_loop.as_function(change_consumer)
        transforms = [consumer_loop.as_transform(each) for each in transforms]
    functions: dict[str, Any] = {
        "consumer": consumer,
        "change_consumer": change_consumer,
        "record_processor": getattr(record_processor, "process_records", record_processor),
        "on_connector": on_connector,
        "on_completion": on_completion,
    }
    for name, each in functions.items():
        refuse_coroutine_function(name, each)
    _check_options(options, consumer, consume_records_async, dead_letters, record_processor)
    workers: Workers | None = None
    if options.record_processing_on != "threads":
        away = consumer if consume_records_async else None
        work = EventWork(transforms, serializer, options, dead_letters is not None, away)
        create = on_spark if options.record_processing_on == "spark" else WorkerProcesses
        workers = create(options.record_processing_threads, work)
    make = _ProcessorMaker(
        options,
        consumer,
        change_consumer,
        record_processor,
        serializer,
        transforms,
        dead_letters,
        workers,
        most_open_batches,
        consume_records_async,
    )
    callbacks = {"on_connector": on_connector, "on_completion": on_completion}
    given: dict[str, Any] = {name: each for name, each in callbacks.items() if each is not None}
    return EngineCore(
        connector,
        options,
        make,
        transforms=transforms,
        clock=clock,
        workers=workers,
        consumer_loop=consumer_loop,
        **given,
    )


@dataclass
class _ProcessorMaker:
    """A `MakeProcessor`: makes what processes the records of one task."""

    options: EngineOptions
    consumer: Consumer | None
    change_consumer: ChangeConsumer | None
    record_processor: RecordProcessor | MakeRecordProcessor | None
    serializer: Serializer | None
    transforms: Sequence[Transform]
    dead_letters: DeadLetterFile | None
    workers: Workers | None
    most_open_batches: int
    in_parallel: bool
    used: list[RecordProcessor] = field(default_factory=list)

    def __call__(
        self,
        service: RecordService,
        committer: TaskCommitter,
        retries: Retries,
        stopping: threading.Event,
    ) -> RecordHandler:
        committer.most_open_batches = self.most_open_batches
        if self.record_processor is not None:
            processor = _create_processor(self.record_processor)
            if any(each is processor for each in self.used):
                raise ConfigError(
                    "record_processor: each task needs one of its own, which marks its records "
                    "alone: give a class, or a function that makes one, in place of an object"
                )
            self.used.append(processor)
            processor.initialize(service, self.transforms, self.serializer, committer)
            return processor
        parts = self.transforms, self.serializer, retries, self.dead_letters
        chain = ProcessorChain(*parts)
        if self.workers is not None:
            chain = WorkerChain(*parts, self.workers)
        if self.change_consumer is not None:
            return BatchProcessor(chain, service, committer, self.change_consumer)
        assert self.consumer is not None
        if not self.in_parallel:
            return InOrderProcessor(chain, service, committer, self.consumer, stopping)
        by_key = self.options.order == "key"
        return ParallelProcessor(chain, service, committer, self.consumer, stopping, by_key=by_key)


def _consumer_loop(
    options: EngineOptions,
    event_loop: asyncio.AbstractEventLoop | None,
    *,
    awaited: bool,
    prepares: bool,
    in_parallel: bool,
) -> ConsumerLoop | None:
    """Return what runs coroutines: of a consumer (``awaited``), of transforms (``prepares``)."""
    if not (awaited or prepares):
        if event_loop is not None:
            raise ConfigError(
                "event_loop is for a consumer or a transform that is a coroutine function: async "
                "def"
            )
        return None
    if (prepares or in_parallel) and options.record_processing_on != "threads":
        raise ConfigError(
            f"a {'transform' if prepares else 'consumer'} that is a coroutine function runs on "
            f"an event loop of this process: with record_processing_on: "
            f"{options.record_processing_on}{'' if prepares else ' and consume_records_async'} "
            "give an ordinary function"
        )
    return ConsumerLoop(event_loop, in_pool=prepares or in_parallel)


def _check_options(
    options: EngineOptions,
    consumer: Consumer | None,
    in_parallel: bool,
    dead_letters: DeadLetterFile | None,
    record_processor: object,
) -> None:
    """Raise ConfigError if they do not fit together."""
    if in_parallel and consumer is None:
        raise ConfigError(
            "consume_records_async needs consumer, which is called for each event: a batch is "
            "taken and marked as a whole, so there is nothing in it to call at once"
        )
    if in_parallel == (options.order == "total"):
        raise ConfigError(
            "order key and none go with consume_records_async, order total without it"
        )
    if (options.errors_tolerance == "dead_letter") != (dead_letters is not None):
        raise ConfigError("errors_tolerance: dead_letter and the directory dead_letter go together")
    if record_processor is not None and (dead_letters or options.record_processing_on != "threads"):
        raise ConfigError(
            "errors_tolerance and record_processing_on are for the engine's own processing: a "
            "record_processor has taken it over"
        )


def _create_processor(processor: RecordProcessor | MakeRecordProcessor) -> RecordProcessor:
    found: Any = processor
    if inspect.isclass(processor) or not hasattr(processor, "process_records"):
        found = found()
    created: RecordProcessor = found
    return created
