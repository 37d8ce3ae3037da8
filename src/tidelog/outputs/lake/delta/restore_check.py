"""Was a Delta table restored to an older version? Its own commits say.

RESTORE brings back rows and properties, and leaves the transaction versions, by which we know how
far a table is. So each of our commits carries a note (``userMetadata``, which DESCRIBE HISTORY
shows): how far the rows are with it, and up to which version it is known that nothing was restored.
From the newest commit backward, the first note or RESTORE says how far the rows are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

# A RESTORE by timestamp tells none of its time zone: taken too early, more comes again, no less.
_ZONES = timedelta(hours=15)


@dataclass(frozen=True)
class DeltaCommit:
    """What Delta's log says of a commit; ``note``: ours, if it has one."""

    version: int
    timestamp_ms: int
    operation: str
    parameters: dict[str, Any]
    note: dict[str, Any] | None

    @classmethod
    def parse(cls, version: int, info: dict[str, Any]) -> DeltaCommit:
        """From the action ``commitInfo``."""
        note: Any = None
        with suppress(ValueError):  # somebody else's
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
    """How far the rows are: ``offset``, None if no commit tells. ``restored``: the version that a
    RESTORE made, which decided it; None if none did.
    """

    offset: int | None
    restored: int | None = None


def note(application: str, end: int, checked: int) -> str:
    """For a commit after which the rows are those of ``end``; nothing between ``checked``, a
    version, and the time when it began, was restored.
    """
    return json.dumps({"tidelog": application, "end": end, "checked": checked})


def standing(
    read: Callable[[int], DeltaCommit | None], version: int, application: str
) -> RestoreState:
    """How far the rows of ``version`` are; ``read`` gives a version's commit, None where it is gone
    from the log.
    """
    restored: int | None = None
    at = version
    # However many there are: others' OPTIMIZE and VACUUM are three commits each time.
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
    """The newest RESTORE between the two, which are no part of it."""
    for at in range(version - 1, checked, -1):
        commit = read(at)
        if commit is not None and commit.operation == "RESTORE":
            return at
    return None


def _target(read: Callable[[int], DeltaCommit | None], restore: DeltaCommit) -> int:
    """The version that was restored, or one before it."""
    named = restore.parameters.get("version")
    if named is not None:
        return int(named)
    try:
        # As Spark takes it: a date, or a date and a time, whatever stands behind them.
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
