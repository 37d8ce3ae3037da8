"""Finds out from a Delta table's commits whether it was restored to an older version.

RESTORE brings back rows and properties, but keeps the transaction versions, by which we know a
table's offset. So each of our commits has a note (``userMetadata``, which DESCRIBE HISTORY shows):
the offset of the rows with it, and the version up to which no RESTORE is left to be handled.
Reading backward from the newest commit, the first note or RESTORE gives the rows' offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

# A RESTORE by timestamp has no time zone: if we assume a time that is too early, more rows are
# written again, never too few.
_ZONES = timedelta(hours=15)


@dataclass(frozen=True)
class DeltaCommit:
    """A commit in Delta's log; ``note``: Tidelog's note, if it has one."""

    version: int
    timestamp_ms: int
    operation: str
    parameters: dict[str, Any]
    note: dict[str, Any] | None

    @classmethod
    def parse(cls, version: int, info: dict[str, Any]) -> DeltaCommit:
        """Returns the commit of the action ``commitInfo``."""
        note: Any = None
        with suppress(ValueError):  # another writer's text
            note = json.loads(info.get("userMetadata") or "null")
        return cls(
            version,
            int(info.get("timestamp") or 0),
            str(info.get("operation") or ""),
            info.get("operationParameters") or {},
            note if isinstance(note, dict) and "tidelog" in note else None,
        )


@dataclass(frozen=True)
class RestoreState:
    """The offset of the rows, None if no commit gives it. ``restored``: the version of the RESTORE
    that decided it; None if none did.
    """

    offset: int | None
    restored: int | None = None


def note(application: str, end: int, checked: int) -> str:
    """Returns the note for a commit after which the rows are those of offset ``end``. Nothing was
    restored between version ``checked`` and the commit's start.
    """
    return json.dumps({"tidelog": application, "end": end, "checked": checked})


def restore_state(
    read: Callable[[int], DeltaCommit | None], version: int, application: str
) -> RestoreState:
    """Returns the offset of the rows at ``version``; ``read`` returns a version's commit, or None
    if it was removed from the log.
    """
    restored: int | None = None
    at = version
    # Without a limit: each OPTIMIZE and VACUUM of others adds three commits.
    while at >= 0:
        commit = read(at)
        if commit is None:
            break
        if commit.operation == "RESTORE":
            restored = at if restored is None else restored
            at = _target(read, commit)
            continue
        if commit.note is not None and commit.note["tidelog"] == application:
            between = _restored_in(read, int(commit.note["checked"]), at)
            if between is None:
                return RestoreState(int(commit.note["end"]), restored)
            restored = between if restored is None else restored
            at = between
            continue
        at -= 1
    return RestoreState(None, restored)


def _restored_in(
    read: Callable[[int], DeltaCommit | None], checked: int, version: int
) -> int | None:
    """Returns the newest RESTORE between the two versions, both excluded."""
    for at in range(version - 1, checked, -1):
        commit = read(at)
        if commit is not None and commit.operation == "RESTORE":
            return at
    return None


def _target(read: Callable[[int], DeltaCommit | None], restore: DeltaCommit) -> int:
    """Returns the version that was restored, or one before it."""
    named = restore.parameters.get("version")
    if named is not None:
        return int(named)
    try:
        # As Spark parses it: a date, or a date and a time; any text after them is ignored.
        text = str(restore.parameters.get("timestamp")).strip().replace(" ", "T")[:19]
        until = datetime.fromisoformat(text).replace(tzinfo=UTC) - _ZONES
    except ValueError:
        return -1
    for at in range(restore.version - 1, -1, -1):
        commit = read(at)
        if commit is None:
            return -1
        if commit.timestamp_ms <= until.timestamp() * 1000:
            return at
    return -1
