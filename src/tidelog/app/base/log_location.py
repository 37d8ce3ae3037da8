"""Finds the event log of a configuration and its first offset, and reads it at startup.

At startup, before this process leads or stands by, the event log and the state store are read
again while one is unavailable. If one refuses access, the process ends at once.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tidelog.capture.leadership import RETRY
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.config.loading import one_database_config
from tidelog.errors import (
    AccessRefusedError,
    ConsumerFileCorruptError,
    Policy,
    TidelogError,
    UsageError,
)
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.log_files import LOG_FILE
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import provide_options, storage_at
from tidelog.model.option_values import is_url
from tidelog.model.records import Resume
from tidelog.ports import SourceId, StateStore
from tidelog.state.opening import state_path
from tidelog.system.private_files import obstacle_to_files

logger = logging.getLogger(__name__)

STATUS_MARGIN = 1 << 40  # far more than is written between two status documents


def event_log_path(config: Config) -> str:
    """Return the event log's directory or URL, and register its storage options.

    From then on, this process and those that it starts can open the log. Raises ConfigError for a
    configuration of several databases: each has its own log.
    """
    one_database_config(config)
    options = config.log.storage_options
    provide_options(
        config.log.path, {name: value.get_secret_value() for name, value in options.items()}
    )
    return config.log.path


def log_copy_id(location: str) -> str:
    """Return a short hash that differs between an event log and its copies; empty: no log.

    A copy has the same generation, so the hash is of the log's URL, or of its file's inode and
    change time: a copy may keep the other times and the inode, but not the change time as well. It
    is the same on every host that sees this log.
    """
    identity = location.rstrip("/")
    if not is_url(location):
        try:
            status = (Path(location) / LOG_FILE).stat()
        except OSError:
            return ""
        identity = f"{status.st_ino} {status.st_ctime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:6]


def end_of_log(location: str) -> tuple[Resume, SourceId] | None:
    """Return where capture resumes, and in which source; None: the log has no position, or can't be
    read.
    """
    try:
        log = EventLog.open(location) if EventLog.exists(location) else None
        resume = None if log is None else log.resume
        return None if log is None or resume is None else (resume, log.captured_from)
    except TidelogError:
        return None


def highest_issued_offset(state: StateStore, log: EventLog) -> int:
    """Return the offset below which offsets were issued, as state and consumers know.

    Both may be older than the log, or restored with it. Logs a warning if the log ends before that
    offset: it was restored alone, or lost its end.
    """
    status = state.get(STATUS_KEY)
    offsets = [0] if status is None else [int(status.value["capture"]["next_offset"])]
    try:
        offsets += [each.offset for each in Consumers(log.storage).all()]
    except ConsumerFileCorruptError as error:
        logger.warning("how far consumers have read is not known: %s", error)
    issued, tail = max(offsets), log.tail if log.is_known else log.newest()
    if tail is not None and issued > tail.next:
        logger.warning(
            "the event log ends at offset %d, but offsets up to %d were issued: it was put back to "
            "an earlier state, or lost its end. Its next offsets start above all that were issued; "
            "readers that are beyond its end get an error (docs/how-to/restore.md)",
            tail.next,
            issued,
        )
    return issued


def issued_offset_future(state: StateStore, log: EventLog) -> Future[int]:
    """Start reading `highest_issued_offset` in a thread."""
    pool = ThreadPoolExecutor(1, "tidelog-seen-offset")
    try:
        return pool.submit(highest_issued_offset, state, log)
    finally:
        pool.shutdown(wait=False)


def start_offset(state: StateStore) -> int:
    """Return the first offset of a new log, above every version that an older one may have."""
    status = state.get(STATUS_KEY)
    if status is None:
        return 0
    issued: int = status.value["capture"]["next_offset"]
    return issued + STATUS_MARGIN if issued else 0


# The event log and the state store at startup.


def local_directories(config: Config) -> dict[str, Path]:
    """Return, by option, the directories of this host in which event log and state are written."""
    found = {} if is_url(config.log.path) else {"log.path": Path(config.log.path)}
    state = state_path(config.state.location)
    if state is not None:
        found["state.url"] = state if state.is_dir() else state.parent
    return found


def check_local_paths(config: Config) -> None:
    """Raise UsageError if the event log or the state can't be written where the configuration says.
    A disk that is full is no such error: space may come back.
    """
    for option, path in local_directories(config).items():
        if why := obstacle_to_files(path):
            raise UsageError(
                f"{option}: no file can be created at {path}: {why}. Name another directory, or "
                "let this user write there"
            )


def read_at_startup(config: Config, state: StateStore) -> bool:
    """Return whether there is an event log. Raises the errors of the log and the state store."""
    state.get(STATUS_KEY)
    location = event_log_path(config)
    if EventLog.exists(location):
        return True
    # in a bucket that does not exist, every object seems to be missing
    Consumers(storage_at(location)).all()
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
    failures = 0
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
            failures += 1
        else:
            failures = 0
        stop.wait(RETRY.after(failures))
    return False
