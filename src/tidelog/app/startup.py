"""Reads the event log and the state store at startup, before this process leads or stands by.

Retries while one is unavailable, and ends at once if one refuses access.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tidelog.app.log_location import event_log_path
from tidelog.capture.generation import STATUS_KEY
from tidelog.capture.leadership import RETRY_FIRST_S, RETRY_MOST_S
from tidelog.config import Config
from tidelog.errors import AccessRefusedError, Policy, TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import storage_at
from tidelog.model.log_locations import is_url
from tidelog.ports import StateStore
from tidelog.state.opening import state_path
from tidelog.system.writable import obstacle

logger = logging.getLogger(__name__)


def local_directories(config: Config) -> dict[str, Path]:
    """Return, by option, the directories of this host in which event log and state are written."""
    found = {} if is_url(config.log.path) else {"log.path": Path(config.log.path)}
    state = state_path(config.state.place)
    if state is not None:
        found["state.url"] = state if state.is_dir() else state.parent
    return found


def check_local_paths(config: Config) -> None:
    """Raise UsageError if the event log or the state can't be written where the configuration says.

    A disk that is full is no such error: space may come back.
    """
    for option, path in local_directories(config).items():
        if why := obstacle(path):
            raise UsageError(
                f"{option}: no file can be created at {path}: {why}. Name another directory, or "
                "let this user write there"
            )


def read_at_startup(config: Config, state: StateStore) -> bool:
    """Return whether there is an event log. Raises the errors of the log and the state store."""
    state.get(STATUS_KEY)
    place = event_log_path(config)
    if EventLog.exists(place):
        return True
    # in a bucket that does not exist, every object seems to be missing
    Consumers(storage_at(place)).all()
    return False


def retry_until_available(
    ask: Callable[[], bool], stop: threading.Event, on_state: Callable[[str, str], None]
) -> bool:
    """Call ``ask`` until it returns True; return False if ``stop`` was set before.

    Args:
        ask: may raise; a transient error is logged and retried, with growing pauses.
        stop: ends the retries when set.
        on_state: called with ``retrying`` and the error's message.

    Raises:
        TidelogError: an error that a person has to fix.
    """
    retry_s = RETRY_FIRST_S
    while not stop.is_set():
        try:
            if ask():
                return True
        except AccessRefusedError:
            raise
        except TidelogError as error:
            if error.policy is Policy.STOP:
                raise
            logger.warning("retrying: %s", error)
            on_state("retrying", str(error))
            stop.wait(retry_s)
            retry_s = min(RETRY_MOST_S, retry_s * 2)
        else:
            stop.wait(RETRY_FIRST_S)
            retry_s = RETRY_FIRST_S
    return False
