from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.build_log import BuiltLog

from tidelog.eventlog.reader import SegmentRef
from tidelog.spark.datasource.partitions import (
    RECORD_BYTES,
    end_of_batch,
    end_of_version,
    new_schema_at,
    partition_refs,
    schema_at,
    schema_now,
    schemas_now,
    schemas_of,
)


def admitted(built: BuiltLog, **limits: Any) -> list[int]:
    """The records of one table or all in each micro-batch of the log."""
    log, tables = built.log, limits.pop("tables", ())
    limits = {"max_bytes": None, "max_records": None, **limits}
    schemas = schemas_of(log, tables)
    start, end, found = log.head_offset, log.latest_offset(), []
    while start < end:
        until = end_of_batch(log, start, end, tables=tables, **limits)
        assert start < until <= end
        batches = [
            batch
            for ref in log.segments(start, until)
            for batch in log.batches(ref, ("offset", "schema_id"))
        ]
        ids = [number for batch in batches for number in batch.column("schema_id").to_pylist()]
        found.append(sum(schemas is None or number in schemas for number in ids))
        start = until
    return found


@pytest.fixture
def two_tables(tmp_path: Path) -> BuiltLog:
    """Segments of 10 records of t, 10 of u, and 5 of each by turns; a record takes 24 bytes."""
    built = BuiltLog(tmp_path)
    t = built.table("public.t", {"id": "int64", "v": "text"})
    u = built.table("public.u", {"id": "int64", "v": "text"}, relation_id=2)
    for tables in ([t] * 10, [u] * 10, [t, u] * 5):
        for table in tables:
            built.insert(table, "1", "xxxx")
        built.flush()
    return built


def test_a_batch_takes_no_more_records_than_its_limit(two_tables: BuiltLog) -> None:
    assert admitted(two_tables, max_records=4) == [4, 4, 4, 4, 4, 4, 4, 2]
    assert admitted(two_tables, max_records=12) == [12, 12, 6]
    assert admitted(two_tables, max_records=1) == [1] * 30
    assert admitted(two_tables) == [30]


def test_a_batch_of_one_table_is_one_part_of_a_task(two_tables: BuiltLog) -> None:
    """A lake folds more than that by a shuffle, which costs ten times the CPU."""
    limit = 2 * 10 * (24 + RECORD_BYTES)
    log = two_tables.log
    end = end_of_batch(
        log, 0, log.latest_offset(), max_bytes=limit, max_records=None, whole=True,
        record_bytes=RECORD_BYTES,
    )  # fmt: skip
    refs = list(log.segments(0, end))
    assert len(refs) == 2
    assert len(partition_refs(refs, partition_bytes=limit, partitions=None)) == 1
    assert admitted(two_tables, max_bytes=limit, whole=True, record_bytes=RECORD_BYTES) == [20, 10]
    assert admitted(two_tables, max_bytes=limit, whole=True) == [30]


def test_a_batch_takes_no_more_bytes_than_its_limit(two_tables: BuiltLog) -> None:
    size = two_tables.log.chain().segments[1].payload_bytes // 10
    assert admitted(two_tables, max_bytes=4 * size + 1) == [4, 4, 4, 4, 4, 4, 4, 2]
    assert admitted(two_tables, max_bytes=15 * size) == [15, 15]
    assert admitted(two_tables, max_bytes=15 * size, max_records=14) == [14, 14, 2]


def test_a_record_beyond_the_limit_is_taken_alone(two_tables: BuiltLog) -> None:
    assert admitted(two_tables, max_bytes=1) == [1] * 30


def test_records_of_other_tables_do_not_count(two_tables: BuiltLog) -> None:
    assert admitted(two_tables, max_records=6, tables=("public.t",)) == [6, 6, 3]
    assert admitted(two_tables, max_records=6, tables=("public.u",)) == [6, 6, 3]
    assert admitted(two_tables, max_records=15, tables=("public.u",)) == [15]


def test_whole_segments_are_taken_where_that_is_asked_for(two_tables: BuiltLog) -> None:
    assert admitted(two_tables, max_records=6, whole=True) == [10, 10, 10]
    assert admitted(two_tables, max_records=25, whole=True) == [20, 10]


@given(
    sizes=st.lists(st.integers(0, 1000), max_size=60),
    partitions=st.integers(1, 9) | st.none(),
    each=st.integers(1, 2000),
)
def test_runs_keep_every_segment_in_order(
    sizes: list[int], partitions: int | None, each: int
) -> None:
    refs = [SegmentRef(i, i + 1, f"{i}", 1, "n", "log", 0, size) for i, size in enumerate(sizes)]
    split = partition_refs(refs, partition_bytes=each, partitions=partitions)
    assert [ref for run in split for ref in run] == refs
    assert all(split)
    if partitions is not None:
        assert len(split) <= partitions


def test_runs_are_balanced() -> None:
    refs = [SegmentRef(i, i + 1, f"{i}", 1, "n", "log", 0, 100) for i in range(40)]
    split = partition_refs(refs, partition_bytes=1, partitions=4)
    assert [len(run) for run in split] == [10, 10, 10, 10]


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


def test_a_version_ends_behind_its_last_record_and_any_other_is_new_there(tmp_path: Path) -> None:
    """Versions 1, 2, 1 and 2 again, the last two in one segment, whose first record is that of
    another table.
    """
    built = BuiltLog(tmp_path)
    wide = built.table("public.t", {"id": "int64", "v": "text"})
    short = built.table("public.t", {"id": "int64"})
    other = built.table("public.u", {"id": "int64"}, relation_id=2)
    built.insert(wide, "1", "a")
    built.flush()
    built.insert(short, "2")
    built.flush()
    built.insert(other, "3")
    built.insert(wide, "4", "b")
    built.insert(short, "5")
    built.flush()
    log = built.log
    end = log.latest_offset()
    rows = [b for ref in log.segments(0) for b in log.batches(ref, ("offset", "schema_id"))]
    _, second, _, fourth, fifth = [
        offset
        for each in rows
        for offset, number in zip(*each.to_pydict().values(), strict=True)
        if number
    ]
    known = end_of_version(log, wide)
    assert known == fourth + 1
    assert new_schema_at(log, wide, 0, end) == (second, short)
    assert new_schema_at(log, wide, known, end) == (fifth, short)
    assert new_schema_at(log, short, second, end) == (fourth, wide)
    assert new_schema_at(log, short, end_of_version(log, short), end) is None
    assert new_schema_at(log, other, 0, end) is None
    never = built.table("public.t", {"id": "int64", "w": "text"})
    assert end_of_version(log, never) == end
