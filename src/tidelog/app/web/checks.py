"""`tidelog check` from the page: one at a time, on a thread of its own; servers may be slow."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tidelog.app import last_check
from tidelog.app.preflight import check
from tidelog.app.redaction import redacted
from tidelog.config import Config
from tidelog.errors import TidelogError, UsageError

logger = logging.getLogger(__name__)


class Checks:
    """Thread-safe. ``config``: what is checked."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._running = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._trouble = ""

    def begin(self) -> None:
        """Raises UsageError while another one runs, or if none can be begun."""
        if not self._running.acquire(blocking=False):
            raise UsageError("a check runs already; its result comes soon")
        try:
            threading.Thread(target=self._run, name="tidelog-web-check", daemon=True).start()
        except BaseException as error:
            self._running.release()
            if isinstance(error, RuntimeError):
                raise UsageError(
                    "the check could not be begun, as this process can't start a thread: its host "
                    "or container limits them; try again, or run `tidelog check`"
                ) from None
            raise

    def latest(self, kept: dict[str, Any] | None) -> dict[str, Any]:
        """``running``; ``trouble``: why the last one here ended without a result; ``found``: that
        of the last one here, or ``kept``, that of another process, if that is newer.
        """
        both = [each for each in (self._found, kept) if each is not None]
        found = max(both, key=lambda each: int(each["at_ms"]), default=None)
        return {"running": self._running.locked(), "trouble": self._trouble, "found": found}

    def _run(self) -> None:
        try:
            self._found, self._trouble = last_check.summary(check(self._config)), ""
            last_check.note(self._config, self._found)
        except Exception as error:  # noqa: BLE001 - others' texts are not ours and may hold values
            told = str(error) if isinstance(error, TidelogError) else type(error).__name__
            self._trouble = redacted(told)
            logger.warning("a check from the web page: %s", told)
        finally:
            self._running.release()
