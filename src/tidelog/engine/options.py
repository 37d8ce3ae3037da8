"""The options of an engine, with their checks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal, get_args

from tidelog.errors import ConfigError

CommitPolicy = Literal["always", "periodic"]
Order = Literal["total", "key", "none"]
Tolerance = Literal["none", "dead_letter"]
ProcessingOn = Literal["threads", "processes", "spark"]

BATCH_SIZE = 8192
"""Most records of a batch, unless configured."""
_AT_LEAST = {
    "record_processing_threads": 1,
    "concurrent_coroutines": 1,
    "task_management_timeout_ms": 1,
    "polling_shutdown_timeout_ms": 0,
    "errors_max_retries": -1,
    "errors_retry_delay_initial_ms": 1,
    "errors_retry_delay_max_ms": 1,
    "offset_commit_interval_ms": 1,
}

_ONE_OF = {
    "record_processing_on": ProcessingOn,
    "order": Order,
    "errors_tolerance": Tolerance,
    "offset_commit_policy": CommitPolicy,
}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine. Raises ConfigError for invalid values.

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

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"engine.{name}: {value!r} is not a whole number from {least} on")
        for name, known in _ONE_OF.items():
            value, names = getattr(self, name), get_args(known)
            if value not in names:
                raise ConfigError(f"engine.{name}: {value!r} is none of {', '.join(names)}")
        classes: tuple[object, ...] = self.retry_on
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise ConfigError(f"engine.retry_on: {each!r} is no class of errors")
        if self.errors_retry_delay_max_ms < self.errors_retry_delay_initial_ms:
            raise ConfigError(
                "engine.errors_retry_delay_max_ms is below errors_retry_delay_initial_ms"
            )
