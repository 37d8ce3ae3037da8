"""For tests of programs that embed an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.engine.ports import TaskContext
from tidelog.errors import EngineStateError

__all__ = ["TestingEngine"]

T = TypeVar("T")


class TestingEngine:
    """Looks into an engine that a test runs."""

    __test__ = False  # pytest: it is none

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def run_with_task(self, function: Callable[[TaskContext], T], *, task: str = "") -> T:
        """What ``function`` returns of a task's context; it is called in this thread, once the
        engine polls, and beside it.

        Args:
            function: called with the context.
            task: its name; empty: the first one.

        Raises:
            EngineStateError: the engine has ended.
            ValueError: it has no such task.
        """
        if not self._engine.wait_for_polling():
            raise EngineStateError("the engine has ended")
        tasks = self._engine.context.tasks
        for each in tasks:
            if task in ("", each.name):
                return function(each)
        raise ValueError(f"the engine has the tasks {', '.join(each.name for each in tasks)}")
