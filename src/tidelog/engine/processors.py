"""The modes of an engine: how polled events reach the consumer.

========================  ====================  ==========================================
consumer                  order                 what runs in the pool
========================  ====================  ==========================================
batch        (1), (2)     total                 transforms, serialization; waits for all
per record   (3), (4)     total                 transforms, serialization
per record   (5), (6)     none, or by key       transforms, serialization and the consumer
========================  ====================  ==========================================

The second mode of each pair has a serializer. Every processor marks events that a transform drops.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any, Final, TypeVar

from tidelog.engine.chain import Lane, ProcessorChain
from tidelog.engine.events import Event, Events
from tidelog.engine.options import StoppingError
from tidelog.engine.ports import (
    ChangeConsumer,
    Committer,
    Consumer,
    Message,
    RecordService,
)
from tidelog.engine.running_task import TaskCommitter
from tidelog.model.schema import TableName
from tidelog.system.callbacks import function_name, refuse_coroutine

T = TypeVar("T", Event, Message, Event | Message)


def stages(events: Sequence[T]) -> Iterator[list[list[T]]]:
    """Split the events, or messages of them, into consecutive stages of lanes that may run in
    parallel.

    A lane keeps its events in order. It has all of a key's events, those of keys that one change
    connects (a row that moved from key to key), and all of a table without a key. A truncate is a
    stage of its own: it concerns every key of its table. A change of a table's schema begins
    another stage, because a key may be spelled differently after it.
    """
    low = 0
    schemas: dict[TableName, int] = {}
    for at, each in enumerate(events):
        event = _event(each)
        number = event.schema.schema_id
        alone = event.op == "t"
        if alone or schemas.get(event.table, number) != number:
            if low < at:
                yield _lanes(events[low:at])
            low, schemas = at, {}
        schemas[event.table] = number
        if alone:
            yield [[each]]
            low, schemas = at + 1, {}
    if low < len(events):
        yield _lanes(events[low:])


def _lanes(events: Sequence[T]) -> list[list[T]]:
    names = [_name(_event(each)) for each in events]
    leader: dict[Any, Any] = {name: name for name in names}

    def find(name: Any) -> Any:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for place in range(1, len(events)):
        # The two halves of a key change have one version.
        if _event(events[place]).version == _event(events[place - 1]).version:
            leader[find(names[place])] = find(names[place - 1])
    lanes: dict[Any, list[T]] = {}
    for name, each in zip(names, events, strict=True):
        lanes.setdefault(find(name), []).append(each)
    return list(lanes.values())


def _event(of: Event | Message) -> Event:
    return of.event if isinstance(of, Message) else of


def _name(event: Event) -> tuple[Any, ...]:
    key = event.key
    values = () if key is None else tuple(map(_value, key.values()))
    return (event.table, *values)


def _value(value: Any) -> Any:
    # NaN is a key like any other, but not equal to itself.
    return "NaN" if isinstance(value, float) and value != value else value


COMMIT_WITHIN_S: Final = 1.0
"""Interval for committing the completed part of a batch: a killed engine repeats at most that
much.
"""


class BatchProcessor:
    """Modes (1) and (2). Marks within a batch are committed when the consumer asks for it; they may
    become durable later.
    """

    def __init__(
        self,
        chain: ProcessorChain,
        service: RecordService,
        committer: Committer,
        consumer: ChangeConsumer,
    ) -> None:
        self._chain, self._service = chain, service
        self._committer, self._consumer = committer, consumer
        self.consumer_name = function_name(consumer)

    def process_records(self, records: Events) -> None:
        chain = self._chain
        input_events: Events | list[Event | Message] = records
        if not chain.does_nothing:
            prepared: list[Event | Message] = []
            for originals, part in _prepare_all(chain, self._service, records):
                _mark_left_out(self._committer, originals, part)
                prepared += part
            input_events = prepared
            if chain.serializer is None:
                events = [each for each in prepared if isinstance(each, Event)]
                input_events = chain.regroup(events, records.end, records.generation)
                if len(input_events) < len(events):
                    _mark_left_out(self._committer, events, input_events)
            if not input_events:
                self._committer.mark_batch_finished()
                return
        # The only retry, so that a failed batch is repeated as a whole.
        chain.consume(lambda: self._consumer(input_events, self._committer), _ends(input_events))


class InOrderProcessor:
    """Modes (3) and (4): later events are prepared while earlier ones are consumed."""

    def __init__(
        self,
        chain: ProcessorChain,
        service: RecordService,
        committer: TaskCommitter,
        consumer: Consumer,
        stopping: threading.Event,
    ) -> None:
        self._chain, self._service, self._committer = chain, service, committer
        self._consumer, self._stopping = consumer, stopping
        self.consumer_name = function_name(consumer)
        self._commit_at = 0.0

    def process_records(self, records: Events) -> None:
        self._commit_at = time.monotonic() + COMMIT_WITHIN_S
        if self._chain.does_nothing:
            self._consume(records)
        else:
            for originals, part in _prepare_all(self._chain, self._service, records):
                self._consume(part)
                _mark_left_out(self._committer, originals, part)
        self._committer.mark_batch_finished()

    def _consume(self, part: Sequence[Event | Message]) -> None:
        # The hot loop: as little as possible for each event; the rest of the path is in columns.
        consumer, stopping, committer = self._consumer, self._stopping, self._committer
        # A transform may return another event than it was given: then that one is marked.
        untouched = not self._chain.transforms
        clock, commit_at = time.monotonic, self._commit_at
        for each in part:
            if stopping.is_set():
                raise StoppingError("between two events")
            try:
                returned: Any = consumer(each)
                if returned is not None:
                    refuse_coroutine(returned)
            except Exception as error:  # noqa: BLE001 - raised again by the chain
                self._chain.consume_again(consumer, each, error)
            if untouched:
                committer.below = (each if isinstance(each, Event) else each.event).number + 1
            else:
                committer.mark_processed(each)
            if clock() >= commit_at:
                committer.commit_within_batch()
                commit_at = self._commit_at = clock() + COMMIT_WITHIN_S


class ParallelProcessor:
    """Modes (5) and (6); ``by_key``: events of one key in order, keys in parallel."""

    def __init__(
        self,
        chain: ProcessorChain,
        service: RecordService,
        committer: TaskCommitter,
        consumer: Consumer,
        stopping: threading.Event,
        *,
        by_key: bool,
    ) -> None:
        self._chain, self._service, self._committer = chain, service, committer
        self.consumer_name = function_name(consumer)
        self._consumer, self._stopping, self._by_key = consumer, stopping, by_key

    def process_records(self, records: Events) -> None:
        if self._chain.serializes_apart:
            for originals, part in _prepare_all(self._chain, self._service, records):
                self._consume(self._chain.consuming(), part, records)
                _mark_left_out(self._committer, originals, part)
        else:
            self._consume(self._chain, list(records), records)
        self._committer.mark_batch_finished()

    def _consume(self, chain: ProcessorChain, part: Lane, records: Events) -> None:
        if self._by_key:
            for lanes in stages(part):
                self._run_parallel(chain, lanes, records)
        else:
            self._run_parallel(chain, [[each] for each in part], records)

    def _run_parallel(self, chain: ProcessorChain, lanes: Sequence[Lane], records: Events) -> None:
        """Run one job for each thread, which takes lane after lane: a job for each lane would cost
        more than most lanes do.
        """
        groups = chain.groups(lanes, self._service.threads)
        untaken: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for group in groups:
            untaken.put(group)
        failed = threading.Event()

        def work() -> None:
            try:
                while not failed.is_set():
                    try:
                        lane = untaken.get_nowait()
                    except queue.Empty:
                        return
                    self._run(chain, lane, records)
            except BaseException:
                failed.set()
                raise

        count = min(len(groups), self._service.threads)
        futures = [self._service.submit(work) for _ in range(count)]
        while True:
            done, left = wait(futures, COMMIT_WITHIN_S, FIRST_EXCEPTION)
            if not left or any(each.exception() for each in done):
                break
            self._committer.commit_within_batch()
        for future in left:
            future.cancel()  # running ones continue; what they finish still counts
        failures = [error for each in done if (error := each.exception()) is not None]
        for error in sorted(failures, key=lambda error: isinstance(error, StoppingError)):
            raise error

    def _run(self, chain: ProcessorChain, lane: Lane, records: Events) -> None:
        mark = self._committer.mark_processed
        chain.take(lane, records, self._consumer, self._stopping, mark)


def _prepare_all(
    chain: ProcessorChain, service: RecordService, records: Events
) -> Iterator[tuple[Sequence[Event], Sequence[Event | Message]]]:
    """Slices of the events with their prepared results, in order; all run at the same time."""
    parts: list[Sequence[Event]]
    size = chain.size_of_piece(len(records), service.threads)
    if chain.transforms:
        events = list(records)
        parts = [events[low : low + size] for low in range(0, len(events), size)]
    else:
        parts = list(records.pieces(size))
    futures = []
    try:
        for part in parts:
            futures.append(
                service.submit(
                    lambda part=part: chain.prepare(part, records.end, records.generation)  # type: ignore[misc]
                )
            )
        for part, future in zip(parts, futures, strict=True):
            yield part, future.result()
    finally:
        for future in futures:
            future.cancel()


def _mark_left_out(
    committer: Committer, originals: Sequence[Event], prepared: Sequence[Event | Message]
) -> None:
    """Mark what nobody consumes: dropped events, and dropped parts of split events."""
    if originals is prepared or (isinstance(originals, Events) and len(prepared) == len(originals)):
        return  # no transform: all are as they were polled
    kept: dict[int, Event] = {}
    shares: dict[int, set[int]] = {}
    for each in prepared:
        event = each.event if isinstance(each, Message) else each
        kept[event.number] = event
        if event.share is not None:
            shares.setdefault(event.number, set()).add(event.share[0])
    if not shares and len(prepared) >= len(originals):
        return  # also if a transform returned another event than it was given
    left_out = [event for event in originals if event.number not in kept]
    for number, which in shares.items():
        event = kept[number]
        _, count = event.share or (0, 1)
        if len(which) < count:
            left_out += [event.as_share((lost, count)) for lost in {*range(count)} - which]
    if left_out:
        committer.mark_processed(left_out)


def _ends(taken: Events | list[Event | Message]) -> list[Event | Message]:
    return [taken[0]] if len(taken) == 1 else [taken[0], taken[-1]]
