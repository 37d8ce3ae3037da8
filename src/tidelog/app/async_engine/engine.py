"""The engine for Python programs: with a consumer, or as an iterator of events."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any, Final, Self, Unpack

from pydantic import ValidationError

from tidelog.app.async_engine.capture_task import CaptureTask
from tidelog.app.async_engine.log_task import OffsetStore, StartingOffset
from tidelog.app.async_engine.steps import FormatSerializer, message_routes, split_transforms
from tidelog.app.base.outputs import check_spark, remote_of
from tidelog.app.base.service import BackgroundService
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.pipeline.run import session
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import config_by_database, label_of
from tidelog.config.models import EngineArguments, EngineSection
from tidelog.control.commands import Command
from tidelog.control.mailbox import Outcome
from tidelog.engine.chain import DeadLetterFile
from tidelog.engine.core import EngineState, MakeRecordProcessor, assemble
from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import (
    ChangeConsumer,
    Committer,
    ConnectorContext,
    Consumer,
    Message,
    OnCompletion,
    OnConnector,
    RecordProcessor,
    SourceTask,
    Transform,
)
from tidelog.engine.running_task import MOST_OPEN_BATCHES
from tidelog.engine.workers import EventWork, MakeWorkers, Workers
from tidelog.errors import ConfigError, EngineStateError
from tidelog.outputs.base.sections import StepSection
from tidelog.system.callbacks import refuse_coroutine_function

# The engine as an iterator: an event is done when the program asks for the next one.

_FINISHED_S: Final = 0.5  # seconds between two commits within a batch
STREAM_OPEN_BATCHES: Final = 2
"""How many polled batches may have events that are not done."""

Batch = tuple[Sequence[Event | Message], Committer]


class EventStream:
    """Iterates over the events, or messages, of an engine without a consumer; for one loop.

    ``async for event in engine.events()``, or ``for`` in a program without an event loop. The
    engine runs while the loop does. An event is done when the next one is requested, or
    `mark_processed` was called; done events are committed by the commit policy, and at the end. A
    loop that is left does not complete its current event, and closes the engine as soon as Python
    drops the loop's iterator; ``contextlib.aclosing(aiter(engine.events()))`` closes it at the end
    of its block. The loop raises the error that ends the engine.

    Args:
        run: runs the engine until it has ended.
        close: stops it and waits; does nothing if it has ended.
        use_loop: called with the loop that iterates.
    """

    def __init__(
        self,
        run: Callable[[], None],
        close: Callable[[], None],
        use_loop: Callable[[asyncio.AbstractEventLoop], None],
    ) -> None:
        self._run, self._close, self._use_loop = run, close, use_loop
        self._batches: deque[Batch] = deque()
        self._wake: Callable[[], object] = lambda: None
        self._committer: Committer | None = None

    def take(self, events: Events, committer: Committer) -> None:
        """Accept a batch, as the engine's consumer, in its tasks' threads."""
        self._batches.append((events, committer))
        self._wake()

    def mark_processed(self, event: Event | Message) -> None:
        """Mark the current event as done before the next one is requested."""
        if self._committer is not None:
            self._committer.mark_processed(event)
            self._committer.mark_batch_finished()

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(woken.set)

        self._use_loop(loop)
        self._wake = wake
        ended = self._begin()
        try:
            while not ended.done():
                for each in self._batch(ended):
                    yield each
                if not self._batches:
                    await woken.wait()
                    woken.clear()
        finally:
            await asyncio.to_thread(self._close)
            await asyncio.wrap_future(ended)

    def __iter__(self) -> Iterator[Any]:
        woken = threading.Event()
        self._wake = woken.set
        ended = self._begin()
        try:
            while not ended.done():
                yield from self._batch(ended)
                if not self._batches:
                    woken.wait()
                    woken.clear()
        finally:
            self._close()
            ended.result()

    def _begin(self) -> Future[None]:
        """Run the engine in a thread; return a future of its end or error."""
        ended: Future[None] = Future()

        def run() -> None:
            try:
                self._run()
            except BaseException as error:  # noqa: BLE001 - raised out of the loop
                ended.set_exception(error)
            else:
                ended.set_result(None)
            self._wake()

        threading.Thread(target=run, name="tidelog-engine", daemon=True).start()
        return ended

    def _batch(self, ended: Future[None]) -> Iterator[Event | Message]:
        """Yield the next batch, if any. An event is done when the next one is requested."""
        if not self._batches:
            return
        events, committer = self._batches.popleft()
        self._committer = committer
        finished = time.monotonic()
        for each in events:
            yield each
            committer.mark_processed(each)
            if ended.done():
                break
            if time.monotonic() - finished > _FINISHED_S:
                committer.mark_batch_finished()
                finished = time.monotonic()
        committer.mark_batch_finished()


# The engine with a consumer.


def spark_workers_for(config: Config) -> MakeWorkers:
    """Return a function that creates Spark workers, in the running session if there is one."""

    def make(count: int, work: EventWork) -> Workers:
        if remote_of(config) is not None:
            raise ConfigError(
                "record_processing_on: spark needs a classic Spark session, not one of Spark "
                "Connect: leave out pipeline.remote and SPARK_REMOTE"
            )
        check_spark(config)
        from tidelog.spark.engine_jobs import SparkWorkers

        return SparkWorkers(partial(session, config), count, work)

    return make


class AsyncEngine(BackgroundService):
    """Captures a source and passes its change events to the program, at least once.

    It runs once: when it has run, or was closed before, `run`, `start`, `arun`, `send` and a loop
    over `events` raise EngineStateError. `stop` and `close` may be called at any time, and again.

    One of ``consumer``, ``change_consumer`` and ``record_processor`` receives the events; without
    any the program iterates over `events`. An offset is never committed past an event that is not
    done.

    Example:
        ``AsyncEngine("tidelog.yaml", consumer=print).run()``

    Args:
        config: a configuration, the path of a ``tidelog.yaml``, or the contents of one.
        consumer: called with each event; an event is done when it returns. A coroutine function is
            awaited, also as ``change_consumer``.
        change_consumer: called with a batch, and an object to mark its events as done.
        record_processor: replaces the whole chain: an object, or a function that creates one.
        format: the format of messages, which replace events; None: typed events.
        transforms: steps, as in an output's configuration, which are applied to batches as they are
            polled; after them functions, called with each event, in the pool. They may be coroutine
            functions, and return one event, several or none.
        on_connector: called when the connector and its task have started and stopped.
        on_completion: called once, with success, a message, the error. What callbacks raise is
            logged.
        on_status: called now and then with the state of capture, in its own thread: its ``role``
            (``leading``, ``standby``, ``retrying``) and the ``reason``, among others.
        name: the name under which its offset is stored.
        offsets: the program's own store of offsets.
        starting_offset: where a name without progress starts: at the oldest event in the log, at
            what is captured from now on (``latest``), or at an offset (`Events.end`,
            `Event.version`). A name with progress resumes there.
        exclusive: whether, of the engines of this name in all processes that share the state store,
            one passes events and the others stand by. False: each passes all events, and overwrites
            the others' offsets.
        group: divides the keys among these engines instead, in so many partitions; all must have
            the same number.
        event_loop: the loop for coroutines of the consumer and of transforms; `run` must not block
            it. None: the one in which `arun` is awaited, else one in a thread of the engine.
        retry_on: classes of errors of the program's functions that are retried, as ConnectionError
            and TimeoutError are.
        options: options of the configuration's section ``engine``; they override it.

    Raises:
        ConfigError: an option is wrong, or options contradict each other.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        consumer: Consumer | None = None,
        change_consumer: ChangeConsumer | None = None,
        record_processor: RecordProcessor | MakeRecordProcessor | None = None,
        format: str | None = None,  # noqa: A002 - its name in a configuration
        transforms: Sequence[Transform | StepSection | Mapping[str, Any]] = (),
        on_connector: OnConnector | None = None,
        on_completion: OnCompletion | None = None,
        on_status: OnStatus | None = None,
        name: str = "engine",
        offsets: OffsetStore | None = None,
        starting_offset: StartingOffset = "earliest",
        exclusive: bool = True,
        group: int | None = None,
        event_loop: asyncio.AbstractEventLoop | None = None,
        retry_on: type[Exception] | Sequence[type[Exception]] = (),
        **options: Unpack[EngineArguments],
    ) -> None:
        super().__init__("tidelog-engine")
        self.config = as_config(config)
        section = _section(self.config.engine, options)
        batch_size, consume_records_async = section.batch_size, section.consume_records_async
        if name == self.config.pipeline.name:
            raise ConfigError(f"the pipeline is named {name!r}, too: give the engine another name")
        refuse_coroutine_function("on_status", on_status)
        for method in () if offsets is None else (offsets.read, offsets.write):
            refuse_coroutine_function("offsets", method)
        _check_starting_offset(starting_offset, self.config)
        if group is not None:
            _check_group(group, exclusive, offsets, self.config)
        steps, functions = split_transforms(transforms)
        to = message_routes(steps)
        if to and format is None:
            raise ConfigError(
                "transforms: step route says where messages go: it needs a format, events go "
                "nowhere but to the consumer"
            )
        self._tasks = {
            database: CaptureTask(
                config,
                f"{name}-{label_of(database)}" if database else name,
                batch_size=batch_size,
                offsets=offsets,
                steps=steps,
                starting_offset=starting_offset,
                exclusive=exclusive,
                group=group,
                most_retries=section.errors_max_retries,
                on_status=on_status or ignore_status,
            )
            for database, config in config_by_database(self.config).items()
        }
        dead_letters = None
        if section.dead_letter is not None:
            dead_letters = DeadLetterFile(section.dead_letter / f"{name}.jsonl")
        self._stream: EventStream | None = None
        most_open_batches = MOST_OPEN_BATCHES
        if consumer is None and change_consumer is None and record_processor is None:
            self._stream = EventStream(
                lambda: self._core.run(),
                self.close,
                lambda loop: self._core.use_loop(loop),
            )
            change_consumer, most_open_batches = self._stream.take, STREAM_OPEN_BATCHES
        self._core = assemble(
            CaptureConnector(list(self._tasks.values())),
            _options(section, retry_on),
            consumer=consumer,
            change_consumer=change_consumer,
            record_processor=record_processor,
            serializer=None if format is None else FormatSerializer(format, routes=to),
            transforms=functions,
            consume_records_async=consume_records_async,
            on_connector=on_connector,
            on_completion=on_completion,
            dead_letters=dead_letters,
            on_spark=spark_workers_for(self.config),
            event_loop=event_loop,
            most_open_batches=most_open_batches,
        )

    @property
    def state(self) -> EngineState:
        return self._core.state

    @property
    def context(self) -> ConnectorContext:
        """The context of its connector and tasks."""
        return self._core.context

    def run(self) -> None:
        """Run until `stop`, a failure, or the end of all events (``source.snapshot:
        initial_only``).

        Raises:
            EngineStateError: it runs already, or has run.
            TidelogError: the error that ended it. IncompleteDumpError comes after all captured
                events.
        """
        super().run()

    def _run(self, stop: threading.Event) -> None:
        self._check_consumer()
        self._core.run()

    def start(self) -> None:
        """Start on its own thread; return at once.

        Raises:
            EngineStateError: it was started or closed before.
        """
        self._check_consumer()
        if self._thread is not None or self.state is not EngineState.CREATING:
            raise EngineStateError("the engine was started or closed before: make a new one")
        super().start()

    def stop(self) -> None:
        """Ask it to end; return at once."""
        super().stop()
        self._core.close(wait=False)

    def events(self) -> EventStream:
        """Return the events of an engine without a consumer, to iterate over.

        Example:
            ``async for event in engine.events(): ...``

        Raises:
            ConfigError: it has a consumer.
        """
        if self._stream is None:
            raise ConfigError(
                "events is for an engine without consumer, change_consumer and record_processor: "
                "this one gives its events to what it was made with"
            )
        return self._stream

    async def arun(self) -> None:
        """As `run`, beside other coroutines; cancelling it closes the engine."""
        self._check_consumer()
        loop = asyncio.get_running_loop()
        self._core.use_loop(loop)
        ended: asyncio.Future[None] = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if ended.cancelled():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                self._core.run()
            except BaseException as raised:  # noqa: BLE001 - the coroutine raises it
                error = raised
            loop.call_soon_threadsafe(finish, error)

        threading.Thread(target=run, name="tidelog-engine", daemon=True).start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([ended])
            ended.exception()  # the cancellation is raised instead
            raise

    def close(self) -> None:
        """`stop`, and wait for the end; without waiting if a consumer or a callback calls it."""
        super().stop()
        self._core.close()

    def send(
        self, command: Command, *, database: str = "", timeout_s: float = 10.0
    ) -> Outcome | None:
        """As `tidelog.Capture.send`; ``database``: one of ``source.databases``.

        Raises:
            EngineStateError: it has stopped.
            ConfigError: there is no such database, or there are several and none is named.
        """
        if self.state is EngineState.STOPPED:
            raise EngineStateError("the engine has stopped: no capture of it takes commands")
        if database not in self._tasks:
            known = ", ".join(filter(None, self._tasks)) or "one without a name"
            raise ConfigError(f"the engine has no database {database!r}: it has {known}")
        return self._tasks[database].capture.send(command, timeout_s=timeout_s)

    def wait_for_polling(self, timeout_s: float | None = None) -> bool:
        """Wait until it polls (True), has ended, or ``timeout_s`` is over."""
        return self._core.wait_for_polling(timeout_s)

    def __enter__(self) -> Self:
        """Start; return when it polls. Raises what prevented that."""
        super().__enter__()
        if not self._core.wait_for_polling():
            self.wait()
        return self

    def _check_consumer(self) -> None:
        if self._stream is not None:
            raise ConfigError(
                "give one of consumer, change_consumer and record_processor, or iterate over "
                "engine.events()"
            )


class CaptureConnector:
    """A `tidelog.engine.ports.Connector`: a task for each event log, and nothing else."""

    def __init__(self, tasks: Sequence[SourceTask]) -> None:
        self._tasks = tasks

    def start(self) -> None: ...

    def tasks(self) -> Sequence[SourceTask]:
        return self._tasks

    def stop(self) -> None: ...


def _check_starting_offset(given: StartingOffset, config: Config) -> None:
    number = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if not number and given not in ("earliest", "latest"):
        raise ConfigError(
            f"starting_offset: {given!r} is none of earliest, latest and an offset of the event log"
        )
    if number and len(config_by_database(config)) > 1:
        raise ConfigError(
            "starting_offset: each of several databases has an event log of its own, in which an "
            "offset is another place: give earliest or latest, or an engine for each database"
        )


def _check_group(group: int, exclusive: bool, offsets: OffsetStore | None, config: Config) -> None:
    if not exclusive:
        raise ConfigError("group: each partition has one engine, so exclusive can't be False")
    if not 1 <= group <= 1024:
        raise ConfigError(f"group: {group!r} is no number of partitions from 1 to 1024")
    if offsets is not None:
        raise ConfigError("group: its offsets are in the state store, so give no offsets")
    source = config.source
    single = source.snapshot_configuration
    if source.snapshot == "initial_only" or (single is not None and not single.stream):
        raise ConfigError(
            f"group: with source.snapshot: {source.snapshot} capture ends, and no member knows "
            "when all are done: give another mode"
        )


def _section(configured: EngineSection, given: Mapping[str, Any]) -> EngineSection:
    unknown = given.keys() - EngineSection.model_fields.keys()
    if unknown:
        raise ConfigError(f"an engine has no option {', '.join(sorted(unknown))}")
    configured_options = {name: getattr(configured, name) for name in configured.model_fields_set}
    try:
        return EngineSection(**{**configured_options, **given})
    except ValidationError as error:
        problems = [
            f"{'.'.join(['engine', *map(str, each['loc'])])}: {each['msg']}"
            for each in error.errors()
        ]
        raise ConfigError("\n".join(problems)) from None


def _options(
    section: EngineSection, retry_on: type[Exception] | Sequence[type[Exception]]
) -> EngineOptions:
    names = {field.name for field in fields(EngineOptions)} & EngineSection.model_fields.keys()
    given: dict[str, Any] = {name: getattr(section, name) for name in names}
    classes: tuple[object, ...] = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ConfigError(f"retry_on: {each!r} is no class of errors")
    given["retry_on"] = classes
    if given["record_processing_threads"] is None:
        del given["record_processing_threads"]
    if given["order"] is None:
        given["order"] = "none" if section.consume_records_async else "total"
    return EngineOptions(**given)
