"""Graceful handover: the old leader keeps capturing until the standbys poll the lease often.

Where each poll of a lease costs money, standbys poll rarely. So the lease first announces that it
will be released, and is released once all standbys have seen that and poll often: then there is a
leader almost all the time.
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
    """Waits for ``stop`` and then for the standbys, in its own thread. Use it as a context manager.

    Args:
        stop: ends the session.
        announce: announces in the lease that it will be released; returns the seconds to keep
            capturing. None: no standby needs it.
    """

    def __init__(self, stop: threading.Event, announce: Callable[[], float] | None) -> None:
        self._stop = stop
        self._announce = announce
        self._over = threading.Event()
        self.ends = stop if announce is None else threading.Event()
        """Set when the session must end."""

    def __enter__(self) -> Self:
        if self._announce is not None:
            threading.Thread(target=self._wait, name="tidelog-handover", daemon=True).start()
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
    """Call `end` for a session that another process will lead, after the standbys were notified."""
    wait_s = 0.0 if announce is None else _announced_s(announce)
    if not wait_s:
        end()
        return
    timer = threading.Timer(wait_s, end)
    timer.daemon = True
    timer.start()


def _announced_s(announce: Callable[[], float]) -> float:
    """Announce the end; returns the seconds to keep capturing, 0 if the announcement failed."""
    try:
        return announce()
    except TidelogError as error:
        logger.info("the standbys could not be notified that the leader ends: %s", error)
        return 0.0
