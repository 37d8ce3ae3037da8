"""Where a configuration's event log is, and where it begins."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidelog.capture.session import STATUS_KEY
from tidelog.config import Config
from tidelog.config.databases import of_one_database
from tidelog.eventlog.log_files import LOG_FILE
from tidelog.eventlog.storage.opening import provide_options
from tidelog.model.log_places import is_url
from tidelog.ports import StateStore

STATUS_MARGIN = 1 << 40  # far more than is written between two status documents


def log_place(config: Config) -> str:
    """The event log's directory or URL; from now on this process can open it, and so can those that
    it starts.

    Raises ConfigError: the configuration is of several databases, which have a log each.
    """
    of_one_database(config)
    options = config.log.storage_options
    provide_options(
        config.log.path, {name: value.get_secret_value() for name, value in options.items()}
    )
    return config.log.path


def which_copy(place: str) -> str:
    """A few letters that tell an event log from its copies, whose generation is the same; the same
    from every host that sees this one. Empty: there is none.

    A copy may have the times and the inode of what was copied, but not its change time as well.
    """
    known = place.rstrip("/")
    if not is_url(place):
        try:
            status = (Path(place) / LOG_FILE).stat()
        except OSError:
            return ""
        known = f"{status.st_ino} {status.st_ctime_ns}"
    return hashlib.sha256(known.encode()).hexdigest()[:6]


def start_offset(state: StateStore) -> int:
    """Where a new log begins: above every version that one before it may have issued."""
    status = state.get(STATUS_KEY)
    if status is None:
        return 0
    issued: int = status.value["capture"]["next_offset"]
    return issued + STATUS_MARGIN if issued else 0
