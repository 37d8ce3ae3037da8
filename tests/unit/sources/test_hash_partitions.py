"""Shares of tasks: each row falls to one, a key always to the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelog.outputs.base.tasks import partition_numbers, select_rows


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(1000), pa.int32()),
        pa.array([f"k{n}" for n in range(1000)]),
        pa.array([str(n).encode() * (n % 3) for n in range(1000)], pa.binary()),
        pa.array([n * 86_400_000_000 for n in range(1000)], pa.timestamp("us")),
        pa.array([None, *range(999)], pa.int64()),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("count", [2, 3])
def test_shares_part_the_rows_evenly_and_keep_their_order(column: pa.Array, count: int) -> None:
    n = len(column)
    rows = pa.RecordBatch.from_arrays([column, pa.array(range(n))], names=["k", "at"])
    found = [select_rows(rows, ["k"], partition, count) for partition in range(count)]
    places = [each.column("at").to_pylist() for each in found]
    assert sorted(at for each in places for at in each) == list(range(n))
    assert all(each == sorted(each) for each in places)
    if column.null_count == 0 and not pa.types.is_binary(column.type):
        assert min(map(len, places)) > n / count / 2


def test_a_key_falls_to_the_same_task_in_whatever_batch_it_stands() -> None:
    texts = [f"key {n}" for n in range(100)]
    whole = pa.RecordBatch.from_arrays([pa.array(texts), pa.array(range(100))], names=["a", "b"])
    mine = set(select_rows(whole, ["a", "b"], 0, 2).column("a").to_pylist())
    for at in range(100):
        alone = select_rows(whole.slice(at, 1), ["a", "b"], 0, 2)
        assert (alone.num_rows == 1) == (texts[at] in mine)


def test_a_key_falls_to_the_task_that_it_fell_to_in_earlier_versions() -> None:
    """A batch that is repeated after an upgrade is divided as it was begun."""
    columns = [["", "a", "ab", None, "é" * 40], [0, -1, None, 7, 1 << 60]]
    rows = pa.RecordBatch.from_arrays([*map(pa.array, columns)], names=["text", "number"])
    found = [partition_numbers(rows, [k], 1000).tolist() for k in ("text", "number")]
    assert found == [[0, 458, 960, 0, 153], [0, 993, 0, 379, 920]]
