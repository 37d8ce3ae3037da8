"""What a process that starts asks event log and state store for, before it leads or stands by: one
that is away is waited for, and who is not let in ends at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidelog.app.log_location import log_place
from tidelog.capture.generation import STATUS_KEY
from tidelog.capture.leadership import RETRY_FIRST_S, RETRY_MOST_S
from tidelog.config import Config
from tidelog.errors import AccessRefusedError, Policy, TidelogError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import storage_at
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)


def read_at_startup(config: Config, state: StateStore) -> bool:
    """Is there an event log? Raises what it and the state store refuse us with, or why they don't
    answer.
    """
    state.get(STATUS_KEY)
    place = log_place(config)
    if EventLog.exists(place):
        return True
    Consumers(storage_at(place)).all()  # of a bucket that is not there every object seems to lack
    return False


def retry_until_available(
    ask: Callable[[], bool], stop: threading.Event, on_state: Callable[[str, str], None]
) -> bool:
    """Ask until the answer is True; False: ``stop`` was set before.

    Args:
        ask: may raise; what may pass is told, and asked again with growing pauses.
        stop: nobody asks any more.
        on_state: told ``retrying``, and why.

    Raises:
        TidelogError: what needs a person.
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
            logger.warning("it is tried again: %s", error)
            on_state("retrying", str(error))
            stop.wait(retry_s)
            retry_s = min(RETRY_MOST_S, retry_s * 2)
        else:
            stop.wait(RETRY_FIRST_S)
            retry_s = RETRY_FIRST_S
    return False
