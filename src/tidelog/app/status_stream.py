"""The status, for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tidelog.app.overview.reader import StatusReader
from tidelog.config import Config
from tidelog.errors import EventLogError, StorageError
from tidelog.state.opening import look_every_s, sparing

_ASK_EVERY_S = 0.5  # capture publishes about once a second
_LOG_EVERY_S = 1.0

OnStatus = Callable[[dict[str, Any]], None]


def ignore(_status: dict[str, Any]) -> None:
    """The default of callbacks: does nothing."""


class StatusFeed:
    """A `StatusReader` for callers that look all the time. A context manager, for one thread.

    Attributes:
        ask_every_s: seconds between two looks; longer for a store whose requests are paid for.
        is_paid: is it such a store?
    """

    def __init__(self, config: Config) -> None:
        self.ask_every_s = max(_ASK_EVERY_S, look_every_s(config.state.place))
        self.is_paid = sparing(config.state.place)
        self._reader = StatusReader(config, log_every_s=max(_LOG_EVERY_S, self.ask_every_s))
        self._of_log: dict[str, Any] = {"outputs": []}

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    def latest(self, *, last: bool = False) -> dict[str, Any]:
        """As `tidelog.app.status`; ``capture`` is None before the first. An event log that can't be
        read now is as it was. ``last``: for who ends; a log is not walked where that would take
        long, and nothing is told of outputs then.
        """
        found = self._reader.noted()
        if last and self.is_paid:
            return {**found, "outputs": []}
        with suppress(EventLogError, StorageError, OSError):
            self._of_log = self._reader.from_log()
        return {**found, **self._of_log}
