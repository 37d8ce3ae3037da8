"""Runs calls that may hang, such as requests to a state store, outside the event loop of an HTTP
interface.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

_Found = TypeVar("_Found")


_FULL: Final = (
    "too many requests are being answered, or wait for a state store or an event log that does "
    "not answer; this one was not started: retry in some seconds, from fewer clients. If "
    "it stays so, check whether `tidelog status` answers on that host"
)
_NO_THREAD: Final = (
    "this process can't start a thread, and the request was not started: retry in some seconds. If "
    "it stays so, raise the limit on threads there (ulimit -u, the container's pids)"
)


class BusyError(Exception):
    """The call was not started; the text says why, and what to do."""


class SilentError(Exception):
    """There was no answer in time. The call continues, but its result is dropped."""


class RequestWorkers:
    """Runs each call in a daemon thread of its own.

    Args:
        most: most calls at a time, including hanging ones whose caller has given up.
    """

    def __init__(self, most: int) -> None:
        self._places = threading.BoundedSemaphore(most)

    async def run(self, work: Callable[[], _Found], timeout_s: float) -> _Found:
        """Return or raise ``work``'s result. BusyError comes at once, SilentError on timeout."""
        if not self._places.acquire(blocking=False):
            raise BusyError(_FULL)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()

        def set_result(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run_work() -> None:
            result: Any = None
            failed: BaseException | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - raised in the caller
                failed = error
            except BaseException as error:  # noqa: BLE001 - it would end the loop
                failed = RuntimeError(type(error).__name__)
            self._places.release()
            with suppress(RuntimeError):  # the loop has ended, and with it the caller
                loop.call_soon_threadsafe(set_result, result, failed)

        try:
            threading.Thread(target=run_work, name="tidelog-http-work", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise BusyError(_NO_THREAD) from None
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            future.cancel()
            raise SilentError
        return future.result()
