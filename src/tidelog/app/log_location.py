"""Where a configuration's event log is, and where it begins."""

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


def seen_offset(state: StateStore, log: EventLog) -> int:
    """Below it, offsets of the log were issued, as state and consumers know; both may be older than
    the log, or restored with it.

    Says so where the log ends before: it was restored alone, or lost its end.
    """
    status = state.get(STATUS_KEY)
    known = [0] if status is None else [int(status.value["capture"]["next_offset"])]
    try:
        known += [each.offset for each in Consumers(log.storage).all()]
    except SegmentCorruptError as error:
        logger.warning("how far consumers have read is not known: %s", error)
    seen, tail = max(known), log.tail if log.is_known else log.newest()
    if tail is not None and seen > tail.next:
        logger.warning(
            "the event log ends at offset %d, but offsets up to %d were issued: it was put back to "
            "an earlier state, or lost its end. Its next offsets begin above all that were issued; "
            "whoever has read beyond its end is told so (docs/how-to/restore.md)",
            tail.next,
            seen,
        )
    return seen


def seen_later(state: StateStore, log: EventLog) -> Future[int]:
    """`seen_offset`, asked for while others are asked for other things."""
    pool = ThreadPoolExecutor(1, "tidelog-seen-offset")
    try:
        return pool.submit(seen_offset, state, log)
    finally:
        pool.shutdown(wait=False)


def start_offset(state: StateStore) -> int:
    """Where a new log begins: above every version that one before it may have issued."""
    status = state.get(STATUS_KEY)
    if status is None:
        return 0
    issued: int = status.value["capture"]["next_offset"]
    return issued + STATUS_MARGIN if issued else 0
