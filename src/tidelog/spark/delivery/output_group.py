"""Output streams beside each other: what stops one holds up no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tidelog.errors import LeaseLostError, TidelogError

logger = logging.getLogger(__name__)

# What is not tried again by itself somebody has to mend; then the output goes on without a restart.
_FIRST_RETRY_S, _LAST_RETRY_S = 60.0, 900.0
_LOOK_S = 0.2

OnState = Callable[[str, BaseException | None], None]


class Stream(Protocol):
    """As `tidelog.spark.delivery.output_loop.OutputLoop`."""

    @property
    def name(self) -> str: ...

    def run(self, stop: threading.Event) -> None: ...


class OutputGroup:
    """Runs the streams of a pipeline.

    Args:
        on_state: called with an output's name and what stopped it, and with None once it goes on.
        once: nothing that stopped is tried again.
        retry_s: after how long what stopped is tried again, at first and at most.
    """

    def __init__(
        self,
        on_state: OnState,
        *,
        once: bool,
        retry_s: tuple[float, float] = (_FIRST_RETRY_S, _LAST_RETRY_S),
    ) -> None:
        self._on_state = on_state
        self._once = once
        self._retry_s = retry_s
        self._stopped: dict[str, BaseException] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def moved(self, name: str) -> None:
        """A batch was brought over to the output: if it had stopped, it goes on."""
        with self._lock:
            if self._stopped.pop(name, None) is None:
                return
        logger.warning("output %s goes on", name)
        self._on_state(name, None)

    def run(self, streams: Sequence[Stream], stop: threading.Event) -> None:
        """Until all have ended, or none goes on any more.

        Raises what stopped the first of those that are stopped then.
        """
        if len(streams) == 1:
            try:
                streams[0].run(stop)
            except TidelogError as error:
                self._on_state(streams[0].name, error)
                raise
            return
        with ThreadPoolExecutor(len(streams), thread_name_prefix="output") as pool:
            running = [pool.submit(self._run, each, len(streams), stop) for each in streams]
            try:
                for future in running:
                    future.result()
            except BaseException:
                self._ended.set()
                stop.set()  # before the pool waits for them
                raise
        for stopped in self._stopped.values():
            raise stopped

    def _run(self, stream: Stream, of: int, stop: threading.Event) -> None:
        wait_s, last_s = self._retry_s
        while True:
            try:
                stream.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised when all have ended
                with self._lock:
                    before = stream.name in self._stopped
                    self._stopped.pop(stream.name, None)
                    self._stopped[stream.name] = error
                    alone = len(self._stopped) == of
                if not before:
                    wait_s = self._retry_s[0]
                self._on_state(stream.name, error)
                if alone:
                    self._ended.set()
                if isinstance(error, LeaseLostError):  # of all of them
                    self._ended.set()
                    stop.set()
                ends = self._once or not isinstance(error, TidelogError)
                if of > 1 and not alone:
                    again = "" if ends else f"; it is tried again in {wait_s:.0f} s"
                    logger.error(
                        "output %s has stopped, the others go on: %s%s", stream.name, error, again
                    )
                if ends or self._waits(wait_s, stop):
                    return
                wait_s = min(2 * wait_s, last_s)
            else:
                return

    def _waits(self, wait_s: float, stop: threading.Event) -> bool:
        """Is there an end before the time is over?"""
        for _ in range(max(1, round(wait_s / _LOOK_S))):
            if self._ended.is_set() or stop.wait(_LOOK_S):
                return True
        return self._ended.is_set()
