"""Polls the status for callers that display it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tidelog.app.overview.reader import StatusReader
from tidelog.config import Config
from tidelog.errors import EventLogError, StorageError
from tidelog.state.opening import look_every_s, pays_per_request

_POLL_EVERY_S = 0.5  # capture publishes about once a second
_LOG_EVERY_S = 1.0

OnStatus = Callable[[dict[str, Any]], None]


def ignore(_status: dict[str, Any]) -> None:
    """The default of callbacks: does nothing."""


class StatusFeed:
    """A `StatusReader` for callers that poll. A context manager, for one thread.

    Attributes:
        poll_interval_s: seconds between two polls; longer if the state store's requests cost money.
        pays_per_request: whether they cost money.
    """

    def __init__(self, config: Config) -> None:
        self.poll_interval_s = max(_POLL_EVERY_S, look_every_s(config.state.place))
        self.pays_per_request = pays_per_request(config.state.place)
        self._reader = StatusReader(config, log_every_s=max(_LOG_EVERY_S, self.poll_interval_s))
        self._log_status: dict[str, Any] = {"outputs": []}

    def __enter__(self) -> StatusFeed:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    def latest(self, *, last: bool = False) -> dict[str, Any]:
        """Return a status as `tidelog.app.status` does; ``capture`` is None before the first
        capture.

        If the event log can't be read now, its part is that of the last call. ``last``: for a
        process that ends; where reading the log costs money, outputs are left out.
        """
        status = self._reader.from_state()
        if last and self.pays_per_request:
            return {**status, "outputs": []}
        with suppress(EventLogError, StorageError, OSError):
            self._log_status = self._reader.from_log()
        return {**status, **self._log_status}
