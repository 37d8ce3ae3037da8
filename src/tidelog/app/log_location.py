"""Finds the event log of a configuration, and the first offset of a new one."""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tidelog.capture.generation import STATUS_KEY
from tidelog.config import Config
from tidelog.config.databases import of_one_database
from tidelog.errors import SegmentCorruptError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.log_files import LOG_FILE
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage.opening import provide_options
from tidelog.model.log_locations import is_url
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

STATUS_MARGIN = 1 << 40  # far more than is written between two status documents


def event_log_path(config: Config) -> str:
    """Return the event log's directory or URL, and register its storage options.

    From then on, this process and those that it starts can open the log. Raises ConfigError for a
    configuration of several databases: each has its own log.
    """
    of_one_database(config)
    options = config.log.storage_options
    provide_options(
        config.log.path, {name: value.get_secret_value() for name, value in options.items()}
    )
    return config.log.path


def log_copy_id(place: str) -> str:
    """Return a short hash that differs between an event log and its copies; empty: no log.

    A copy has the same generation, so the hash is of the log's URL, or of its file's inode and
    change time: a copy may keep the other times and the inode, but not the change time as well. It
    is the same on every host that sees this log.
    """
    identity = place.rstrip("/")
    if not is_url(place):
        try:
            status = (Path(place) / LOG_FILE).stat()
        except OSError:
            return ""
        identity = f"{status.st_ino} {status.st_ctime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:6]


def highest_issued_offset(state: StateStore, log: EventLog) -> int:
    """Return the offset below which offsets were issued, as state and consumers know.

    Both may be older than the log, or restored with it. Logs a warning if the log ends before that
    offset: it was restored alone, or lost its end.
    """
    status = state.get(STATUS_KEY)
    offsets = [0] if status is None else [int(status.value["capture"]["next_offset"])]
    try:
        offsets += [each.offset for each in Consumers(log.storage).all()]
    except SegmentCorruptError as error:
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
