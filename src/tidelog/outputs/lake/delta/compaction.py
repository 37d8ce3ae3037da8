"""Which files of a Delta table are put together: those of about one size, once there are enough.

Files fall into tiers by size, each tier holds files up to eight times larger than the one before.
Eight files of a tier become one, of the next tier. So a row is rewritten as often as the table is
eightfold the size of a batch: log8(table / batch) times, and a table has at most seven small files
in each tier. (Size-tiered compaction, as log-structured stores have it.)
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tidelog.outputs.lake.delta_log.actions import DataFile

FILES_OF_A_TIER = 8
_SMALLEST_BYTES = 256 << 10  # all smaller files are of one tier
_LARGE_BYTES = 128 << 20  # files of this size stay as they are
_MOST_BYTES = 1 << 30  # put together at once
_DEAD_SHARE = 0.5  # a file with more rows deleted is rewritten by itself


def files_to_compact(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Groups of files of one partition, each to be rewritten as one file (or a few large ones)."""
    tiers: dict[tuple[tuple[tuple[str, str | None], ...], int], list[DataFile]] = defaultdict(list)
    groups: list[list[DataFile]] = []
    for file in files:
        live = _live_share(file)
        if live < 1 - _DEAD_SHARE:
            groups.append([file])
        elif file.size * live < _LARGE_BYTES:
            partition = tuple(sorted(file.partition_values.items()))
            tiers[partition, _tier(file.size * live)].append(file)
    for found in tiers.values():
        if len(found) >= FILES_OF_A_TIER:
            groups += _bounded(sorted(found, key=lambda file: file.modification_time_ms))
    return groups


def _tier(size: float) -> int:
    tier, limit = 0, _SMALLEST_BYTES
    while size > limit:
        tier, limit = tier + 1, limit * FILES_OF_A_TIER
    return tier


def _live_share(file: DataFile) -> float:
    """How much of the file is not deleted; 1 where that can't be known."""
    vector = file.deletion_vector
    rows = json.loads(file.stats).get("numRecords") if file.stats and vector else None
    return 1 - vector.cardinality / rows if vector and rows else 1.0


def _bounded(files: Sequence[DataFile]) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    held = 0
    for file in files:
        if held + file.size > _MOST_BYTES and groups[-1]:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.size
    return [group for group in groups if len(group) > 1]
