"""Runs the checks of `tidelog check` while capture leads, and reports their errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.sources.findings import Finding

logger = logging.getLogger(__name__)

BEGIN_AFTER_S: Final = 2.0
"""What capture creates at its start, as its slot and publication, exists then."""
AGAIN_AFTER_S: Final = 5.0
"""Errors are reported if two checks find them: one may fall into a failover or a table change."""
EVERY_S: Final = 3600.0
EVERY_S_WITH_ERRORS: Final = 15.0
"""What somebody has fixed must not be reported for long."""
MAX_TIME_SHARE: Final = 0.001
MAX_TIME_SHARE_WITH_ERRORS: Final = 0.02
"""The greatest share of time for checks: with thousands of tables one takes many seconds."""
JOIN_S: Final = 1.0


class SourceCheck:
    """Checks the source as `tidelog check` does, in a thread that nothing waits for.

    One for all leaderships of a process: a lost connection is no reason to check again.

    Args:
        check: `tidelog.app.sources.kinds.SourceKind.check`, of any kind of source.
    """

    def __init__(self, check: Callable[[], Sequence[Finding]]) -> None:
        self._check = check
        self._errors: tuple[Finding, ...] = ()
        self._due_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start, because this process leads."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=[self._stopped], name="tidelog-source-check", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stop, because it leads no more; call it after the release: a check may take another
        second.
        """
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def summary(self) -> dict[str, Any]:
        """Return errors for the status document: ``check``, ``message``, ``fix``."""
        errors = [
            {"check": each.name, "message": each.message, "fix": each.remedy}
            for each in self._errors
        ]
        return {"check_errors": errors}

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(max(BEGIN_AFTER_S, self._due_at - time.monotonic())):
            begun = time.monotonic()
            errors = self._find_errors()
            took_s = time.monotonic() - begun
            if errors and not ended.wait(AGAIN_AFTER_S):
                names = {each.name for each in errors}
                again = self._find_errors()
                errors = again and [each for each in again if each.name in names]
            if ended.is_set():
                return
            if errors is not None:
                self._report(errors)
            every_s, share = EVERY_S, MAX_TIME_SHARE
            if self._errors:
                every_s, share = EVERY_S_WITH_ERRORS, MAX_TIME_SHARE_WITH_ERRORS
            self._due_at = time.monotonic() + max(every_s, took_s / share)

    def _find_errors(self) -> list[Finding] | None:
        """Return the errors; None: the check failed, and earlier results stay valid."""
        try:
            findings = self._check()
        except Exception as error:  # noqa: BLE001 - capture runs on without
            # Its text may contain anything.
            logger.warning("the source could not be checked (%s)", type(error).__name__)
            return None
        errors = [each for each in findings if each.level == "fail"]
        if any(each.name == "connection" for each in errors):
            return None  # capture reports that itself
        return errors

    def _report(self, errors: Sequence[Finding]) -> None:
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
