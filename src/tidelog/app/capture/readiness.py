"""Can this process lead? It asks before it has to, and does not take the lease if it can't.

A lease is a promise to capture: who takes it and then waits for a source that is out of reach keeps
everybody else out meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from tidelog.app.capture.standby import StandbyWork
from tidelog.errors import ConnectionLostError, TidelogError

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
"""A standby asks so often; half as long after an answer that was none."""
_TURN_S: Final = 0.1


class Readiness(StandbyWork):
    """Asks while this process stands by, and when it is checked.

    Args:
        reach: asks the source; raises TidelogError if it is out of reach. May take long.
        look: the same of state and event log, which a standby looks at anyway.
        stop: whoever waits for an answer waits no more.
    """

    def __init__(
        self, reach: Callable[[], None], look: Callable[[], object], stop: threading.Event
    ) -> None:
        super().__init__("tidelog-readiness")
        self._reach = reach
        self._look = look
        self._stop = stop
        self._trouble = ""
        self._ask_at = -math.inf

    @property
    def trouble(self) -> str:
        """What a standby lacked when it asked last; empty: nothing."""
        return self._trouble

    def check(self, failed: bool) -> None:
        """Raises TidelogError if this process can't lead.

        ``failed``: it tried, and what needs a person ends it. Else what was found while it stood by
        decides whether to ask at all, and nothing ends it: another process may lead meanwhile, and
        need one that stands by.
        """
        if failed:
            self._waited_for(self._look, self._reach)
        elif self._trouble:
            try:
                self._waited_for(self._reach)
            except TidelogError as error:
                self._trouble = str(error)
                raise ConnectionLostError(self._trouble) from None
        self._trouble = ""

    def _waited_for(self, *asks: Callable[[], object]) -> None:
        """Ask in a thread of its own: an answer may take long."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                for ask in asks:
                    ask()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=run, name="tidelog-readiness-now", daemon=True)
        thread.start()
        while thread.is_alive() and not self._stop.is_set():
            thread.join(_TURN_S)
        if errors:
            raise errors[0]

    def _turn(self) -> None:
        if time.monotonic() < self._ask_at:
            return
        try:
            self._reach()
            self._trouble = ""
        except TidelogError as error:
            logger.warning("this process stands by, but could not lead: %s", error)
            self._trouble = str(error)
        self._ask_at = time.monotonic() + LOOK_EVERY_S / (2 if self._trouble else 1)
