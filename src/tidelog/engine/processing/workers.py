"""Runs the chain's steps outside this process: in worker processes or on Spark's executors.

A worker takes one job at a time. A thread of the pool sends it and waits, so the pool's rules hold
here, too: order, dropping, giving up. Events are sent as Arrow; only changes are returned, and
refer to the originals, which stayed here, by their numbers.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, Protocol

from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Consumer, Message, Serializer, Transform
from tidelog.engine.processing.chain import Lane, ProcessorChain, as_shares
from tidelog.engine.processing.dead_letters import BufferedDeadLetters, Letter
from tidelog.engine.retries import Retries, StoppingError
from tidelog.errors import ConsumerError, TidelogError

_GROUPS: Final = 4  # per worker, if jobs are cheap: enough that all end together

Result = tuple[int, Any, tuple[Any, ...] | None]
"""An event's number, the images that a transform replaced, and the message's fields."""


class JobResult(NamedTuple):
    """The result of a job."""

    results: list[Result]
    letters: list[Letter]


class Workers(Protocol):
    """Execute jobs outside this process. Thread-safe."""

    jobs_are_dear: bool
    """Does a job cost so much that a batch should be only one job for each worker?"""

    def open(self) -> None:
        """Prepare for the first job. Raises TidelogError if no job can be executed."""
        ...

    def call(self, events: Events) -> JobResult:
        """Return the result of `EventWork.do` in a worker.

        Raises:
            StoppingError: if the workers were closed in the meantime.
            ConsumerError: if a worker has ended, or the error of the work.
            OSError: if no worker could be started.
        """
        ...

    def close(self) -> None:
        """End the workers, even during a job; also if they were not opened."""
        ...


@dataclass(frozen=True)
class EventWork:
    """The data that a worker needs for its jobs.

    Attributes:
        tolerant: whether events at which the program's code raises become dead letters. The
            engine's process writes these: a worker's files are on some other host.
        consumer: the consumer, in parallel modes.
    """

    transforms: Sequence[Transform]
    serializer: Serializer | None
    options: EngineOptions
    tolerant: bool
    consumer: Consumer | None

    def do(self, events: Events) -> JobResult:
        """Run all steps; with a consumer, the result has no events."""
        letters = BufferedDeadLetters()
        chain = ProcessorChain(
            self.transforms,
            self.serializer,
            Retries(self.options, threading.Event(), self.options.retry_on),
            letters if self.tolerant else None,
        )
        # All events at once: a serializer's call for each would be most of the work.
        prepared = chain.prepare(events, events.end, events.generation)
        if self.consumer is None:
            return JobResult([_result(each) for each in prepared], letters.held)
        for each in prepared:
            chain.consume_one(self.consumer, each)
        return JobResult([], letters.held)


MakeWorkers = Callable[[int, EventWork], Workers]
"""Creates so many workers for this work. Raises ConfigError if the work can't be sent,
MissingExtraError, …
"""


@dataclass(frozen=True)
class WorkerChain(ProcessorChain):
    """A `ProcessorChain` whose steps run in workers. In parallel modes ``workers`` call the
    consumer.
    """

    workers: Workers | None = None

    def prepare(
        self, events: Sequence[Event], end: int, generation: str
    ) -> Sequence[Event | Message]:
        originals = {event.number: event for event in events}
        back = [_event_of(result, originals) for result in self._call(events, end, generation)]
        return [each for _, of_one in groupby(back, _number) for each in _as_shares([*of_one])]

    @property
    def serializes_apart(self) -> bool:
        return False

    def size_of_piece(self, events: int, workers: int) -> int:
        if self._workers.jobs_are_dear:
            return max(1, -(-events // workers))
        return super().size_of_piece(events, workers)

    def groups(self, lanes: Sequence[Lane], workers: int) -> list[Lane]:
        # Adjacent lanes stay together: they are one slice of Arrow.
        count = min(len(lanes), workers if self._workers.jobs_are_dear else workers * _GROUPS)
        cuts = [len(lanes) * number // count for number in range(count + 1)]
        return [
            [event for lane in lanes[low:high] for event in lane] for low, high in pairwise(cuts)
        ]

    def take(
        self,
        lane: Lane,
        of: Events,
        consumer: Consumer,
        stopping: threading.Event,
        mark: Callable[[Event | Message], None],
    ) -> None:
        if stopping.is_set():
            raise StoppingError("before events")
        events = [each for each in lane if isinstance(each, Event)]
        self._call(events, of.end, of.generation)
        for event in lane:
            mark(event)

    def _call(self, events: Sequence[Event], end: int, generation: str) -> list[Result]:
        done = self._workers.call(Events.of(events, end, generation))
        for letter in done.letters:
            assert self.dead_letters is not None
            self.dead_letters.write(letter)
        return done.results

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None
        return self.workers


def _result(each: Event | Message) -> Result:
    if isinstance(each, Event):
        return each.number, each.replaced, None
    fields = (each.key, each.value, each.headers, each.topic)
    return each.event.number, each.event.replaced, fields


def _event_of(result: Result, originals: dict[int, Event]) -> Event | Message:
    number, replaced, fields = result
    event = originals[number]
    if replaced is not None:
        event = event.replace(**replaced)
    if fields is None:
        return event
    key, value, headers, topic = fields
    return Message(key, value, headers, topic, event)


def _number(each: Event | Message) -> int:
    return each.number if isinstance(each, Event) else each.event.number


def _as_shares(made: list[Event | Message]) -> Sequence[Event | Message]:
    if len(made) < 2:
        return made
    events = as_shares([each.event if isinstance(each, Message) else each for each in made])
    return [
        each._replace(event=event) if isinstance(each, Message) else event
        for each, event in zip(made, events, strict=True)
    ]


def read_answer(answer: bytes) -> JobResult:
    """The result in a worker's answer. Raises what `Workers.call` raises."""
    try:
        done, value = pickle.loads(answer)  # noqa: S301 - from a worker of this engine
    except Exception as error:
        raise _not_sent(error) from error
    if not done:
        raise value
    result: JobResult = value
    return result


def answer_to(job: bytes, work: EventWork) -> bytes:
    """The answer to a job of pickled events, for `read_answer`. Runs in a worker."""
    try:
        result = work.do(pickle.loads(job))  # noqa: S301 - from the engine's process
    except Exception as error:  # noqa: BLE001 - raised in the job's caller
        return failed_answer(error)
    try:
        return pickle.dumps((True, result))
    except Exception as error:  # noqa: BLE001 - as for errors of the work
        return pickle.dumps((False, _not_sent(error)))


def failed_answer(error: Exception) -> bytes:
    """The answer for an error; one of the program may not be loadable, and its text quote a row."""
    return pickle.dumps((False, _without_worker_traceback(error)))


def _without_worker_traceback(error: Exception) -> TidelogError:
    if isinstance(error, TidelogError) and type(error).__module__ == TidelogError.__module__:
        return error
    return ConsumerError(f"a worker raised {type(error).__name__}")


def _not_sent(error: Exception) -> ConsumerError:
    return ConsumerError(
        f"the result of a worker can't be pickled, which is necessary: {type(error).__name__}"
    )
