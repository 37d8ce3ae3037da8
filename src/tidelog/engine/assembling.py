"""Builds an engine in the mode that its arguments select."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.engine.callables import (
    is_awaited_transform,
    is_coroutine_function,
    refuse_coroutine_function,
)
from tidelog.engine.committing import MOST_OPEN_BATCHES, TaskCommitter
from tidelog.engine.core import EngineCore
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import (
    ChangeConsumer,
    Clock,
    Connector,
    Consumer,
    OnCompletion,
    OnConnector,
    RecordProcessor,
    RecordService,
    Serializer,
    Transform,
)
from tidelog.engine.processing.chain import ProcessorChain
from tidelog.engine.processing.consumer_loop import ConsumerLoop
from tidelog.engine.processing.dead_letters import DeadLetterFile
from tidelog.engine.processing.processes import WorkerProcesses
from tidelog.engine.processing.processors import BatchProcessor, InOrderProcessor, ParallelProcessor
from tidelog.engine.processing.workers import EventWork, MakeWorkers, WorkerChain, Workers
from tidelog.engine.retries import Retries
from tidelog.engine.running_task import RecordHandler
from tidelog.errors import ConfigError

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
    consumer_loop: ConsumerLoop | None = None
    awaited = is_coroutine_function(consumer) or is_coroutine_function(change_consumer)
    prepares = any(map(is_awaited_transform, transforms))
    if awaited or prepares:
        if (prepares or consume_records_async) and options.record_processing_on != "threads":
            raise ConfigError(
                f"a {'transform' if prepares else 'consumer'} that is a coroutine function runs on "
                f"an event loop of this process: with record_processing_on: "
                f"{options.record_processing_on}{'' if prepares else ' and consume_records_async'} "
                "give an ordinary function"
            )
        consumer_loop = ConsumerLoop(event_loop, in_pool=prepares or consume_records_async)
        if awaited:
            consumer = consumer and consumer_loop.as_function(consumer)
            change_consumer = change_consumer and consumer_loop.as_function(change_consumer)
        transforms = [consumer_loop.as_transform(each) for each in transforms]
    elif event_loop is not None:
        raise ConfigError(
            "event_loop is for a consumer or a transform that is a coroutine function: async def"
        )
    functions: dict[str, Any] = {
        "consumer": consumer,
        "change_consumer": change_consumer,
        "record_processor": getattr(record_processor, "process_records", record_processor),
        "on_connector": on_connector,
        "on_completion": on_completion,
    }
    for name, each in functions.items():
        refuse_coroutine_function(name, each)
    if consume_records_async and consumer is None:
        raise ConfigError(
            "consume_records_async needs consumer, which is called for each event: a batch is "
            "taken and marked as a whole, so there is nothing in it to call at once"
        )
    if consume_records_async == (options.order == "total"):
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
    workers: Workers | None = None
    if options.record_processing_on != "threads":
        away = consumer if consume_records_async else None
        work = EventWork(transforms, serializer, options, dead_letters is not None, away)
        makers = {"processes": WorkerProcesses, "spark": on_spark}
        workers = makers[options.record_processing_on](options.record_processing_threads, work)

    used: list[RecordProcessor] = []

    def make(
        service: RecordService,
        committer: TaskCommitter,
        retries: Retries,
        stopping: threading.Event,
    ) -> RecordHandler:
        committer.most_open_batches = most_open_batches
        if record_processor is not None:
            processor = _create_processor(record_processor)
            if any(each is processor for each in used):
                raise ConfigError(
                    "record_processor: each task needs one of its own, which marks its records "
                    "alone: give a class, or a function that makes one, in place of an object"
                )
            used.append(processor)
            processor.initialize(service, transforms, serializer, committer)
            return processor
        chain = ProcessorChain(transforms, serializer, retries, dead_letters)
        if workers is not None:
            chain = WorkerChain(transforms, serializer, retries, dead_letters, workers)
        if change_consumer is not None:
            return BatchProcessor(chain, service, committer, change_consumer)
        assert consumer is not None
        if not consume_records_async:
            return InOrderProcessor(chain, service, committer, consumer, stopping)
        by_key = options.order == "key"
        return ParallelProcessor(chain, service, committer, consumer, stopping, by_key=by_key)

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


def _create_processor(processor: RecordProcessor | MakeRecordProcessor) -> RecordProcessor:
    found: Any = processor
    if inspect.isclass(processor) or not hasattr(processor, "process_records"):
        found = found()
    created: RecordProcessor = found
    return created
