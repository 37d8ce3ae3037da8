"""Runs the coroutines of consumers and transforms on one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from tidelog.engine.callables import (
    is_asynchronous_generator_function,
    is_coroutine_function,
    refuse_coroutine,
)
from tidelog.engine.events import Event
from tidelog.engine.ports import Transform
from tidelog.engine.retries import StoppingError
from tidelog.errors import ConsumerError, EngineStateError

_JOIN_S: Final = 5.0

_Result = tuple[Any, BaseException | None]
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
        self._under_way: set[Future[_Result]] = set()
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
    ) -> Future[_Result]:
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


async def _awaited(function: Callable[..., Awaitable[object]], given: Sequence[Any]) -> _Result:
    """Return exceptions that must end the program: raised here they would only end the loop."""
    try:
        returned = await function(*given)
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error
    refuse_coroutine(returned)
    return returned, None
