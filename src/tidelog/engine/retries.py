"""Retries of errors that may pass, with growing delays."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tidelog.engine.callables import WorkNotDoneError
from tidelog.engine.options import EngineOptions
from tidelog.errors import Policy, TidelogError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StoppingError(Exception):
    """The engine stops: running work is given up, and is not done. Never seen by programs."""


def may_pass(error: BaseException) -> bool:
    """May a retry succeed?"""
    if isinstance(error, TidelogError):
        return error.policy is Policy.RETRY
    return isinstance(error, (ConnectionError, TimeoutError))


class Retries:
    """Calls functions, and retries errors that may pass. Thread-safe.

    Args:
        options: options with the number of retries and their delays.
        stopping: ends every delay at once.
        classes: further classes of errors that may pass.
    """

    def __init__(
        self,
        options: EngineOptions,
        stopping: threading.Event,
        classes: tuple[type[Exception], ...] = (),
    ) -> None:
        self._classes = classes
        self._most = options.errors_max_retries
        self._first_s = options.errors_retry_delay_initial_ms / 1000
        self._longest_s = options.errors_retry_delay_max_ms / 1000
        self._stopping = stopping

    def call(self, function: Callable[[], T], what: str) -> T:
        """Return the result of ``function``; ``what`` names it in the log.

        Raises:
            StoppingError: if the engine stops after a failed attempt.
            Exception: the last error of ``function``.
        """
        delay_s, tries = self._first_s, 0
        while True:
            try:
                return function()
            except Exception as error:
                if not self._may_pass(error) or 0 <= self._most <= tries:
                    raise
                tries += 1
                # Without its text: a program's own error may quote a row.
                logger.warning(
                    "%s: %s, retry %d in %.1f s", what, type(error).__name__, tries, delay_s
                )
                if self._stopping.wait(delay_s):
                    raise StoppingError(what) from error
                delay_s = min(self._longest_s, delay_s * 2)

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, (StoppingError, WorkNotDoneError)):
            return False
        return may_pass(error) or isinstance(error, self._classes)
