"""Which of Iceberg's snapshots go."""

from __future__ import annotations

from typing import Any

from tidelog.outputs.lake.iceberg.state import snapshots_to_thin

HOUR_MS = 3_600_000
OURS = {"operation": "overwrite", "tidelog/abc/iceberg/end": "7"}


def snapshot(number: int, at_ms: int, summary: dict[str, str] = OURS) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": at_ms,
        "summary": summary,
    }


def metadata(*snapshots: dict[str, Any], **refs: int) -> dict[str, Any]:
    found = {name: {"snapshot-id": each, "type": "branch"} for name, each in refs.items()}
    return {"snapshots": [*snapshots], "refs": found}


def test_the_newest_snapshot_of_each_hour_stays() -> None:
    found = metadata(
        snapshot(1, 10), snapshot(2, 20), snapshot(3, HOUR_MS - 1),
        snapshot(4, HOUR_MS), snapshot(5, HOUR_MS), snapshot(6, 5 * HOUR_MS),
        snapshot(7, 5 * HOUR_MS + 1), snapshot(8, 5 * HOUR_MS + 2),
        main=8,
    )  # fmt: skip
    assert snapshots_to_thin(found, 5 * HOUR_MS) == [1, 2, 4]
    assert snapshots_to_thin(found, 6 * HOUR_MS) == [1, 2, 4, 6, 7]


def test_what_is_named_or_made_by_others_stays() -> None:
    theirs = snapshot(3, 30, {"operation": "replace"})
    found = metadata(snapshot(1, 10), snapshot(2, 20), theirs, snapshot(4, 40), main=4, audit=1)
    assert snapshots_to_thin(found, HOUR_MS) == [2]


def test_a_table_without_snapshots_has_none() -> None:
    assert snapshots_to_thin({"refs": {}}, HOUR_MS) == []
    assert snapshots_to_thin(metadata(), HOUR_MS) == []
