"""A consumer that is a coroutine function: its coroutines run on one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from tidelog.engine.callables import refuse_coroutine
from tidelog.engine.retries import StoppingError
from tidelog.errors import ConsumerError, EngineStateError

_JOIN_S: Final = 5.0


class ConsumerLoop:
    """Runs coroutines on the program's event loop, or on one of its own in a daemon thread.

    A thread of the engine waits for each coroutine as it would for a function: so order, retries,
    dead letters, offsets and shutting down are the same for both.

    Args:
        loop: the program's; None: one of its own, unless `use` gives another.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._closed = False
        self._under_way: set[Future[BaseException | None]] = set()
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the loop that the engine is awaited on, unless the program gave one."""
        self._loop = self._loop or loop

    def open(self) -> None:
        """Raises EngineStateError: this thread runs the loop, and is about to block."""
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

    def as_function(self, function: Callable[..., Awaitable[object]]) -> Callable[..., None]:
        """A function that calls ``function``, and returns when its coroutine has ended."""
        return lambda *given: self._run(function, given)

    def close(self) -> None:
        """Cancel what is under way: the engine has given it up."""
        with self._lock:
            self._closed = True
            left = list(self._under_way)
        for future in left:
            future.cancel()
        if self._thread is not None and self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(_JOIN_S)  # one that blocks the loop is left behind: it is a daemon's

    def _run(self, function: Callable[..., Awaitable[object]], given: Sequence[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StoppingError("the consumer's event loop")
            future = self._begin(function, given)
            self._under_way.add(future)
        try:
            error = future.result()
        except CancelledError as cancelled:
            if self._closed:
                raise StoppingError("the consumer's event loop") from cancelled
            raise
        finally:
            with self._lock:
                self._under_way.discard(future)
        if error is not None:
            raise error

    def _begin(
        self, function: Callable[..., Awaitable[object]], given: Sequence[Any]
    ) -> Future[BaseException | None]:
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
) -> BaseException | None:
    """What is to end the program is returned: raised here it would end the loop alone."""
    try:
        refuse_coroutine(await function(*given))
    except (SystemExit, KeyboardInterrupt) as error:
        return error
    return None
