from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableName
from tidelog.pipeline.planning import admit, matches, runs


@dataclass
class Segment:
    next: int
    payload_bytes: int
    rows: int


def segments(*sizes: int) -> list[Any]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [Segment(end, size, 1) for end, size in zip(ends, sizes, strict=True)]


def test_a_batch_takes_whole_segments_within_its_limits() -> None:
    assert admit(segments(10, 10, 10), 0, max_bytes=25, max_records=None) == 20
    assert admit(segments(10, 10, 10), 0, max_bytes=None, max_records=1) == 10
    assert admit(segments(10, 10, 10), 0, max_bytes=None, max_records=None) == 30


def test_a_segment_beyond_the_limit_is_taken_alone() -> None:
    assert admit(segments(100, 10), 0, max_bytes=25, max_records=None) == 100


def test_no_segments_no_progress() -> None:
    assert admit([], 7, max_bytes=25, max_records=None) == 7


@given(
    sizes=st.lists(st.integers(0, 1000), max_size=60),
    partitions=st.integers(1, 9) | st.none(),
    each=st.integers(1, 2000),
)
def test_runs_keep_every_segment_in_order(
    sizes: list[int], partitions: int | None, each: int
) -> None:
    refs = [SegmentRef(i, i + 1, f"{i}", 1, "n", "log", 0, size) for i, size in enumerate(sizes)]
    split = runs(refs, partition_bytes=each, partitions=partitions)
    assert [ref for run in split for ref in run] == refs
    assert all(split)
    if partitions is not None:
        assert len(split) <= partitions


def test_runs_are_balanced() -> None:
    refs = [SegmentRef(i, i + 1, f"{i}", 1, "n", "log", 0, 100) for i in range(40)]
    split = runs(refs, partition_bytes=1, partitions=4)
    assert [len(run) for run in split] == [10, 10, 10, 10]


def test_patterns() -> None:
    table = TableName("public", "orders")
    assert matches(table, ())
    assert matches(table, ("public.*",))
    assert not matches(table, ("app.*", "public.users"))
