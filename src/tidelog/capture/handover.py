"""A leader that ends in order goes on until those that stand by are on the watch.

Where each look at a lease is paid for, they look only now and then. So the lease says first that it
is about to be given back, and is given back once all of them have seen that: then they look often,
and hardly a moment passes without a leader.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tidelog.errors import TidelogError

logger = logging.getLogger(__name__)

_TURN_S = 0.05


class HandoverWait:
    """Waits for ``stop``, in a thread of its own. Use it as a context manager.

    Args:
        stop: ends everything.
        announce: says in the lease that it will be given back; how long to go on then. None: there
            is nobody who would have to be told.
    """

    def __init__(self, stop: threading.Event, announce: Callable[[], float] | None) -> None:
        self._stop = stop
        self._announce = announce
        self._over = threading.Event()
        self.ends = stop if announce is None else threading.Event()
        """Now the session ends."""

    def __enter__(self) -> Self:
        if self._announce is not None:
            threading.Thread(target=self._wait, name="tidelog-farewell", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _wait(self) -> None:
        while not self._stop.is_set():
            if self._over.wait(_TURN_S):
                return
        assert self._announce is not None
        try:
            self._over.wait(_announced_s(self._announce))
        finally:
            self.ends.set()


def end_later(end: Callable[[], None], announce: Callable[[], float] | None) -> None:
    """Calls `end` for a session that another process will lead, once standbys have been told."""
    wait_s = 0.0 if announce is None else _announced_s(announce)
    if not wait_s:
        end()
        return
    timer = threading.Timer(wait_s, end)
    timer.daemon = True
    timer.start()


def _announced_s(announce: Callable[[], float]) -> float:
    """How long to go on after it was said; 0 if it could not be said."""
    try:
        return announce()
    except TidelogError as error:
        logger.info("the standbys could not be told that the leader ends: %s", error)
        return 0.0
