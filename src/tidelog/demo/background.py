"""A call in a thread, for who goes on looking at other things meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Begun at once; `result` waits for it. It does not keep the process from ending."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as failure:  # noqa: BLE001 - raised by result
            self._failure = failure

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Has it ended by then? Raises nothing."""
        self._thread.join(timeout_s)
        return not self.running

    def result(self) -> T:
        """What it returned, or raises what it raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._value[0]
