"""Only what has nothing undone before it counts."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.support.engines import Gates, orders_log

from tidelog.engine.options import EngineOptions
from tidelog.engine.running_task import CompletedEvents, TaskCommitter


def test_an_offset_stays_below_the_first_event_that_is_not_done() -> None:
    done = CompletedEvents()
    assert done.begin([10, 20, 30], 40) == 0
    done.mark_done(1, 3)
    assert done.offset is None
    done.mark_done(0, 1)
    assert done.offset == 40


def test_half_of_a_key_change_is_not_passed() -> None:
    done = CompletedEvents()
    done.begin([10, 20, 20, 30], 40)
    done.mark_done(0, 2)
    assert done.offset == 20  # is read again: the first half, too
    done.mark_done(2, 3)
    assert done.offset == 30


def test_a_batch_without_events_waits_for_those_before_it() -> None:
    done = CompletedEvents()
    done.begin([10], 15)
    done.begin([], 50)
    assert done.offset is None
    done.mark_done(0, 1)
    assert done.offset == 50
    assert done.open_batches == 0


@given(
    batches=st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=30),
)
def test_any_order_of_marks_gives_the_offset_of_the_first_undone(
    batches: list[list[bool]], steps: list[tuple[int, int]]
) -> None:
    """``batches``: of each event, has it the version of the one before it in its batch?"""
    done = CompletedEvents()
    versions: list[int] = []
    ends: dict[int, int] = {}  # the offset behind so many events, where a batch ends there
    following = 0
    for batch in batches:
        own: list[int] = []
        for same in batch:
            following += 0 if same and own else 10
            own.append(following)
        following += 5
        assert done.begin(own, following) == len(versions)
        versions += own
        ends[len(versions)] = following
    marked: set[int] = set()
    for start, length in [(0, 0), *steps]:
        start = min(start, len(versions))
        stop = min(start + length, len(versions))
        done.mark_done(start, stop)
        marked |= set(range(start, stop))
        low = next((n for n in range(len(versions)) if n not in marked), len(versions))
        expected = ends.get(low, versions[low] if 0 < low < len(versions) else None)
        assert done.offset == expected


def test_batches_may_be_marked_together(tmp_path: Path) -> None:
    orders_log(tmp_path, range(6))
    task = Gates(tmp_path, batch_size=2)
    task.start(threading.Event())
    committer = TaskCommitter(EngineOptions())
    polled = [task.poll(1.0) for _ in range(3)]
    for events in polled:
        committer.begin(events)
    first, second, third = polled
    committer.mark_processed([first, *second])
    committer.mark_batch_finished()
    assert committer.due() == second.end
    committer.mark_processed([second, third])
    assert committer.all_done
    assert committer.due() == third.end
