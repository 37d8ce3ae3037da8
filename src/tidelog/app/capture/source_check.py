"""What `tidelog check` would refuse, told by the capture that leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.sources.findings import Finding

logger = logging.getLogger(__name__)

BEGIN_AFTER_S: Final = 2.0
"""What capture makes at its start, as its slot and publication, is there then."""
AGAIN_AFTER_S: Final = 5.0
"""An error is told if two looks find it: one may fall into a failover or a change of tables."""
EVERY_S: Final = 3600.0
EVERY_S_WITH_ERRORS: Final = 600.0
MOST_OF_TIME: Final = 0.001
"""Looks take no greater share of the time: with thousands of tables one takes many seconds."""
JOIN_S: Final = 1.0


class SourceCheck:
    """Looks at the source as `tidelog check` does, on a thread of its own that nothing waits for.

    One for all leaderships of a process: a lost connection is no reason to look again.

    Args:
        check: `tidelog.app.sources.kinds.SourceKind.check`, of any kind of source.
    """

    def __init__(self, check: Callable[[], Sequence[Finding]]) -> None:
        self._check = check
        self._errors: tuple[Finding, ...] = ()
        self._due_at = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """This process leads."""
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._keep, args=[self._ended], name="tidelog-source-check", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """It leads no more. Once the lease is given back: a look that is under way may take up to
        a second.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def summary(self) -> dict[str, Any]:
        """For the status document: ``check``, ``message``, ``fix``, as `tidelog check` has them."""
        errors = [
            {"check": each.name, "message": each.message, "fix": each.remedy}
            for each in self._errors
        ]
        return {"check_errors": errors}

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(max(BEGIN_AFTER_S, self._due_at - time.monotonic())):
            begun = time.monotonic()
            errors = self._look()
            took_s = time.monotonic() - begun
            if errors and not ended.wait(AGAIN_AFTER_S):
                names = {each.name for each in errors}
                again = self._look()
                errors = again and [each for each in again if each.name in names]
            if ended.is_set():
                return
            if errors is not None:
                self._tell(errors)
            every_s = EVERY_S_WITH_ERRORS if self._errors else EVERY_S
            self._due_at = time.monotonic() + max(every_s, took_s / MOST_OF_TIME)

    def _look(self) -> list[Finding] | None:
        """Errors; None: the source could not be looked at, and what was found before holds."""
        try:
            found = self._check()
        except Exception as error:  # noqa: BLE001 - capture goes on without
            # Its text may hold anything.
            logger.warning("the source could not be checked (%s)", type(error).__name__)
            return None
        errors = [each for each in found if each.level == "fail"]
        if any(each.name == "connection" for each in errors):
            return None  # capture tells of that itself
        return errors

    def _tell(self, errors: Sequence[Finding]) -> None:
        known = {(each.name, each.message) for each in self._errors}
        now = {(each.name, each.message) for each in errors}
        for each in errors:
            if (each.name, each.message) not in known:
                fix = " ".join(each.remedy.split())
                logger.warning(
                    "check finds an error in %s: %s%s", each.name, each.message, fix and f"; {fix}"
                )
        for name, message in sorted(known - now):
            logger.info("over: check finds an error in %s: %s", name, message)
        self._errors = tuple(errors)
