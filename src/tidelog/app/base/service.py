"""The life cycle of what runs until it is stopped: `run`, or `start` and `wait`, or ``with``."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidelog.errors import UsageError


class BackgroundService(ABC):
    """Runs once: on the caller's thread by `run`, or on a thread of its own by `start`.

    As a context manager it starts where the block begins, and stops where the block ends; then it
    raises what ended it, unless the block raised.

    Args:
        thread_name: of the thread that `start` makes.
        stop_event: ends it when set, as `stop` does; None: one of its own.
    """

    def __init__(self, thread_name: str, stop_event: threading.Event | None = None) -> None:
        self._thread_name = thread_name
        self._stopping = stop_event or threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @abstractmethod
    def _run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set."""

    def run(self) -> None:
        """Work until `stop` is called, from any thread, or until all is done.

        Raises:
            TidelogError: what needs a person; see docs/failure-modes.md.
        """
        self._run(self._stopping)

    def start(self) -> None:
        """Begin on a thread of its own; returns at once.

        Raises:
            UsageError: it was started before.
        """
        if self._thread is not None:
            raise UsageError(f"this {type(self).__name__} was started before: make a new one")
        self._thread = threading.Thread(target=self._run_kept, name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; returns at once. What was read is durable when it has ended."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """Was `stop` called?"""
        return self._stopping.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until what `start` began has ended (True), or the time is over (False).

        Raises what ended it; UsageError: nothing was started.
        """
        if self._thread is None:
            raise UsageError(f"this {type(self).__name__} was not started: wait is for start")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def _run_kept(self) -> None:
        try:
            self._run(self._stopping)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
