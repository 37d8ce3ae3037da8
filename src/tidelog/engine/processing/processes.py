"""``record_processing_on: processes``: the chain's steps in processes of their own.

A process takes one job at a time. A thread of the pool hands it the job and waits, so what holds of
the pool holds here: order, dropping, giving up. Events go as Arrow; what comes back is what was
changed, and the originals, which stayed here, are told by their numbers.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from tidelog.engine.events import Event, EventBatch, Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Consumer, Message, Serializer, Transform
from tidelog.engine.processing.chain import Chain
from tidelog.engine.processing.dead_letters import DeadLetters
from tidelog.engine.retries import Retries, StoppingError
from tidelog.errors import ConfigError, ConsumerError, TidelogError

_GROUPS: Final = 4  # of each process: enough that all end together
_JOIN_S: Final = 5.0

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

    def do(self, parts: Sequence[EventBatch], end: int, generation: str) -> list[Told]:
        """All of it: what comes back is empty where there is a consumer."""
        chain = Chain(
            self.transforms,
            self.serializer,
            Retries(self.options, threading.Event()),
            self.dead_letters,
        )
        prepared = list[Event | Message]()
        events = list(Events(parts, end, generation))
        if self.consumer is None:
            prepared = chain.prepared(events, end, generation)
        else:
            for event in events:
                for each in chain.prepared([event], end, generation):
                    chain.consume_one(self.consumer, each)
        return [_told(each) for each in prepared]


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

    def call(self, parts: Sequence[EventBatch], end: int, generation: str) -> list[Told]:
        """What `Work.do` returns.

        Raises:
            StoppingError: they were closed meanwhile.
            ConsumerError: the process has ended, or what the work raised.
        """
        connection = self._free.get() or self._start()
        try:
            connection.send((parts, end, generation))
            done, answer = connection.recv()
        except (EOFError, OSError) as error:
            if self._closed:
                raise StoppingError("processes") from error
            self._free.put(None)
            raise ConsumerError("a process that processes records has ended by itself") from error
        self._free.put(connection)
        if not done:
            raise answer
        found: list[Told] = answer
        return found

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

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._work), name="tidelog-records", daemon=True
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

    def groups(self, lanes: Sequence[Sequence[Event]], workers: int) -> list[Sequence[Event]]:
        count = min(len(lanes), workers * _GROUPS)
        found: list[list[Event]] = [[] for _ in range(count)]
        for number, lane in enumerate(lanes):
            found[number % count].extend(lane)
        return list(found)

    def take(
        self,
        lane: Sequence[Event],
        of: Events,
        consumer: Consumer,
        stopping: threading.Event,
        mark: Callable[[Event], None],
    ) -> None:
        if stopping.is_set():
            raise StoppingError("before events")
        self._called(lane, of.end, of.generation)
        for event in lane:
            mark(event)

    def _called(self, events: Sequence[Event], end: int, generation: str) -> list[Told]:
        assert self.processes is not None
        return self.processes.call(Events.of(events, end, generation).parts, end, generation)


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


def _serve(connection: Connection, pickled: bytes) -> None:
    """In the process, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends it
    work: Work = pickle.loads(pickled)  # noqa: S301 - from the process that made this one
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        answer: Any
        try:
            done, answer = True, work.do(*job)
        except TidelogError as error:
            done, answer = False, error
        except Exception as error:  # noqa: BLE001 - its text may quote a row
            done, answer = False, ConsumerError(f"a process raised {type(error).__name__}")
        connection.send((done, answer))
