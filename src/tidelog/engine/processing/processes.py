"""``record_processing_on: processes``: the chain's steps in processes of their own.

A process takes one job at a time. A thread of the pool hands it the job and waits, so what holds of
the pool holds here: order, dropping, giving up. Events go as Arrow; what comes back is what was
changed, and the originals, which stayed here, are told by their numbers.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Consumer, Message, Serializer, Transform
from tidelog.engine.processing.chain import Chain, Lane
from tidelog.engine.processing.dead_letters import DeadLetters
from tidelog.engine.retries import Retries, StoppingError
from tidelog.errors import ConfigError, ConsumerError, TidelogError

_GROUPS: Final = 4  # of each process: enough that all end together
_JOIN_S: Final = 5.0
_PARENT_S: Final = 1.0

Told = tuple[int, Any, tuple[Any, ...] | None]
"""Of an event: its number, what a transform replaced, the message's fields."""


@dataclass(frozen=True)
class Work:
    """What a process is made with."""

    transforms: Sequence[Transform]
    serializer: Serializer | None
    options: EngineOptions
    dead_letters: DeadLetters | None
    consumer: Consumer | None

    def pickled(self) -> bytes:
        """Raises ConfigError: something in it belongs to this process."""
        try:
            return pickle.dumps(self)
        except Exception as error:  # noqa: BLE001 - whatever its __reduce__ raises
            raise ConfigError(
                "record_processing_on: processes needs transforms, and with consume_records_async "
                "a consumer, that are functions of a module (no lambda, nothing that holds a "
                f"lock or a connection): {type(error).__name__}"
            ) from None

    def do(self, events: Events) -> list[Told]:
        """All of it: what comes back is empty where there is a consumer."""
        chain = Chain(
            self.transforms,
            self.serializer,
            Retries(self.options, threading.Event()),
            self.dead_letters,
        )
        # All at once: a serializer's call for each event would be most of the work.
        prepared = chain.prepared(events, events.end, events.generation)
        if self.consumer is None:
            return [_told(each) for each in prepared]
        for each in prepared:
            chain.consume_one(self.consumer, each)
        return []


class WorkerProcesses:
    """As many as the pool has threads. Thread-safe. A process starts with its first job."""

    def __init__(self, count: int, work: Work) -> None:
        self._work = work.pickled()
        self._lock = threading.Lock()
        self._closed = False
        self._processes: list[BaseProcess] = []
        self._free: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def call(self, events: Events) -> list[Told]:
        """What `Work.do` returns.

        Raises:
            StoppingError: they were closed meanwhile.
            ConsumerError: the process has ended, or what the work raised.
            OSError: no process could be started.
        """
        job = pickle.dumps(events)
        connection = self._free.get()
        usable: Connection | None = None
        try:
            messages = [self._work, job] if connection is None else [job]
            connection = connection or self._start()
            answer = self._answer(connection, messages)
            usable = connection
        finally:
            self._free.put(usable)
        return _read(answer)

    def close(self) -> None:
        """End them, whatever they do."""
        with self._lock:
            self._closed = True
            processes, self._processes = self._processes, []
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()

    def _answer(self, connection: Connection, messages: Sequence[bytes]) -> bytes:
        try:
            for message in messages:
                connection.send_bytes(message)
            return connection.recv_bytes()
        except (EOFError, OSError) as error:
            if self._closed:
                raise StoppingError("processes") from error
            raise ConsumerError("a process that processes records has ended by itself") from error

    def _start(self) -> Connection:
        # The work is sent, as jobs are: arguments go through a pipe whose other end this process
        # holds, too. More of them than it takes would be waited for without end, under the lock,
        # if the process died meanwhile.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs,), name="tidelog-records", daemon=True
        )
        with self._lock:
            if self._closed:
                raise StoppingError("processes")
            process.start()
            self._processes.append(process)
        theirs.close()  # so that its end is seen here
        return ours


@dataclass(frozen=True)
class ProcessChain(Chain):
    """A `Chain` whose steps run in processes; ``processes`` have the consumer in parallel modes."""

    processes: WorkerProcesses | None = None

    def prepared(self, events: Sequence[Event], end: int, generation: str) -> list[Event | Message]:
        originals = {event.number: event for event in events}
        return [_back(told, originals) for told in self._called(events, end, generation)]

    @property
    def serializes_apart(self) -> bool:
        return False

    def groups(self, lanes: Sequence[Lane], workers: int) -> list[Lane]:
        # Neighbours stay together: they are one slice of Arrow.
        count = min(len(lanes), workers * _GROUPS)
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
        self._called(events, of.end, of.generation)
        for event in lane:
            mark(event)

    def _called(self, events: Sequence[Event], end: int, generation: str) -> list[Told]:
        assert self.processes is not None
        return self.processes.call(Events.of(events, end, generation))


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


def _read(answer: bytes) -> list[Told]:
    try:
        done, found = pickle.loads(answer)  # noqa: S301 - from a process of ours
    except Exception as error:
        raise _not_sent(error) from error
    if not done:
        raise found
    told: list[Told] = found
    return told


def _serve(connection: Connection) -> None:
    """In the process, until the other end is closed."""
    threading.Thread(target=_end_with_parent, name="tidelog-parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends it
    closed = (EOFError, OSError)  # OSError: in the middle of a message
    try:
        pickled = connection.recv_bytes()
    except closed:
        return
    work: Work = pickle.loads(pickled)  # noqa: S301 - from the process that made this one
    with suppress(*closed):
        while True:
            connection.send_bytes(_done(work, connection.recv_bytes()))


def _end_with_parent() -> None:
    """A process that outlived its engine, which was killed, would go on to consume its events while
    the next engine consumes the same ones.
    """
    parent, above = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # Whoever was forked from the parent keeps open what it is waited for with: hence the id, too.
    while parent.is_alive() and os.getppid() == above:
        parent.join(_PARENT_S)
    os._exit(1)


def _done(work: Work, job: bytes) -> bytes:
    """Of a job, what `_read` reads."""
    try:
        found = work.do(pickle.loads(job))  # noqa: S301 - from the engine's process
    except Exception as error:  # noqa: BLE001 - raised where the job comes from
        return pickle.dumps((False, _known_there(error)))
    try:
        return pickle.dumps((True, found))
    except Exception as error:  # noqa: BLE001 - as of what the work raised
        return pickle.dumps((False, _not_sent(error)))


def _known_there(error: Exception) -> TidelogError:
    """A program's own error may not be read there, and its text may quote a row."""
    if isinstance(error, TidelogError) and type(error).__module__ == TidelogError.__module__:
        return error
    return ConsumerError(f"a process raised {type(error).__name__}")


def _not_sent(error: Exception) -> ConsumerError:
    return ConsumerError(
        "what a process made of events can't be pickled, which it needs to be: "
        f"{type(error).__name__}"
    )
