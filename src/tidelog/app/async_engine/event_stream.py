"""An engine as an iterator: the program asks for events, and what it has asked beyond is done."""

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

_FINISHED_S: Final = 0.5  # within a batch, so often what is done is committed
MOST_OPEN_BATCHES: Final = 2
"""Of those that were polled, and not all of whose events are done."""

Batch = tuple[Sequence[Event | Message], Committer]


class EventStream:
    """Events, or messages of them, of an engine that has no consumer; for one loop over them:
    ``async for event in engine.events()``, or ``for`` in a program without an event loop.

    The engine runs while the loop does. An event is done when the next one is asked for, or
    `mark_processed` was called; what is done is committed as the commit policy says, and at the
    end. A loop that is left leaves the event that it was at undone, and closes the engine as soon
    as Python drops the loop's iterator; ``contextlib.aclosing(aiter(engine.events()))`` closes it
    where its block ends. What ends the engine is raised out of the loop.

    Args:
        run: runs the engine until it has ended.
        close: ends it, and waits for that; no harm if it has ended.
        use_loop: told the loop that it is iterated on.
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
        """The engine's consumer of batches, in its tasks' threads."""
        self._batches.append((events, committer))
        self._wake()

    def mark_processed(self, event: Event | Message) -> None:
        """The event that was given last is done, though no further one is asked for."""
        if self._committer is not None:
            self._committer.mark_processed(event)
            self._committer.mark_batch_finished()

    async def __aiter__(self) -> AsyncIterator[Any]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed under it
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
        """Run the engine in a thread; its end, or what ended it."""
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
        """The next batch, if one is there. An event is done when what follows it is asked for."""
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
