"""What an engine's connector and tasks run with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.engine.options import CommitPolicy, EngineOptions
from tidelog.engine.ports import SourceTask, Transform

Clock = Callable[[], float]
"""Seconds that never go back, as `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The context of one task. ``task`` reads its offset (`committed`) and writes it (`commit`)."""

    name: str
    task: SourceTask
    offset_commit_policy: CommitPolicy
    clock: Clock
    transforms: Sequence[Transform]


@dataclass(frozen=True, slots=True)
class ConnectorContext:
    """The context of the connector; ``tasks`` is empty until they have been made."""

    options: EngineOptions
    clock: Clock
    transforms: Sequence[Transform]
    tasks: Sequence[TaskContext]
