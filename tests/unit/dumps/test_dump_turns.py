"""Which of several dumps is read next."""

from __future__ import annotations

from collections import Counter

from tidelog.capture.dumps.coordinator import DumpTurns
from tidelog.capture.dumps.state import DumpState


def dump(number: int, priority: int = 0) -> DumpState:
    return DumpState(f"d{number}", number, [], priority=priority)


def given(dumps: list[DumpState], chunks: int) -> list[str]:
    turns, found = DumpTurns(), []
    for _ in range(chunks):
        first = turns.order(dumps)[0]
        turns.took_turn(first)
        found.append(first.dump_id)
    return found


def test_dumps_that_are_as_urgent_take_turns() -> None:
    assert given([dump(1), dump(2), dump(3)], 7) == ["d1", "d2", "d3", "d1", "d2", "d3", "d1"]


def test_an_urgent_dump_gets_three_chunks_of_four_and_no_other_stands_still() -> None:
    counts = Counter(given([dump(1), dump(2, 10), dump(3), dump(4, -5)], 1200))
    assert counts["d2"] == 900
    assert {counts["d1"], counts["d3"], counts["d4"]} == {100}


def test_several_urgent_dumps_share_what_they_get() -> None:
    counts = Counter(given([dump(1, 1), dump(2), dump(3, 1)], 800))
    assert counts == {"d1": 300, "d2": 200, "d3": 300}


def test_where_one_has_no_chunk_the_next_one_does() -> None:
    turns = DumpTurns()
    dumps = [dump(1), dump(2, 10), dump(3)]
    assert [each.dump_id for each in turns.order(dumps)] == ["d2", "d1", "d3"]
    assert [each.dump_id for each in turns.order(dumps[:1])] == ["d1"]
    assert turns.order([]) == []
