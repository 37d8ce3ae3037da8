"""Polls the state store for a pause of a pipeline."""

from __future__ import annotations

import logging
import threading
from typing import Final

from tidelog.capture.limits.pauses import PIPELINE_KEYS, Pause, pause_of
from tidelog.errors import StateError, UsageError
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

POLL_EVERY_S: Final = 1.0
PAID_FACTOR: Final = 4
"""If requests cost money, pauses are polled so many times less often than commands."""


class PipelinePause:
    """Whether one pipeline is paused. `watch` runs in its own thread, as a store may be slow.

    Args:
        state: the state store.
        name: the name of the pipeline.
        every_s: how often a leader polls for commands; 0: requests cost nothing.
    """

    def __init__(self, state: StateStore, name: str, every_s: float) -> None:
        self._state = state
        self._name = name
        self._every_s = max(POLL_EVERY_S, PAID_FACTOR * every_s)
        self._pause: Pause | None = None
        self._poll()

    @property
    def now(self) -> bool:
        """Whether it is paused."""
        return self._pause is not None

    def watch(self, done: threading.Event) -> None:
        """Poll until ``done`` is set."""
        while not done.wait(self._every_s):
            self._poll()

    def _poll(self) -> None:
        try:
            pause = pause_of(self._state, PIPELINE_KEYS + self._name)
        except StateError:
            return  # the last answer stays
        if pause is not None and self._pause is None:
            logger.warning("pipeline %s is %s", self._name, pause.sentence())
        elif pause is None and self._pause is not None:
            logger.warning("pipeline %s resumes", self._name)
        self._pause = pause

    def refuse(self) -> None:
        """Raise UsageError if it is paused; for callers that do not wait."""
        if self._pause is not None:
            raise UsageError(
                f"pipeline {self._name} is {self._pause.sentence()}: `tidelog resume CONFIG "
                "--pipeline` resumes it"
            )
