"""The options of an engine, and its retries."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from tidelog.errors import Policy, TidelogError
from tidelog.system.backoff import Backoff
from tidelog.system.callbacks import WorkNotDoneError

CommitPolicy = Literal["always", "periodic"]
Order = Literal["total", "key", "none"]
Tolerance = Literal["none", "dead_letter"]
ProcessingOn = Literal["threads", "processes", "spark"]

BATCH_SIZE = 8192
"""Most records of a batch, unless configured."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine, as `tidelog.config.models.EngineSection` checks them.

    Attributes:
        record_processing_threads: size of the pool that transforms, serializes and, if events are
            consumed in parallel, consumes.
        record_processing_on: ``threads``, or ``processes``: as many as threads; ``spark``: as many
            tasks at a time.
        concurrent_coroutines: most coroutines at a time, of transforms that are coroutine
            functions, and of such a consumer that is called in parallel.
        order: ``total``: events are consumed in the log's order; ``key``: events of one key in
            order, keys in parallel; ``none``: in any order. The last two need a per-record
            consumer.
        task_management_timeout_ms: time for all tasks to start; again for all of them to stop.
        polling_shutdown_timeout_ms: time for running processing to end when the engine stops.
        errors_max_retries: most retries of an error that may pass; -1: no limit.
        errors_retry_delay_initial_ms: delay before the first retry; doubled for each further one.
        errors_retry_delay_max_ms: longest delay.
        errors_tolerance: ``dead_letter``: an event at which the program's code raises is written to
            the dead letters, and skipped.
        retry_on: further classes of errors that may pass.
        offset_commit_policy: ``always``: after every batch; ``periodic``: every
            ``offset_commit_interval_ms``. In both cases completed events are committed at the end.
    """

    record_processing_threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    record_processing_on: ProcessingOn = "threads"
    concurrent_coroutines: int = 64
    order: Order = "total"
    task_management_timeout_ms: int = 180_000
    polling_shutdown_timeout_ms: int = 1_000
    errors_max_retries: int = -1
    errors_retry_delay_initial_ms: int = 300
    errors_retry_delay_max_ms: int = 10_000
    errors_tolerance: Tolerance = "none"
    retry_on: tuple[type[Exception], ...] = ()
    offset_commit_policy: CommitPolicy = "always"
    offset_commit_interval_ms: int = 5_000


# Retries of errors that may pass, with growing delays.

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
        self._backoff = Backoff(
            options.errors_retry_delay_initial_ms / 1000, options.errors_retry_delay_max_ms / 1000
        )
        self._stopping = stopping

    def call(self, function: Callable[[], T], what: str) -> T:
        """Return the result of ``function``; ``what`` names it in the log.

        Raises:
            StoppingError: if the engine stops after a failed attempt.
            Exception: the last error of ``function``.
        """
        tries = 0
        while True:
            try:
                return function()
            except Exception as error:
                if not self._may_pass(error) or 0 <= self._most <= tries:
                    raise
                tries += 1
                delay_s = self._backoff.after(tries)
                # Without its text: a program's own error may quote a row.
                logger.warning(
                    "%s: %s, retry %d in %.1f s", what, type(error).__name__, tries, delay_s
                )
                if self._stopping.wait(delay_s):
                    raise StoppingError(what) from error

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, (StoppingError, WorkNotDoneError)):
            return False
        return may_pass(error) or isinstance(error, self._classes)
