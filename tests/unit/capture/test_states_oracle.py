"""What the history oracle takes for a true table of history, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.oracle.history import HistoryError
from tests.support.oracle.states import State, check_states, check_times, states_of, unknown_states
from tests.support.oracle.values import UNCHANGED, Change, Row, Transaction

TABLE = "app.t"


def row(key: str, text: str) -> Row:
    return {"id": key, "text": text}


def change(op: str, offset: int, *, new: Row | None = None, old: Row | None = None) -> Change:
    time_us = 1000 * offset
    return Change(op, TABLE, b"", 0, 0, time_us, new, old, ("id",), offset)


def completed(offset: int, first: int) -> Change:
    end = {"type": "dump-completed", "table": TABLE, "first_offset": first, "delete_absent": True}
    payload = json.dumps(end).encode()
    return Change("c", "", payload, commit_us=1000 * offset, offset=offset)


RECORDS = [
    change("r", 1, new=row("1", "a")),
    change("r", 2, new=row("2", "a")),
    completed(3, 1),
    change("U", 4, new=row("1", "b")),
    change("U", 5, new=row("1", UNCHANGED)),
    change("U", 6, new=row("3", UNCHANGED), old=row("1", "b")),
    change("D", 7, old={"id": "2"}),
    change("I", 8, new=row("2", "c")),
    change("r", 9, new=row("3", "b")),
    completed(10, 9),
]
STATES = [
    State(("1",), row("1", "a"), 1, 1000, 4, 4000),
    State(("2",), row("2", "a"), 2, 2000, 7, 7000),
    State(("1",), row("1", "b"), 4, 4000, 6, 6000),
    State(("3",), row("3", "b"), 6, 6000),
    State(("2",), row("2", "c"), 8, 8000, 10, 10000),
]
TRUTH = [
    Transaction(0, 0, 0, [replace(each, op="I", commit_us=0) for each in RECORDS[:2]]),
    *(Transaction(0, at, each.commit_us, [each]) for at, each in enumerate(RECORDS[3:8])),
]


def test_the_states_of_the_log_are_those_of_the_source() -> None:
    assert states_of(RECORDS, TABLE) == STATES
    assert states_of(RECORDS, "app.other") == []
    check_states(STATES[::-1], STATES)
    assert check_times(STATES, TABLE, TRUTH, 3000) == 5


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda states: states[1:], "has 4 states of 5"),
        (lambda states: [*states, states[0]], "overlap"),
        (lambda states: [replace(states[0], until=5), *states[1:]], "overlap"),
        (lambda states: [replace(states[0], until=None), *states[1:]], "overlap"),
        (lambda states: [replace(states[0], until_us=4001), *states[1:]], "where the event log"),
        (lambda states: [*states[:3], replace(states[3], row=row("3", "c")), states[4]], "where"),
    ],
)
def test_a_wrong_history_is_noticed(
    broken: Callable[[list[State]], list[State]], told: str
) -> None:
    with pytest.raises(HistoryError, match=told):
        check_states(broken(STATES), STATES)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda states: states[:3], "is not the source's in 1 keys"),
        (lambda states: [replace(states[1], until_us=None), *states[2:]], "is not the source's"),
        (lambda states: [*states, states[3]], "two states"),
        (lambda states: [*states[:2], replace(states[2], since_us=4001), *states[3:]], "not the"),
    ],
)
def test_a_history_that_is_wrong_at_a_time_is_noticed(
    broken: Callable[[list[State]], list[State]], told: str
) -> None:
    with pytest.raises(HistoryError, match=told):
        check_times(broken(STATES), TABLE, TRUTH, 4000)


def test_rows_that_went_without_changes_are_not_compared() -> None:
    without = [state for state in STATES if state.key != ("2",)]
    with pytest.raises(HistoryError):
        check_times(without, TABLE, TRUTH, 4000)
    check_times(without, TABLE, TRUTH, 4000, {"2"})


def test_a_row_that_the_log_does_not_show_whole_is_compared_once_it_is_known() -> None:
    inserted = [
        change("I", 11, new=row("4", UNCHANGED)),
        change("I", 12, new=row("5", "e")),
        change("r", 13, new=row("4", "d")),
        change("I", 14, new=row("6", "f")),
    ]
    records = [*RECORDS, *inserted]
    truth = [
        *TRUTH,
        *(
            Transaction(0, at, each.commit_us, [replace(each, new=new)])
            for at, (each, new) in enumerate(
                [
                    (inserted[0], row("4", "d")),
                    (inserted[1], row("5", "e")),
                    (inserted[3], row("6", "f")),
                ],
                100,
            )
        ),
    ]
    known = states_of(records, TABLE)
    unknown = unknown_states(records, TABLE, known)
    assert unknown == [State(("4",), {}, 11, 11000, 13, 13000)]
    gone = {"2"}  # by the dump of which the truth has nothing
    with pytest.raises(HistoryError, match="'4'"):
        check_times(known, TABLE, truth, 4000, gone)
    check_times(known, TABLE, truth, 4000, gone, unknown)
    late = [each for each in known if each.key != ("4",)]
    with pytest.raises(HistoryError, match="'4'"):
        check_times(late, TABLE, truth, 4000, gone, unknown)
