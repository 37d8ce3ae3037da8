"""The steps from a polled event to the consumer: transforms, serializer, dead letters, consumer."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tidelog.engine.events import Event, Events
from tidelog.engine.options import Retries, StoppingError
from tidelog.engine.ports import Consumer, Message, Messages, Serializer, Transform
from tidelog.errors import ConsumerError, TidelogError
from tidelog.system.callbacks import WorkNotDoneError, refuse_awaitable, refuse_coroutine
from tidelog.system.private_files import create_directory, create_file, fsync_directory

# Dead letters: events that the program's code rejects are written to a file and skipped.

Letter = dict[str, Any]
"""The document about an event."""


class DeadLetterSink(Protocol):
    """Receives the events that a chain skips."""

    def put(self, event: Event, error: ConsumerError) -> None: ...

    def write(self, letter: Letter) -> None:
        """Write a letter that another sink received, as `put` does."""
        ...


class BufferedDeadLetters:
    """Buffers letters until they are sent to the sink that writes them."""

    def __init__(self) -> None:
        self.held: list[Letter] = []

    def put(self, event: Event, error: ConsumerError) -> None:
        self.write(_letter(event, error))

    def write(self, letter: Letter) -> None:
        self.held.append(letter)


class DeadLetterFile:
    """Writes a JSON line for each event: database, table, version, op and reason, no values.

    Thread-safe, also between processes. A line is durable when `put` returns, so no offset is
    committed past an event that was not reported. A repeated event may be reported again. A line
    that was written only in part remains and is invalid: the next one begins after it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def put(self, event: Event, error: ConsumerError) -> None:
        """Raise OSError."""
        self.write(_letter(event, error))

    def write(self, letter: Letter) -> None:
        """Raise OSError."""
        directory = self._file.parent
        if not directory.is_dir():
            create_directory(directory)
            fsync_directory(directory.parent)
        descriptor = create_file(self._file, os.O_RDWR | os.O_APPEND)
        try:
            _append(descriptor, f"{json.dumps(letter)}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Each time: the creator of the file may have died before its name was durable.
        fsync_directory(directory)


def _letter(event: Event, error: ConsumerError) -> Letter:
    return {
        "database": event.source.database,
        "table": str(event.table),
        "version": event.version,
        "op": event.op,
        "reason": str(error),
    }


def _append(descriptor: int, line: bytes) -> None:
    """Append the line in one write, so that lines of several processes do not mix."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# The chain.

Lane = Sequence[Event | Message]

_MOST_EVENTS: Final = 256  # of one job: few enough that the pool's threads end together
_LEAST_SERIALIZED: Final = 2048  # without transforms: a serializer's call costs milliseconds


@dataclass(frozen=True)
class ProcessorChain:
    """The steps, callable in any thread. Errors of the program's code are raised as ConsumerError,
    which names the events by version and table, never by value.
    """

    transforms: Sequence[Transform]
    serializer: Serializer | None
    retries: Retries
    dead_letters: DeadLetterSink | None = None

    @property
    def does_nothing(self) -> bool:
        """Are events consumed as they were polled?"""
        return not self.transforms and self.serializer is None

    def transform(self, events: Sequence[Event]) -> list[Event]:
        """The events after the transforms, in order."""
        if not self.transforms:
            return list(events)
        return [made for event in events for made in self._transform_all(event)]

    def prepare(
        self, events: Sequence[Event], end: int, generation: str
    ) -> Sequence[Event | Message]:
        """The events after `transform`, and serialized if there is a serializer."""
        transformed: Sequence[Event] = events
        if self.transforms or not isinstance(events, Events):
            transformed = self.transform(events)
        serializer = self.serializer
        if serializer is None or not transformed:
            return transformed
        try:
            return self._serialize(serializer, transformed, end, generation)
        except ConsumerError as error:
            if self.dead_letters is None or _is_for_all(error):
                raise
            if len(transformed) == 1:
                self.dead_letters.put(transformed[0], error)
                return []
        # Halve repeatedly, down to the events at which it raises: only these are skipped.
        serializing = ProcessorChain((), serializer, self.retries, self.dead_letters)
        events, middle = list(transformed), len(transformed) // 2
        return [
            each
            for half in (events[:middle], events[middle:])
            for each in serializing.prepare(half, end, generation)
        ]

    def regroup(self, events: Sequence[Event], end: int, generation: str) -> Events:
        """`Events.of`; events of a transform that Arrow can't hold may be skipped if tolerated."""
        try:
            return Events.of(events, end, generation)
        except Exception:  # noqa: BLE001 - its text may have a value; the event is found next
            return Events.of([each for each in events if self._fits(each)], end, generation)

    def _fits(self, event: Event) -> bool:
        try:
            event.to_batch()
        except Exception as error:
            failure = _consumer_error("a transform's event", error, [event])
            if self.dead_letters is None:
                raise failure from error
            self.dead_letters.put(event, failure)
            return False
        return True

    def consume(self, call: Callable[[], Any], consumed: Sequence[Event | Message]) -> None:
        """Call the consumer with ``consumed``, with retries for errors that may pass."""
        try:
            self.retries.call(lambda: refuse_coroutine(call()), "consumer")
        except StoppingError:
            raise
        except Exception as error:
            raise _consumer_error("the consumer", error, consumed) from error

    def consume_again(self, consumer: Consumer, each: Event | Message, error: Exception) -> None:
        """`consume_one` after a first call of the consumer raised ``error``."""
        raised = [error]

        def consume(each: Event | Message) -> Any:
            if raised:
                raise raised.pop()
            return consumer(each)

        self.consume_one(consume, each)

    @property
    def serializes_apart(self) -> bool:
        """Are events serialized before `take` instead of within it? A serializer's call costs so
        much that one for each event would be most of the work.
        """
        return self.serializer is not None

    def consuming(self) -> ProcessorChain:
        """The chain with the last step only."""
        return ProcessorChain((), None, self.retries, self.dead_letters)

    def size_of_piece(self, events: int, workers: int) -> int:
        """The number of events that one job of the pool prepares."""
        if self.transforms:
            return max(1, min(_MOST_EVENTS, -(-events // (2 * workers))))
        return max(_LEAST_SERIALIZED, -(-events // workers))

    def groups(self, lanes: Sequence[Lane], workers: int) -> list[Lane]:
        """The lanes as they are given to the pool's threads, which take one after the other."""
        del workers
        return list(lanes)

    def take(
        self,
        lane: Lane,
        of: Events,
        consumer: Consumer,
        stopping: threading.Event,
        mark: Callable[[Event | Message], None],
    ) -> None:
        """Run all steps and the consumer, event by event; each is marked as soon as it is done."""
        for given in lane:
            if stopping.is_set():
                raise StoppingError("between two events")
            made: Sequence[Event | Message] = (given,)
            if self.transforms:
                made = self._transform_all(_event(given))
            for each in made:
                try:
                    returned: Any = consumer(each)
                    if returned is not None:
                        refuse_coroutine(returned)
                except Exception as error:  # noqa: BLE001 - raised again if it persists
                    self.consume_again(consumer, each, error)
            mark(given)

    def consume_one(self, consumer: Consumer, each: Event | Message) -> None:
        """Call a consumer of single events; an event that it rejects may become a dead letter."""
        try:
            self.consume(lambda: consumer(each), [each])
        except ConsumerError as error:
            if self.dead_letters is None or _is_for_all(error):
                raise
            self.dead_letters.put(_event(each), error)

    def _serialize(
        self, serializer: Serializer, left: Sequence[Event], end: int, generation: str
    ) -> Sequence[Message]:
        try:
            batch = left if isinstance(left, Events) else Events.of(left, end, generation)
            return self.retries.call(lambda: _as_list(serializer.serialize(batch)), "serializer")
        except (TidelogError, StoppingError):
            raise
        except Exception as error:
            raise _consumer_error("the serializer", error, left) from error

    def _transform_all(self, event: Event) -> list[Event]:
        """The events that all transforms make of one."""
        made = [event]
        for transform in self.transforms:
            made = [after for before in made for after in self._apply(transform, before)]
        return made if len(made) < 2 else as_shares(made)

    def _apply(self, transform: Transform, event: Event) -> Sequence[Event]:
        try:
            return self._call_transform(transform, event)
        except ConsumerError as error:
            if self.dead_letters is None or _is_for_all(error):
                raise
            self.dead_letters.put(event, error)
            return ()

    def _call_transform(self, transform: Transform, event: Event) -> Sequence[Event]:
        try:
            # A generator works when it is read: a retry must include that.
            return self.retries.call(lambda: _events_from(transform(event), event), "transform")
        except StoppingError:
            raise
        except Exception as error:
            raise _consumer_error("a transform", error, [event]) from error


class WrongResultError(TypeError):
    """What a transform returned is nothing of which events come. Only used as a cause."""


def as_shares(made: Sequence[Event]) -> list[Event]:
    """Mark events as made of one event: that is done when all of them are."""
    return [each.as_share((which, len(made))) for which, each in enumerate(made)]


def _events_from(returned: Any, event: Event) -> Sequence[Event]:
    """The events that a transform returned for ``event``."""
    if isinstance(returned, Event):
        return (returned,)
    if returned is None:
        return ()
    refuse_awaitable(returned)
    if isinstance(returned, Iterable):
        made: list[Any] = list(returned)
        if all(isinstance(each, Event) and each.number == event.number for each in made):
            return made
    kind = type(returned).__name__
    raise WrongResultError(
        f"returned {kind}: it gives an Event, made with replace, several, or None"
    )


def _consumer_error(who: str, error: Exception, of: Sequence[Event | Message]) -> ConsumerError:
    first, last = _event(of[0]), _event(of[-1])
    if len(of) == 1:
        where = f"version {first.version} of {first.table}"
    else:
        where = f"versions {first.version} ({first.table}) to {last.version} ({last.table})"
    if isinstance(error, (WorkNotDoneError, WrongResultError)):
        return ConsumerError(f"{who} {error}, at {where}")
    return ConsumerError(f"{who} raised {type(error).__name__} at {where}")


def _is_for_all(error: ConsumerError) -> bool:
    """Is the function itself wrong, not a single event? Then no event may be skipped."""
    return isinstance(error.__cause__, WorkNotDoneError)


def _event(of: Event | Message) -> Event:
    return of.event if isinstance(of, Message) else of


def _as_list(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages as a list: a lazy serializer's errors are then raised here."""
    return messages if isinstance(messages, (list, Messages)) else list(messages)
