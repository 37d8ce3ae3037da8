"""The chain's steps outside this process: in processes of their own, or on Spark's executors.

A worker takes one job at a time. A thread of the pool hands it over and waits, so what holds of the
pool holds here: order, dropping, giving up. Events go as Arrow; what comes back is what was
changed, and the originals, which stayed here, are told by their numbers.
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
from tidelog.engine.processing.chain import ChunkSpan, ProcessorChain, shared
from tidelog.engine.processing.dead_letters import BufferedDeadLetters, Letter
from tidelog.engine.retries import Retries, StoppingError
from tidelog.errors import ConsumerError, TidelogError

_GROUPS: Final = 4  # of each worker, where jobs are cheap: enough that all end together

Told = tuple[int, Any, tuple[Any, ...] | None]
"""An event's number, what a transform replaced, and the message's fields."""


class Done(NamedTuple):
    """The result of a job."""

    told: list[Told]
    letters: list[Letter]


class Workers(Protocol):
    """Does jobs outside this process. Thread-safe."""

    jobs_are_dear: bool
    """Does a job cost so much that a batch is one for each worker, and no more?"""

    def open(self) -> None:
        """Before the first job. Raises TidelogError: none can be done."""
        ...

    def call(self, events: Events) -> Done:
        """What `EventWork.do` returns there.

        Raises:
            StoppingError: they were closed meanwhile.
            ConsumerError: a worker has ended, or what the work raised.
            OSError: none could be begun.
        """
        ...

    def close(self) -> None:
        """End the workers, whatever they do; also if they were not opened."""
        ...


@dataclass(frozen=True)
class EventWork:
    """What a worker needs for its jobs.

    Attributes:
        tolerant: events at which the program's code raises are told, and passed over. They are told
            by the engine's process: a worker's files are on some host.
        consumer: in parallel modes.
    """

    transforms: Sequence[Transform]
    serializer: Serializer | None
    options: EngineOptions
    tolerant: bool
    consumer: Consumer | None

    def do(self, events: Events) -> Done:
        """All of it: nothing is told of events where there is a consumer."""
        letters = BufferedDeadLetters()
        chain = ProcessorChain(
            self.transforms,
            self.serializer,
            Retries(self.options, threading.Event(), self.options.retry_on),
            letters if self.tolerant else None,
        )
        # All at once: a serializer's call for each event would be most of the work.
        prepared = chain.prepared(events, events.end, events.generation)
        if self.consumer is None:
            return Done([_told(each) for each in prepared], letters.held)
        for each in prepared:
            chain.consume_one(self.consumer, each)
        return Done([], letters.held)


MakeWorkers = Callable[[int, EventWork], Workers]
"""Makes so many workers for this work. Raises ConfigError if the work can't be sent,
MissingExtraError, …
"""


@dataclass(frozen=True)
class WorkerChain(ProcessorChain):
    """A `ProcessorChain` whose steps run elsewhere. ``workers`` call the consumer in parallel
    modes.
    """

    workers: Workers | None = None

    def prepared(
        self, events: Sequence[Event], end: int, generation: str
    ) -> Sequence[Event | Message]:
        originals = {event.number: event for event in events}
        back = [_back(told, originals) for told in self._called(events, end, generation)]
        return [each for _, of_one in groupby(back, _number) for each in _shared([*of_one])]

    @property
    def serializes_apart(self) -> bool:
        return False

    def size_of_piece(self, events: int, workers: int) -> int:
        if self._workers.jobs_are_dear:
            return max(1, -(-events // workers))
        return super().size_of_piece(events, workers)

    def groups(self, lanes: Sequence[ChunkSpan], workers: int) -> list[ChunkSpan]:
        # Neighbours stay together: they are one slice of Arrow.
        count = min(len(lanes), workers if self._workers.jobs_are_dear else workers * _GROUPS)
        cuts = [len(lanes) * number // count for number in range(count + 1)]
        return [
            [event for lane in lanes[low:high] for event in lane] for low, high in pairwise(cuts)
        ]

    def take(
        self,
        lane: ChunkSpan,
        of: Events,
        consumer: Consumer,
        stopping: threading.Event,
        mark: Callable[[Event | Message], None],
    ) -> None:
        if stopping.is_set():
            raise StoppingError("before events")
        events = [each for each in lane if isinstance(each, Event)]
        self._called(events, of.end, of.generation)
        for event in lane:
            mark(event)

    def _called(self, events: Sequence[Event], end: int, generation: str) -> list[Told]:
        done = self._workers.call(Events.of(events, end, generation))
        for letter in done.letters:
            assert self.dead_letters is not None
            self.dead_letters.write(letter)
        return done.told

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None
        return self.workers


def _told(each: Event | Message) -> Told:
    if isinstance(each, Event):
        return each.number, each.replaced, None
    fields = (each.key, each.value, each.headers, each.topic)
    return each.event.number, each.event.replaced, fields


def _back(told: Told, originals: dict[int, Event]) -> Event | Message:
    number, replaced, fields = told
    event = originals[number]
    if replaced is not None:
        event = event.replace(**replaced)
    if fields is None:
        return event
    key, value, headers, topic = fields
    return Message(key, value, headers, topic, event)


def _number(each: Event | Message) -> int:
    return each.number if isinstance(each, Event) else each.event.number


def _shared(made: list[Event | Message]) -> Sequence[Event | Message]:
    if len(made) < 2:
        return made
    events = shared([each.event if isinstance(each, Message) else each for each in made])
    return [
        each._replace(event=event) if isinstance(each, Message) else event
        for each, event in zip(made, events, strict=True)
    ]


def read_answer(answer: bytes) -> Done:
    """Raises what `Workers.call` raises."""
    try:
        done, found = pickle.loads(answer)  # noqa: S301 - from a worker of ours
    except Exception as error:
        raise _not_sent(error) from error
    if not done:
        raise found
    told: Done = found
    return told


def answer_to(job: bytes, work: EventWork) -> bytes:
    """The answer to a job of pickled events, for `read_answer`. Runs in a worker."""
    try:
        found = work.do(pickle.loads(job))  # noqa: S301 - from the engine's process
    except Exception as error:  # noqa: BLE001 - raised where the job comes from
        return failed_answer(error)
    try:
        return pickle.dumps((True, found))
    except Exception as error:  # noqa: BLE001 - as of what the work raised
        return pickle.dumps((False, _not_sent(error)))


def failed_answer(error: Exception) -> bytes:
    """A program's own error may not be read there, and its text may quote a row."""
    return pickle.dumps((False, _known_there(error)))


def _known_there(error: Exception) -> TidelogError:
    if isinstance(error, TidelogError) and type(error).__module__ == TidelogError.__module__:
        return error
    return ConsumerError(f"a worker raised {type(error).__name__}")


def _not_sent(error: Exception) -> ConsumerError:
    return ConsumerError(
        "what a process made of events can't be pickled, which it needs to be: "
        f"{type(error).__name__}"
    )
