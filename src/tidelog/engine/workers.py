"""Where an engine's steps run: threads, an event loop, worker processes, Spark's executors.

A worker runs outside this process, and takes one job at a time. A thread of the pool sends it and
waits, so the pool's rules hold here, too: order, dropping, giving up. Events are sent as Arrow;
only changes are returned, and refer to the originals, which stayed here, by their numbers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tidelog.engine.chain import BufferedDeadLetters, Lane, Letter, ProcessorChain, as_shares
from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions, Retries, StoppingError
from tidelog.engine.ports import Consumer, Message, Serializer, Transform
from tidelog.errors import ConfigError, ConsumerError, EngineStateError, TidelogError
from tidelog.system.callbacks import (
    is_asynchronous_generator_function,
    is_coroutine_function,
    refuse_coroutine,
)

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
    """A `ProcessorChain` with steps in workers, which also call consumers in parallel."""

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


# The event loop of coroutines: consumers and transforms.

_JOIN_S: Final = 5.0

_CoroutineResult = tuple[Any, BaseException | None]
"""The result of a coroutine, or an exception that must end the program."""


class ConsumerLoop:
    """Runs coroutines on the program's event loop, or on its own in a daemon thread.

    A thread of the engine waits for each coroutine as for a function: so order, retries, dead
    letters, offsets and shutdown are the same for both.

    Args:
        loop: the program's loop; None: its own, unless `use` sets another.
        in_pool: whether threads of the pool wait for coroutines.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, *, in_pool: bool = False
    ) -> None:
        self.in_pool = in_pool
        self._loop = loop
        self._lock = threading.Lock()
        self._closed = False
        self._under_way: set[Future[_CoroutineResult]] = set()
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the loop that the engine is awaited on, unless the program gave one."""
        self._loop = self._loop or loop

    def open(self) -> None:
        """Start the loop. Raises EngineStateError if this thread runs the loop and would block
        it.
        """
        if self._loop is None:
            opened: Future[asyncio.AbstractEventLoop] = Future()
            name = "tidelog-consumer-loop"
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(opened)), name=name, daemon=True
            )
            self._thread.start()
            self._loop = opened.result()
        elif self._loop is asyncio._get_running_loop():
            raise EngineStateError(
                "run would block the event loop that its consumer needs: await arun() in its place"
            )

    def as_function(self, function: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        """A function that calls ``function``, and returns the result of its coroutine."""

        def run(*given: Any) -> Any:
            return self._run(function, given)

        vars(run)["__wrapped__"] = function  # for `name_of`
        return run

    def as_transform(self, transform: Transform) -> Transform:
        """The same for a transform, which may be an asynchronous generator function; ordinary
        functions are returned unchanged.
        """
        if is_asynchronous_generator_function(transform):

            async def read(event: Event) -> list[Any]:
                return [made async for made in transform(event)]

            return self.as_function(read)
        return self.as_function(transform) if is_coroutine_function(transform) else transform

    def close(self) -> None:
        """Cancel running coroutines: the engine has given up on them."""
        with self._lock:
            self._closed = True
            left = list(self._under_way)
        for future in left:
            future.cancel()
        if self._thread is not None and self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(_JOIN_S)  # one that blocks the loop is left behind, in a daemon

    def _run(self, function: Callable[..., Awaitable[object]], given: Sequence[Any]) -> Any:
        with self._lock:
            if self._closed:
                raise StoppingError("the consumer's event loop")
            future = self._begin(function, given)
            self._under_way.add(future)
        try:
            returned, error = future.result()
        except CancelledError as cancelled:
            if self._closed:
                raise StoppingError("the consumer's event loop") from cancelled
            raise
        finally:
            with self._lock:
                self._under_way.discard(future)
        if error is not None:
            raise error
        return returned

    def _begin(
        self, function: Callable[..., Awaitable[object]], given: Sequence[Any]
    ) -> Future[_CoroutineResult]:
        assert self._loop is not None, "open first"
        coroutine = _awaited(function, given)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise ConsumerError("the event loop of the consumer has been closed") from error

    async def _serve(self, opened: Future[asyncio.AbstractEventLoop]) -> None:
        self._end = asyncio.Event()
        opened.set_result(asyncio.get_running_loop())
        await self._end.wait()


async def _awaited(
    function: Callable[..., Awaitable[object]], given: Sequence[Any]
) -> _CoroutineResult:
    """Return exceptions that must end the program: raised here they would only end the loop."""
    try:
        returned = await function(*given)
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error
    refuse_coroutine(returned)
    return returned, None


# The thread pool, separate from the tasks' threads.

T = TypeVar("T")


class ThreadPool:
    """`tidelog.engine.ports.RecordService`.

    Its threads are daemons: one that never returns does not keep the process from ending, as one
    of `concurrent.futures` would.

    Args:
        threads: number of threads.
        inside: called in each thread as it begins.
    """

    def __init__(self, threads: int, inside: Callable[[], object] = lambda: None) -> None:
        self.threads = threads
        self._inside = inside
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: set[Future[Any]] = set()
        self._idle = 0
        self._started: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue a job. Raises RuntimeError without queuing it if no thread could be started."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise StoppingError("the pool is closed")
            if self._idle <= len(self._waiting) and len(self._started) < self.threads:
                name = f"tidelog-records-{len(self._started)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()  # it waits until the job is there
                self._started.append(thread)
            self._waiting.append((future, function))
            self._changed.notify()
        return future

    def close(self, timeout_s: float) -> bool:
        """Drop queued jobs, let running ones finish within the time, then give up on them. False:
        some were given up; their results are dropped.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            dropped = [future for future, _ in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            _fail(future, StoppingError("dropped"))
        with self._changed:
            while self._running and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            given_up = list(self._running)
        for future in given_up:
            _fail(future, StoppingError("given up"))
        if not given_up:
            for thread in self._started:
                thread.join()
        return not given_up

    def _work(self) -> None:
        self._inside()
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                future, function = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                self._running.add(future)
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                _fail(future, error)
            else:
                with suppress(InvalidStateError):  # given up in the meantime
                    future.set_result(result)
            with self._changed:
                self._running.discard(future)
                self._changed.notify_all()


def _fail(future: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # it has a result, or was given up
        future.set_exception(error)


# Worker processes: ``record_processing_on: processes``.

_PARENT_S: Final = 1.0


class WorkerProcesses:
    """`tidelog.engine.workers.Workers`. A process starts with its first job.

    Raises:
        ConfigError: if the work can't be sent to another process.
    """

    jobs_are_dear = False

    def __init__(self, count: int, work: EventWork) -> None:
        self._work = _pickled(work)
        self._lock = threading.Lock()
        self._closed = False
        self._processes: list[BaseProcess] = []
        self._free: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def open(self) -> None: ...

    def call(self, events: Events) -> JobResult:
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
        return read_answer(answer)

    def close(self) -> None:
        """End the processes, even during a job."""
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
        # The work is sent over the connection, as jobs are, not as an argument: arguments go
        # through a pipe whose other end this process holds, too. If the process died, a write of
        # more than fits would block for ever, under the lock.
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
        theirs.close()  # so that the process's end is noticed here
        return ours


def _pickled(work: EventWork) -> bytes:
    try:
        pickled = pickle.dumps(work)
    except Exception as error:  # noqa: BLE001 - whatever its __reduce__ raises
        raise ConfigError(
            "record_processing_on: processes needs transforms, and with consume_records_async "
            "a consumer, that are functions of a module (no lambda, nothing that holds a "
            f"lock or a connection): {type(error).__name__}"
        ) from None
    if b"__main__" in pickled and not _main_can_be_imported():
        raise ConfigError(
            "record_processing_on: processes needs transforms, and with consume_records_async a "
            "consumer, that other processes can import. These were typed in (python -c, a console, "
            "a notebook): write them to a file, such as steps.py, and import them from there"
        )
    return pickled


def _main_can_be_imported() -> bool:
    """Can a process that is spawned import the program's main module?"""
    main = sys.modules["__main__"]
    named = getattr(getattr(main, "__spec__", None), "name", None)
    return named is not None or Path(getattr(main, "__file__", None) or "").is_file()


def _serve(connection: Connection) -> None:
    """Do jobs in the process, until the other end is closed."""
    threading.Thread(target=_end_with_parent, name="tidelog-parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends it
    closed = (EOFError, OSError)  # OSError: in the middle of a message
    try:
        pickled = connection.recv_bytes()
    except closed:
        return
    work: EventWork = pickle.loads(pickled)  # noqa: S301 - from the process that made this one
    with suppress(*closed):
        while True:
            connection.send_bytes(answer_to(connection.recv_bytes(), work))


def _end_with_parent() -> None:
    """End the process with its engine. A process that outlived a killed engine would continue to
    consume its events while the next engine consumes the same ones.
    """
    parent, above = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # A fork of the parent keeps the awaited handle open: hence the check of the id, too.
    while parent.is_alive() and os.getppid() == above:
        parent.join(_PARENT_S)
    os._exit(1)
