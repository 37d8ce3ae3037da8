"""Removes commits and checkpoints that are older than a table's log is kept.

Delta protocol, "Metadata Cleanup": by whole days, and never what a checkpoint that stays needs.
"""

from __future__ import annotations

import time
from typing import Final

from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.delta_log.log_files import FOLDER, LogListing, version_of
from tidelog.outputs.lake.delta_log.protocol_versions import features_of
from tidelog.outputs.lake.delta_log.retention import duration_ms
from tidelog.outputs.lake.delta_log.table_state import TableState

_DAY_MS: Final = 24 * 3_600_000
_RETENTION: Final = "interval 30 days"  # where the table has no delta.logRetentionDuration


def clean_up(store: FileStore, state: TableState) -> None:
    """As ``delta.logRetentionDuration`` and ``delta.enableExpiredLogCleanup`` say; once a day for
    each state. Sidecars of other writers' checkpoints stay.

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
    there = set(found.commits)
    versions = sorted({each.version for each in found.checkpoints if each.version in there})
    oldest = _newest_before(state, versions, until_ms)
    if oldest is not None:
        store.delete(f"{FOLDER}/{name}" for name in names if -1 < version_of(name) < oldest)


def _newest_before(state: TableState, versions: list[int], until_ms: int) -> int | None:
    """The newest of ``versions``, sorted, whose commit is not newer than ``until_ms``."""
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
