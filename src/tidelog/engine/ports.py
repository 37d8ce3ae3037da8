"""What an engine is made of, and what a program may put in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from tidelog.engine.events import Event, Events
from tidelog.engine.options import CommitPolicy, EngineOptions

T = TypeVar("T")

Transform = Callable[[Event], Any]
"""Gives the event, another made of it with `Event.replace`, several of these (any iterable, also a
generator), or None: it is left out. A coroutine function is awaited, an asynchronous generator read
to its end.
"""


class Message(NamedTuple):  # there is one for each event: a dataclass takes four times as long
    """A serialized event. ``event`` is the one that it was made of."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str] | None
    topic: str
    event: Event

    def __repr__(self) -> str:
        return f"<Message of {self.event!r}>"


class Committer(Protocol):
    """How a consumer says what it has done. Thread-safe; may be called after the consumer returned.

    An offset is never committed past an event that was not marked. What is marked after the engine
    gave it up at its end does not count.
    """

    def mark_processed(
        self, done: Event | Message | Events | Sequence[Event | Message | Events]
    ) -> None:
        """This event, or all of these, are done."""
        ...

    def mark_batch_finished(self) -> None:
        """Commit what is marked, as the commit policy says."""
        ...


class EndReachedError(Exception):
    """A task has given all that it will ever give. Never seen by programs."""


class SourceTask(Protocol):
    """What gives the events of one log.

    `start`, `poll` and `commit` are called from one thread, in this order; `stop` once, from any
    thread, after `start` was called, also if that failed. Only if `start`, `poll` or `commit` do
    not come back in time may `stop` be called beside the latter two.
    """

    name: str
    trouble: str
    """Why it has not started yet, as far as it knows; empty: nothing is wrong. Read from any
    thread.
    """

    def start(self, cancelled: threading.Event) -> None:
        """Returns when events can be polled; gives up when ``cancelled`` is set."""
        ...

    def poll(self, timeout_s: float) -> Events | None:
        """The next events of the log, in order; None if none came within the time.

        Raises EndReachedError: nothing will come any more. The engine ends when all tasks say so.
        """
        ...

    def committed(self) -> int | None:
        """The durable offset; None: there is none."""
        ...

    def commit(self, offset: int) -> None:
        """Everything below ``offset`` is done; it is durable when this returns."""
        ...

    def stop(self) -> None:
        """Free everything that `start` took, also what a failed one took."""
        ...


class Connector(Protocol):
    """Gives the tasks. Called from the thread that runs the engine; `stop` also after errors."""

    def start(self) -> None: ...

    def tasks(self) -> Sequence[SourceTask]: ...

    def stop(self) -> None: ...


class Serializer(Protocol):
    """Makes messages, as many as events, in their order. Thread-safe."""

    def serialize(self, events: Events) -> Sequence[Message]: ...


class RecordService(Protocol):
    """The engine's pool of threads."""

    threads: int

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Raises StoppingError if the engine stops. A job that is dropped or given up at the
        engine's end gets this error, too.
        """
        ...


class RecordProcessor(Protocol):
    """Takes over the whole chain from polled events to the consumer."""

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
        """Called from the task's thread, batch after batch. What it raises stops the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Happened:
    """What `on_connector` is told. ``task`` is None for the connector itself."""

    what: Literal["started", "stopped"]
    task: str | None


OnConnector = Callable[[Happened], Any]
OnCompletion = Callable[[bool, str, BaseException | None], Any]
Consumer = Callable[[Any], Any]
ChangeConsumer = Callable[[Any, Committer], Any]


Clock = Callable[[], float]
"""Seconds that never go back, as `time.monotonic`."""


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
    """The context of the connector; ``tasks`` is empty until they have been made."""

    options: EngineOptions
    clock: Clock
    transforms: Sequence[Transform]
    tasks: Sequence[TaskContext]
