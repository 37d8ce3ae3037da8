"""The section ``engine`` of ``tidelog.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from pydantic import Field

from tidelog.engine.options import (
    BATCH_SIZE,
    CommitPolicy,
    EngineOptions,
    Order,
    ProcessingOn,
    Tolerance,
)
from tidelog.kinds.sections import LocalPath, Milliseconds, Section

DEFAULTS = EngineOptions()


class EngineSection(Section):
    """Options of an [engine in your program](../how-to/embed.md); arguments of `AsyncEngine`
    override them.

    The command line ignores it.
    """

    record_processing_threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads that transform, serialize and, where events are consumed in parallel, "
        "consume; processes, or Spark's tasks at once, if these are asked for. Unset: as many as "
        "this machine has cores.",
        examples=[4],
    )
    record_processing_on: ProcessingOn = Field(
        default=DEFAULTS.record_processing_on,
        description="`processes`: for transforms in Python that cost more than to send an event "
        "there and back; they, and a consumer in parallel, must be functions of a module. `spark`: "
        "on executors, in the session that runs or one of `pipeline.master` and `pipeline.conf`.",
    )
    concurrent_coroutines: int = Field(
        default=DEFAULTS.concurrent_coroutines,
        ge=1,
        description="Where transforms, or with `consume_records_async` the consumer, are coroutine "
        "functions (`async def`): so many of their coroutines at once.",
    )
    consume_records_async: bool = Field(
        default=False, description="Call the consumer of single events in parallel."
    )
    order: Order | None = Field(
        default=None,
        description="`total`: as in the log. `key`: events of one key are, keys at once. `none`: "
        "any. Unset: `none` with `consume_records_async`, else `total`.",
    )
    batch_size: int = Field(default=BATCH_SIZE, ge=1, description="The most records of a batch.")
    task_management_timeout_ms: Milliseconds = Field(
        default=DEFAULTS.task_management_timeout_ms,
        ge=1,
        description="For all tasks to start; again for all to stop.",
    )
    polling_shutdown_timeout_ms: Milliseconds = Field(
        default=DEFAULTS.polling_shutdown_timeout_ms,
        ge=0,
        description="How long events may still be processed when the engine stops. 0: not at all.",
    )
    errors_max_retries: int = Field(
        default=DEFAULTS.errors_max_retries,
        ge=-1,
        description="How often a transient error is retried, also one that capture meets at the "
        "source or the state store. -1: without limit.",
    )
    errors_retry_delay_initial_ms: Milliseconds = Field(
        default=DEFAULTS.errors_retry_delay_initial_ms,
        ge=1,
        description="Before the first retry; doubled before each further one.",
    )
    errors_retry_delay_max_ms: Milliseconds = Field(
        default=DEFAULTS.errors_retry_delay_max_ms, ge=1, description="The longest delay."
    )
    errors_tolerance: Tolerance = Field(
        default=DEFAULTS.errors_tolerance,
        description="What to do with an event for which a transform, the serializer or a consumer "
        "of single events raises. `none`: the engine ends. `dead_letter`: it is written to "
        "`dead_letter`, and skipped.",
    )
    dead_letter: LocalPath | None = Field(
        default=None,
        description="Directory of a file of JSON lines with database, table, version, op and "
        "reason (no values).",
        examples=["./data/dead-letters"],
    )
    offset_commit_policy: CommitPolicy = Field(
        default=DEFAULTS.offset_commit_policy,
        description="`always`: after every batch. `periodic`: every `offset_commit_interval_ms`. "
        "In either case, done events are committed at the end.",
    )
    offset_commit_interval_ms: Milliseconds = Field(
        default=DEFAULTS.offset_commit_interval_ms, ge=1, description="For `periodic`."
    )


class EngineArguments(TypedDict, total=False):
    """The options of the section as keyword arguments of `AsyncEngine`, for type checkers."""

    record_processing_threads: int | None
    record_processing_on: ProcessingOn
    concurrent_coroutines: int
    consume_records_async: bool
    order: Order | None
    batch_size: int
    task_management_timeout_ms: int
    polling_shutdown_timeout_ms: int
    errors_max_retries: int
    errors_retry_delay_initial_ms: int
    errors_retry_delay_max_ms: int
    errors_tolerance: Tolerance
    dead_letter: str | Path | None
    offset_commit_policy: CommitPolicy
    offset_commit_interval_ms: int
