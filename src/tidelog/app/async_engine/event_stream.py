"""An engine as an iterator: an event is done when the program asks for the next one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer, Message

_FINISHED_S: Final = 0.5  # seconds between two commits within a batch
MOST_OPEN_BATCHES: Final = 2
"""How many polled batches may have events that are not done."""

Batch = tuple[Sequence[Event | Message], Committer]


class EventStream:
    """Iterates over the events, or messages, of an engine without a consumer; for one loop.

    ``async for event in engine.events()``, or ``for`` in a program without an event loop. The
    engine runs while the loop does. An event is done when the next one is requested, or
    `mark_processed` was called; done events are committed by the commit policy, and at the end. A
    loop that is left does not complete its current event, and closes the engine as soon as Python
    drops the loop's iterator; ``contextlib.aclosing(aiter(engine.events()))`` closes it at the end
    of its block. The loop raises the error that ends the engine.

    Args:
        run: runs the engine until it has ended.
        close: stops it and waits; does nothing if it has ended.
        use_loop: called with the loop that iterates.
    """

    def __init__(
        self,
        run: Callable[[], None],
        close: Callable[[], None],
        use_loop: Callable[[asyncio.AbstractEventLoop], None],
    ) -> None:
        self._run, self._close, self._use_loop = run, close, use_loop
        self._batches: deque[Batch] = deque()
        self._wake: Callable[[], object] = lambda: None
        self._committer: Committer | None = None

    def take(self, events: Events, committer: Committer) -> None:
        """Accept a batch, as the engine's consumer, in its tasks' threads."""
        self._batches.append((events, committer))
        self._wake()

    def mark_processed(self, event: Event | Message) -> None:
        """Mark the current event as done before the next one is requested."""
        if self._committer is not None:
            self._committer.mark_processed(event)
            self._committer.mark_batch_finished()

    async def __aiter__(self) -> AsyncIterator[Any]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(woken.set)

        self._use_loop(loop)
        self._wake = wake
        ended = self._begin()
        try:
            while not ended.done():
                for each in self._batch(ended):
                    yield each
                if not self._batches:
                    await woken.wait()
                    woken.clear()
        finally:
            await asyncio.to_thread(self._close)
            await asyncio.wrap_future(ended)

    def __iter__(self) -> Iterator[Any]:
        woken = threading.Event()
        self._wake = woken.set
        ended = self._begin()
        try:
            while not ended.done():
                yield from self._batch(ended)
                if not self._batches:
                    woken.wait()
                    woken.clear()
        finally:
            self._close()
            ended.result()

    def _begin(self) -> Future[None]:
        """Run the engine in a thread; return a future of its end or error."""
        ended: Future[None] = Future()

        def run() -> None:
            try:
                self._run()
            except BaseException as error:  # noqa: BLE001 - raised out of the loop
                ended.set_exception(error)
            else:
                ended.set_result(None)
            self._wake()

        threading.Thread(target=run, name="tidelog-engine", daemon=True).start()
        return ended

    def _batch(self, ended: Future[None]) -> Iterator[Event | Message]:
        """Yield the next batch, if any. An event is done when the next one is requested."""
        if not self._batches:
            return
        events, committer = self._batches.popleft()
        self._committer = committer
        finished = time.monotonic()
        for each in events:
            yield each
            committer.mark_processed(each)
            if ended.done():
                break
            if time.monotonic() - finished > _FINISHED_S:
                committer.mark_batch_finished()
                finished = time.monotonic()
        committer.mark_batch_finished()
