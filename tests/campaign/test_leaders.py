"""Each rule that keeps two leaders apart is judged: notes that break one alone are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.campaign import leaders
from tests.campaign.witness import Note
from tests.support.oracle.history import HistoryError

from tidelog.eventlog.segments import SegmentMeta


@dataclass
class Segment:
    """What is asked of a `SegmentMeta`."""

    first: int
    epoch: int


def act(what: str, pid: int, epoch: int, at: float, **more: Any) -> Note:
    times = {"called": at, "begun": at, "ended": at}
    return Note(what, pid, epoch, **{**times, **more})


TRUE = [
    act("lease", 1, 1, 10.0, deadline=12.4),
    act("leads", 1, 1, 10.1, offset=1),
    act("append", 1, 1, 11.0, offset=1),
    act("put", 1, 1, 12.3, key="status"),
    # stopped between the look and the append, which came first
    act("append", 1, 1, 12.3, ended=30.0, offset=50),
    act("lease", 2, 2, 31.0, deadline=33.4),
    act("leads", 2, 2, 31.2, offset=61),
    act("append", 2, 2, 31.3, offset=61),
    act("get", 2, 2, 31.3, key="status"),
    act("put", 1, 1, 12.3, begun=40.0, ended=40.1, key="status", done=False),
    act("put", 2, 2, 33.0, key="dump-reread"),
    act("delete", 2, 2, 33.1, key="dump-reread"),
    act("put", 1, 1, 12.3, begun=40.0, ended=40.1, key="dump-reread"),  # nobody knows whose it was
]
LOG = [Segment(0, 1), Segment(1, 1), Segment(50, 1), Segment(60, 2), Segment(61, 2)]
BROKEN = {
    leaders.LATE_APPEND: ([act("append", 2, 2, 33.5, offset=70)], []),
    leaders.LATE_STATE_WRITE: ([act("put", 2, 2, 33.5, key="status", done=False)], []),
    leaders.EPOCH_NOT_RAISED: ([act("leads", 3, 2, 50.0, offset=80)], []),
    leaders.NOT_FENCED: ([], [Segment(62, 1)]),
    leaders.STATE_NOT_FENCED: ([act("put", 1, 1, 12.3, begun=40.0, ended=41.0, key="status")], []),
}


def judged(notes: list[Note], segments: list[Segment]) -> None:
    leaders.judge(notes, cast("list[SegmentMeta]", segments))


def test_leaders_that_keep_the_rules_are_let_pass() -> None:
    judged(TRUE, LOG)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_reported(rule: str) -> None:
    notes, segments = BROKEN[rule]
    with pytest.raises(HistoryError, match=rule):
        judged([*TRUE, *notes], [*LOG, *segments])


def test_a_lease_that_was_renewed_behind_its_end_does_not_reach_back() -> None:
    """Asked for before the end, answered long after it."""
    renewed = act("lease", 2, 2, 33.0, ended=60.0, deadline=35.4)
    late = act("append", 2, 2, 36.0, offset=70)
    again = act("lease", 2, 2, 61.0, deadline=63.4)
    with pytest.raises(HistoryError, match=leaders.LATE_APPEND):
        judged([*TRUE, renewed, late, again], LOG)
    judged([*TRUE, renewed, again, act("append", 2, 2, 62.0, offset=70)], LOG)
