"""Whether somebody has paused a pipeline: looked for in the state store now and then."""

from __future__ import annotations

import logging
import threading
from typing import Final

from tidelog.capture.limits.pauses import PIPELINE_KEYS, Pause, pause_of
from tidelog.errors import StateError, UsageError
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
SPARINGLY: Final = 4
"""Where looks cost, it is looked for pauses so many times less often than for commands."""


class PipelinePause:
    """Whether one pipeline is paused. `watch` runs on a thread of its own: a store may be slow to
    answer.

    Args:
        state: where it is kept.
        name: of the pipeline.
        every_s: how often a leader looks there for commands; 0: it costs nothing.
    """

    def __init__(self, state: StateStore, name: str, every_s: float) -> None:
        self._state = state
        self._name = name
        self._every_s = max(LOOK_EVERY_S, SPARINGLY * every_s)
        self._pause: Pause | None = None
        self._look()

    @property
    def now(self) -> bool:
        """Is it paused?"""
        return self._pause is not None

    def watch(self, done: threading.Event) -> None:
        """Look again and again, until ``done``."""
        while not done.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        try:
            found = pause_of(self._state, PIPELINE_KEYS + self._name)
        except StateError:
            return  # all stays as it was
        if found is not None and self._pause is None:
            logger.warning("pipeline %s is %s", self._name, found.sentence())
        elif found is None and self._pause is not None:
            logger.warning("pipeline %s goes on", self._name)
        self._pause = found

    def refuse(self) -> None:
        """Raises UsageError if it is paused; for callers that do not wait."""
        if self._pause is not None:
            raise UsageError(
                f"pipeline {self._name} is {self._pause.sentence()}: `tidelog resume CONFIG "
                "--pipeline` lets it go on"
            )
