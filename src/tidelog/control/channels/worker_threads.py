"""Runs what may hang, such as requests to a state store, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

_Found = TypeVar("_Found")


_FULL: Final = (
    "too many requests are answered at once, or wait for a state store or an event log that does "
    "not answer; nothing was begun for this one: ask again in some seconds, from fewer clients. If "
    "it stays so, see whether `tidelog status` answers on that host"
)
_NO_THREAD: Final = (
    "this process can't start a thread, and nothing was begun for the request: ask again in some "
    "seconds. If it stays so, raise what limits threads there (ulimit -u, the container's pids)"
)


class BusyError(Exception):
    """Nothing was begun; the text says why, and what to do."""


class SilentError(Exception):
    """There is no answer in time. The work goes on, but its result is dropped."""


class RequestWorkers:
    """Each call has a daemon thread of its own.

    Args:
        most: calls at once, those among them that hang and whom nobody waits for any more.
    """

    def __init__(self, most: int) -> None:
        self._places = threading.BoundedSemaphore(most)

    async def run(self, work: Callable[[], _Found], timeout_s: float) -> _Found:
        """What ``work`` returns, or raises. Raises BusyError at once, SilentError in the end."""
        if not self._places.acquire(blocking=False):
            raise BusyError(_FULL)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()

        def tell(found: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)

        def go() -> None:
            found: Any = None
            failed: BaseException | None = None
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 - raised by who waits
                failed = error
            except BaseException as error:  # noqa: BLE001 - which would end the loop
                failed = RuntimeError(type(error).__name__)
            self._places.release()
            with suppress(RuntimeError):  # the loop has ended, and with it who waited
                loop.call_soon_threadsafe(tell, found, failed)

        try:
            threading.Thread(target=go, name="tidelog-http-work", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise BusyError(_NO_THREAD) from None
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            future.cancel()
            raise SilentError
        return future.result()
