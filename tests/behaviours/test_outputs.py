"""What every `tidelog.ports.Output` does. A new output is done when it is listed and passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake, spark  # noqa: F401

from tidelog.errors import OutputError
from tidelog.model.schema import TableName
from tidelog.ports import Output, OutputBatch, TableRange
from tidelog.testing.build_log import BuiltLog

pytestmark = pytest.mark.spark

TABLE = TableName("public", "t")


@dataclass
class Destination:
    """Opens the output again and again over one destination, and reads what is there."""

    open: Callable[[], Output]
    rows: Callable[[], list[tuple[Any, ...]]]


def delta(session: Any, built: BuiltLog, path: Path) -> Destination:
    lake = Lake(session, built, path)
    return Destination(lake.output, lambda: lake.rows("public.t"))


DESTINATIONS = {"delta": delta}


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


@pytest.fixture(params=sorted(DESTINATIONS))
def destination(
    request: pytest.FixtureRequest,
    spark: Any,  # noqa: F811
    built: BuiltLog,
    tmp_path: Path,
) -> Destination:
    return DESTINATIONS[request.param](spark, built, tmp_path)


def batch(built: BuiltLog, start: int, end: int) -> OutputBatch:
    """Offsets ``[start, end)``, as the pipeline would cut them."""
    ids: set[int] = set()
    for segment in built.log.chain().between(start, end):
        ids |= {number for number in segment.rows_by_schema if number}
    ranges = (TableRange(TABLE, frozenset(ids), 1, 100),) if ids else ()
    return OutputBatch(built.log.generation, start, end, ranges)


def history(built: BuiltLog) -> list[int]:
    """Three segments with a history of three keys; the offsets where they end."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for key in ("1", "2", "3"):
        built.insert(table, key, "first")
    ends = [built.flush().next]
    built.update(table, "1", "second")
    built.delete(table, "2")
    ends.append(built.flush().next)
    built.update(table, "1", "third")
    built.insert(table, "2", "again")
    ends.append(built.flush().next)
    return ends


FINAL = [(1, "third"), (2, "again"), (3, "first")]


def write(destination: Destination, built: BuiltLog, *ranges: tuple[int, int]) -> None:
    output = destination.open()
    try:
        output.prepare(built.log.generation)
        for start, end in ranges:
            output.write(batch(built, start, end))
    finally:
        output.close()


def test_batches_in_order_give_the_source_s_table(
    destination: Destination, built: BuiltLog
) -> None:
    """Invariant 3, complete."""
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[0]), (ends[0], ends[1]), (ends[1], ends[2]))
    assert destination.rows() == FINAL


def test_the_same_batch_again_changes_nothing(destination: Destination, built: BuiltLog) -> None:
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[2]))
    write(destination, built, (head, ends[2]))
    assert destination.rows() == FINAL


def test_an_older_batch_never_brings_older_state_back(
    destination: Destination, built: BuiltLog
) -> None:
    """Invariant 2, no time travel."""
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[2]))
    write(destination, built, (head, ends[0]), (ends[0], ends[1]))
    assert destination.rows() == FINAL


def test_a_batch_that_overlaps_brings_only_the_rest(
    destination: Destination, built: BuiltLog
) -> None:
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[1]))
    write(destination, built, (ends[0], ends[2]))
    assert destination.rows() == FINAL


def test_what_is_committed_is_read_from_the_destination(
    destination: Destination, built: BuiltLog
) -> None:
    head, ends = built.log.head_offset, history(built)
    output = destination.open()
    assert output.committed(TABLE) is None
    output.close()
    write(destination, built, (head, ends[1]))
    output = destination.open()
    assert output.committed(TABLE) == ends[1]
    output.close()


def test_another_generation_is_refused(destination: Destination, built: BuiltLog) -> None:
    history(built)
    output = destination.open()
    with pytest.raises(OutputError, match="generation"):
        output.prepare("another")
    output.close()
