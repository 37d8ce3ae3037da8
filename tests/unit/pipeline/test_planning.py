from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.eventlog.reader import SegmentRef
from tidelog.model.schema import TableName
from tidelog.pipeline.planning import admit, matches, runs, schema_at, schema_now, schemas_now
from tidelog.testing.build_log import BuiltLog


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


def test_the_schema_at_a_place_is_that_of_the_last_record_before_it(tmp_path: Path) -> None:
    """A shape that comes back has its old number: the greatest one is not the newest."""
    built = BuiltLog(tmp_path)
    old = built.table("public.t", {"id": "int64", "a": "text"})
    other = built.table("public.u", {"id": "int64"}, relation_id=2)
    built.insert(old, "1", "x")
    first = built.flush()
    new = built.table("public.t", {"id": "int64", "b": "text"})
    built.insert(new, "2", "x")
    built.insert(old, "3", "x")
    built.insert(other, "1")
    second = built.flush()
    assert old.schema_id < new.schema_id

    def found(start: int, end: int) -> int | None:
        schema = schema_at(built.log, old.table, start, end)
        return None if schema is None else schema.schema_id

    assert found(0, first.next) == old.schema_id
    assert found(0, second.first + 1) == new.schema_id
    assert found(0, second.next) == old.schema_id
    assert found(second.first, second.first + 1) == new.schema_id
    assert found(second.next - 1, second.next) is None  # within the other table's record
    assert schema_now(built.log, old.table) == old
    assert schemas_now(built.log) == {old.table: old, other.table: other}


def test_the_schema_now_of_a_table_without_records_is_that_numbered_last(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    built.table("public.t", {"id": "int64", "a": "text"})
    new = built.table("public.t", {"id": "int64", "b": "text"})
    assert schema_now(built.log, new.table) == new
    assert schemas_now(built.log) == {new.table: new}
