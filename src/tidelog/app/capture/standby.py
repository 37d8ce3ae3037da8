"""What a process does in a thread of its own while it stands by."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

_TURN_S: Final = 0.1
_END_S: Final = 1.0


class StandbyWork(ABC):
    """Use it as a context manager while there may be something to do.

    Args:
        name: of the thread.
        after_s: so long after this process began to stand by nothing is done.
    """

    def __init__(self, name: str, after_s: float = 0.0) -> None:
        self._after_s = after_s
        self._stands_by = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._stands_by.set()
        self._thread.join(_END_S)

    def stand_by(self, stands_by: bool) -> None:
        """From now on do something now and then, or don't."""
        if stands_by:
            self._stands_by.set()
        else:
            self._stands_by.clear()

    @abstractmethod
    def _turn(self) -> None:
        """Called ten times a second: do what is due."""

    def _keep(self) -> None:
        while not self._ended.is_set():
            if self._stands_by.is_set():
                self._turn()
                self._ended.wait(_TURN_S)
            else:
                self._stands_by.wait()
                self._ended.wait(self._after_s)
