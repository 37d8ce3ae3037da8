"""Retention by a table's properties: of removed files and of the log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.delta_log.features import features_of
from tidelog.outputs.lake.delta_log.log_files import FOLDER, LogListing, version_of
from tidelog.outputs.lake.delta_log.table_state import TableState

REMOVED_FILES: Final = "delta.deletedFileRetentionDuration"
"""The property with the retention of files that were removed from the table."""

_UNITS_MS: Final = {
    "week": 7 * 24 * 3_600_000.0,
    "day": 24 * 3_600_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}
_PART: Final = re.compile(r"(\d+)\s+([a-z]+?)s?(?:\s+|$)")


def removed_files_ms(configuration: Mapping[str, str]) -> int | None:
    """Returns how long a table with these properties keeps removed files, in milliseconds; None:
    see `duration_ms`.
    """
    return duration_ms(configuration.get(REMOVED_FILES, "interval 1 week"))


def duration_ms(text: str) -> int | None:
    """Returns the milliseconds of an interval in a property of Delta (``interval 30 days``, ``2
    weeks 12 hours``); None: it can't be parsed, so nothing has expired.
    """
    rest = text.strip().lower().removeprefix("interval").strip()
    if not rest:
        return None
    total = 0.0
    while rest:
        found = _PART.match(rest)
        if found is None or found[2] not in _UNITS_MS:
            return None
        total += int(found[1]) * _UNITS_MS[found[2]]
        rest = rest[found.end() :]
    return int(total)


_DAY_MS: Final = 24 * 3_600_000
_RETENTION: Final = "interval 30 days"  # where the table has no delta.logRetentionDuration


def clean_up(store: FileStore, state: TableState) -> None:
    """Delete expired commits and checkpoints, by ``delta.logRetentionDuration`` and
    ``delta.enableExpiredLogCleanup``; once a day for each state. Sidecars of other writers'
    checkpoints are kept.

    A commit's time is that of its ``commitInfo``.
    """
    assert state.metadata is not None
    assert state.protocol is not None
    configuration = state.metadata.configuration
    kept_ms = duration_ms(configuration.get("delta.logRetentionDuration", _RETENTION))
    today = time.time_ns() // 1_000_000 // _DAY_MS
    if (
        configuration.get("delta.enableExpiredLogCleanup", "true") != "true"
        or "checkpointProtection" in features_of(state.protocol)
        or kept_ms is None
        or state.cleaned_on == today
    ):
        return
    state.cleaned_on = today
    until_ms = (time.time_ns() // 1_000_000 - kept_ms) // _DAY_MS * _DAY_MS
    names = store.names(FOLDER)
    found = LogListing.of(names)
    commits = set(found.commits)
    versions = sorted({each.version for each in found.checkpoints if each.version in commits})
    oldest = _newest_before(state, versions, until_ms)
    if oldest is not None:
        store.delete(f"{FOLDER}/{name}" for name in names if -1 < version_of(name) < oldest)


def _newest_before(state: TableState, versions: list[int], until_ms: int) -> int | None:
    """Returns the newest of ``versions``, sorted, whose commit is not newer than ``until_ms``."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        made_ms = _time_of(state, versions[middle])
        if made_ms is not None and made_ms <= until_ms:
            low = middle + 1
        else:
            high = middle
    return versions[low - 1] if low else None


def _time_of(state: TableState, version: int) -> int | None:
    info = state.commit_info(version) or {}
    made_ms = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if made_ms is None else int(made_ms)
