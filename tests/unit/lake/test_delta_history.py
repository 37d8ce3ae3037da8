"""How far a Delta table's rows are, by its commits alone."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.outputs.lake.delta.table import DeltaCommit, RestoreState, commit_note, restore_state

APP = "tidelog/g/delta"


def history(*commits: dict[str, Any], first: int = 0) -> Any:
    """Reads commits; a dict each, as ``commitInfo`` has them."""
    found = [DeltaCommit.parse(number, info) for number, info in enumerate(commits, first)]
    by_version = {each.version: each for each in found}
    return by_version.get, found[-1].version


def ours(end: int, checked: int, at: int = 0) -> dict[str, Any]:
    return {"operation": "MERGE", "userMetadata": commit_note(APP, end, checked), "timestamp": at}


def restore(version: int | None = None, timestamp: str | None = None) -> dict[str, Any]:
    parameters = {"version": version, "timestamp": timestamp}
    return {"operation": "RESTORE", "operationParameters": parameters}


OTHER: dict[str, Any] = {"operation": "OPTIMIZE", "userMetadata": "mine"}
MADE: dict[str, Any] = {"operation": "CREATE TABLE"}
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ((MADE, ours(10, -1), ours(20, 1)), RestoreState(20)),
        ((MADE, ours(10, -1), OTHER, OTHER), RestoreState(10)),
        ((MADE, OTHER), RestoreState(None)),  # an older version wrote it
        ((MADE, ours(10, -1), ours(20, 1), restore(1)), RestoreState(10, 3)),
        ((MADE, ours(10, -1), ours(20, 1), restore(0)), RestoreState(None, 3)),
        ((MADE, ours(10, -1), ours(20, 1), restore(1), restore(2)), RestoreState(20, 4)),
        ((MADE, ours(10, -1), ours(20, 1), restore(1), restore(3), OTHER), RestoreState(10, 4)),
        # It came between our look and our commit.
        ((MADE, ours(10, -1), ours(20, 1), restore(1), ours(30, 2)), RestoreState(10, 3)),
        # What it took came again.
        ((MADE, ours(10, -1), ours(20, 1), restore(1), ours(20, 3)), RestoreState(20)),
    ],
)
def test_the_newest_note_or_restore_tells(
    commits: tuple[dict[str, Any], ...], expected: RestoreState
) -> None:
    assert restore_state(*history(*commits), APP) == expected


def test_a_restore_is_found_behind_many_commits_of_others() -> None:
    """A night of somebody's OPTIMIZE and VACUUM, while the pipeline was stopped."""
    commits = (MADE, ours(10, -1), ours(20, 1), restore(1), *[OTHER] * 200)
    assert restore_state(*history(*commits), APP) == RestoreState(10, 3)


def test_notes_of_other_applications_and_removed_commits_tell_nothing() -> None:
    read, newest = history(ours(10, -1), {"userMetadata": commit_note("another", 20, 0)}, OTHER)
    assert restore_state(read, newest, APP) == RestoreState(10)
    read, newest = history(OTHER, restore(2), OTHER, first=7)
    assert restore_state(read, newest, APP) == RestoreState(None, 8)


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        ("1970-01-10", 20),  # version 2 is older than that by more than any time zone
        ("1970-01-04 01:02:03.5", 20),
        ("1970-01-03 01:02:03", 10),
        ("nothing that is a time", None),
    ],
)
def test_a_restore_by_a_time_is_taken_early(timestamp: str, offset: int | None) -> None:
    commits = (MADE, ours(10, -1, DAY_MS), ours(20, 1, 2 * DAY_MS), restore(None, timestamp))
    assert restore_state(*history(*commits), APP) == RestoreState(offset, 3)
