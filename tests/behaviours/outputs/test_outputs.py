"""Replays: a batch again, older, cut differently, after a failure; and another log."""

from __future__ import annotations

import pytest
from tests.behaviours.outputs.destinations import Destination, write
from tests.support.build_log import BuiltLog

from tidelog.errors import OutputError
from tidelog.model.schema import TableName
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

TABLE = TableName("public", "t")


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


FINAL = [{"id": 1, "v": "third"}, {"id": 2, "v": "again"}, {"id": 3, "v": "first"}]


def test_batches_in_order_give_the_source_s_table(
    destination: Destination, built: BuiltLog
) -> None:
    """Invariant 3, complete."""
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[0]), (ends[0], ends[1]), (ends[1], ends[2]))
    assert destination.rows("public.t") == FINAL


def test_the_same_batch_again_changes_nothing(destination: Destination, built: BuiltLog) -> None:
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[2]))
    write(destination, built, (head, ends[2]))
    assert destination.rows("public.t") == FINAL


def test_an_older_batch_never_brings_older_state_back(
    destination: Destination, built: BuiltLog
) -> None:
    """Invariant 2, no time travel."""
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[2]))
    write(destination, built, (head, ends[0]), (ends[0], ends[1]))
    assert destination.rows("public.t") == FINAL


def test_a_batch_that_overlaps_brings_only_the_rest(
    destination: Destination, built: BuiltLog
) -> None:
    head, ends = built.log.head_offset, history(built)
    write(destination, built, (head, ends[1]))
    write(destination, built, (ends[0], ends[2]))
    assert destination.rows("public.t") == FINAL


def test_what_is_committed_is_known_to_a_new_process(
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


@pytest.mark.parametrize("place", ["written", "commit", "committed"])
def test_executors_killed_in_the_middle_lose_and_double_nothing(
    destination: Destination, built: BuiltLog, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Invariant 8, crash anywhere (the pipeline's part). The batch comes again, cut shorter."""
    if "no-delivery" in destination.traits:
        pytest.skip("its tasks have no failpoints")
    head, ends = built.log.head_offset, history(built)
    output = destination.open()
    output.prepare(built.log.generation)
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, f"output.task.{place}:kill")
    with pytest.raises(OutputError):
        output.write(batch_of(built.log, head, ends[2]))
    assert output.committed(TABLE) is None
    monkeypatch.delenv(failpoints.ENVIRONMENT_VARIABLE)
    # Shorter than what was begun: the older states in it must not follow the newer ones.
    output.write(batch_of(built.log, head, ends[0]))
    assert destination.rows("public.t") == FINAL
    assert output.committed(TABLE) == ends[2]
    output.close()
