"""Which files are put together."""

from __future__ import annotations

import json
import math

from tidelog.outputs.lake.delta_log.actions import DataFile, DeletionVector
from tidelog.outputs.lake.settled_table import FILES_OF_A_TIER, files_to_compact

KIB, MIB = 1 << 10, 1 << 20


def a_file(number: int, size: int, partition: str | None = None, dead: float = 0.0) -> DataFile:
    rows = 1000
    vector = DeletionVector("u", "x", 1, 40, int(rows * dead)) if dead else None
    return DataFile(
        f"part-{number}.parquet",
        {} if partition is None else {"p": partition},
        size,
        number,
        json.dumps({"numRecords": rows}),
        vector,
    )


def test_files_of_one_size_are_put_together_once_there_are_enough() -> None:
    few = [a_file(n, 10 * KIB) for n in range(FILES_OF_A_TIER - 1)]
    assert files_to_compact(few) == []
    enough = [*few, a_file(7, 200 * KIB)]
    assert files_to_compact(enough) == [enough]
    assert files_to_compact([*few, a_file(7, 1 * MIB)]) == []  # of another tier


def test_large_files_and_other_partitions_are_left_alone() -> None:
    assert files_to_compact(a_file(n, 200 * MIB) for n in range(20)) == []
    spread = [a_file(n, 10 * KIB, str(n % 4)) for n in range(4 * (FILES_OF_A_TIER - 1))]
    assert files_to_compact(spread) == []
    (group,) = files_to_compact([*spread, a_file(99, 10 * KIB, "2")])
    assert {file.partition_values["p"] for file in group} == {"2"}


def test_a_file_that_is_mostly_dead_is_rewritten() -> None:
    mostly, hardly = a_file(1, 500 * MIB, dead=0.6), a_file(2, 500 * MIB, dead=0.4)
    assert files_to_compact([mostly, hardly]) == [[mostly]]


def test_rows_are_rewritten_a_few_times_and_few_files_stay() -> None:
    """A batch of 100 KiB, 5,000 times."""
    files: list[DataFile] = []
    rewritten = most = 0
    for number in range(5000):
        files.append(a_file(number, 100 * KIB))
        for group in files_to_compact(files):
            size = sum(file.size for file in group)
            rewritten += size
            gone = {file.path for file in group}
            files = [file for file in files if file.path not in gone]
            files.append(a_file(10_000 + number, size))
        most = max(most, len(files))
    total = 5000 * 100 * KIB
    assert sum(file.size for file in files) == total
    assert rewritten / total <= math.log(total / (100 * KIB), FILES_OF_A_TIER)
    assert most <= 4 * FILES_OF_A_TIER + 10
