"""The parts of an engine, and the interfaces that a program may implement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, overload

from tidelog.engine.events import Event, Events
from tidelog.engine.options import CommitPolicy, EngineOptions

T = TypeVar("T")

Transform = Callable[[Event], Any]
"""Returns the event, another made of it with `Event.replace`, several of these (any iterable, also
a generator), or None to drop it. A coroutine function is awaited, an asynchronous generator is read
to its end.
"""


class Message(NamedTuple):  # one for each event: creating a dataclass takes four times as long
    """A serialized event. ``event``: the event that it was made of."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str] | None
    topic: str
    event: Event

    def __repr__(self) -> str:
        return f"<Message of {self.event!r}>"


class Committer(Protocol):
    """Lets a consumer report completed events. Thread-safe; may be called after the consumer
    returned.

    An offset is never committed past an event that was not marked. Marks that come after the engine
    gave up on the event at its end do not count.
    """

    def mark_processed(
        self, done: Event | Message | Events | Sequence[Event | Message | Events]
    ) -> None:
        """Mark this event, or all of these, as done."""
        ...

    def mark_batch_finished(self) -> None:
        """Commit what is marked, according to the commit policy."""
        ...


class EndReachedError(Exception):
    """A task has delivered all its events. Never seen by programs."""


class SourceTask(Protocol):
    """Delivers the events of one log.

    `start`, `poll` and `commit` are called from one thread, in this order; `stop` once, from any
    thread, after `start` was called, even if that failed. `stop` may be called during `start`,
    `poll` or `commit` only if these do not return in time.
    """

    name: str
    trouble: str
    """The known reason why it has not started yet; empty: there is none. Read from any thread."""

    def start(self, cancelled: threading.Event) -> None:
        """Return when events can be polled; give up when ``cancelled`` is set."""
        ...

    def poll(self, timeout_s: float) -> Events | None:
        """Return the next events of the log, in order; None if none came in time.

        Raises EndReachedError when no more will come. The engine ends when all tasks have raised
        it.
        """
        ...

    def committed(self) -> int | None:
        """Return the durable offset; None: there is none."""
        ...

    def commit(self, offset: int) -> None:
        """Store that everything below ``offset`` is done; durable when this returns."""
        ...

    def stop(self) -> None:
        """Free everything that `start` acquired, even if it failed."""
        ...


class Connector(Protocol):
    """Creates the tasks. Called from the thread that runs the engine; `stop` also after errors."""

    def start(self) -> None: ...

    def tasks(self) -> Sequence[SourceTask]: ...

    def stop(self) -> None: ...


class Serializer(Protocol):
    """Creates messages, one for each event, in their order. Thread-safe."""

    def serialize(self, events: Events) -> Sequence[Message]: ...


class RecordService(Protocol):
    """The engine's pool of threads."""

    threads: int

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue a job. Raises StoppingError if the engine stops; so does the result of a job that
        was dropped or given up at the engine's end.
        """
        ...


class RecordProcessor(Protocol):
    """Replaces the whole chain from polled events to the consumer."""

    def initialize(
        self,
        record_service: RecordService,
        transformations: Sequence[Transform],
        serializer: Serializer | None,
        committer: Committer,
    ) -> None:
        """Called once, before the first events of a task."""
        ...

    def process_records(self, records: Events) -> None:
        """Called from the task's thread, batch after batch. Its exceptions stop the engine."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectorEvent:
    """The argument of `on_connector`. ``task`` is None for the connector itself."""

    what: Literal["started", "stopped"]
    task: str | None


OnConnector = Callable[[ConnectorEvent], Any]
OnCompletion = Callable[[bool, str, BaseException | None], Any]
Consumer = Callable[[Any], Any]
ChangeConsumer = Callable[[Any, Committer], Any]


Clock = Callable[[], float]
"""Monotonic seconds, as `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The context of one task. ``task`` reads its offset (`committed`) and writes it (`commit`)."""

    name: str
    task: SourceTask
    offset_commit_policy: CommitPolicy
    clock: Clock
    transforms: Sequence[Transform]


@dataclass(frozen=True, slots=True)
class ConnectorContext:
    """The context of the connector; ``tasks`` is empty until they have been created."""

    options: EngineOptions
    clock: Clock
    transforms: Sequence[Transform]
    tasks: Sequence[TaskContext]


# The messages of a batch, stored in columns.


class Messages(Sequence[Message]):
    """A sequence that creates each message on access: thousands of objects that live as long as a
    batch would make Python's garbage collector scan the program's objects again and again.

    Args:
        events: the events of the messages.
        keys, values, headers, topics: columns, one entry for each message.
    """

    def __init__(
        self,
        events: Events,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[dict[str, str] | None],
        topics: Sequence[str],
    ) -> None:
        self._events = events
        self._columns = keys, values, headers, topics

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Message]:
        # As `Message(…)`, in a third of the time.
        return map(tuple.__new__, repeat(Message), zip(*self._columns, self._events, strict=True))

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if isinstance(at, slice):
            return list(self)[at]
        keys, values, headers, topics = self._columns
        return Message(keys[at], values[at], headers[at], topics[at], self._events[at])
