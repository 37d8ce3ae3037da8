"""A row that can't be decoded is its table's trouble: the others flow, and a dump delivers it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Destination, kinds
from tests.support.build_log import BuiltLog

from tidelog.spark.datasource.segment_rows import batch_of

pytestmark = pytest.mark.spark

IN_CI = ("files", "postgres")
"""A lake has a test of its own: `test_delta`."""
BAD = "public.bad"


def bring(destination: Destination, built: BuiltLog, start: int) -> tuple[dict[str, str], set[str]]:
    """The tables that are left out of what is new since ``start``, and requested dumps."""
    output: Any = destination.open()
    asked: set[str] = set()
    try:
        output.prepare(built.log.generation)
        output.take_again(asked.update)
        output.write(batch_of(built.log, start, built.log.latest_offset()))
        return dict(output.left_out_tables()), asked
    finally:
        output.close()


@pytest.mark.parametrize(
    "destination",
    [k if k in IN_CI else pytest.param(k, marks=pytest.mark.thorough) for k in kinds()],
    indirect=True,
)
def test_a_table_with_a_row_that_can_not_be_decoded_is_left_out_alone(
    destination: Destination, built: BuiltLog
) -> None:
    bad = built.table(BAD, {"id": "int64", "n": "int32"})
    well = built.table("public.well", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(bad, "1", "secret-value")
    built.insert(well, "1", "a")
    built.flush()
    left_out, _ = bring(destination, built, built.log.head_offset)
    assert destination.rows("public.well") == [{"id": 1, "v": "a"}]
    assert left_out.keys() == {BAD}
    assert "column n, version" in left_out[BAD]
    assert "tidelog dump CONFIG --table public.bad" in left_out[BAD]
    assert "secret-value" not in left_out[BAD]
    # A start requests the dump, which has the row as it is now.
    middle = built.log.latest_offset()
    _, asked = bring(destination, built, middle)
    assert asked == {BAD}
    first = built.dump_started(BAD).first
    built.chunk(bad, [["1", "7"]])
    built.dump_completed(BAD, first)
    built.insert(well, "2", "b")
    built.flush()
    assert bring(destination, built, middle) == ({}, set())
    assert destination.rows(BAD) == [{"id": 1, "n": 7}]
    assert destination.rows("public.well") == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
