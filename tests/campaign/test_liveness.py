"""What comes late is distinguished from what does not come, by the machine's time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.campaign.campaign_run import LAG_S, LIVELY_S, CampaignRun
from tests.support.oracle.history import HistoryError


def run_of(seconds_a_look: float, records_a_look: int, looks: int) -> tuple[CampaignRun, Any]:
    """A run whose last write is captured after so many looks, and its collector."""
    run = cast(Any, CampaignRun.__new__(CampaignRun))
    collector = SimpleNamespace(records=[], xids=set(), failure=None)
    run.looks, run.seconds, run.rng = 0, 0.0, random.Random(1)
    run._stacks = lambda: ""
    run._note = run._watch_processes = lambda *_: None

    def passed() -> float:
        return float(run.seconds)

    def reached(_mark: int, _xids: set[int]) -> bool:
        run.looks += 1
        run.seconds += seconds_a_look
        collector.records += records_a_look * [None]
        return bool(run.looks % looks == 0)

    run._machine = passed
    run.source = SimpleNamespace(last_write=lambda rng: 1, reached=reached)
    return run, collector


@pytest.mark.parametrize(("records", "how"), [(0, "it is stuck"), (3, "it is late")])
def test_what_does_not_come_is_stuck_and_what_comes_too_slowly_is_late(
    records: int, how: str
) -> None:
    run, collector = run_of(LAG_S, records, 1000)
    with pytest.raises(HistoryError, match=how):
        run._await_liveness(collector)
    assert run._machine() <= LIVELY_S + 3 * LAG_S


def test_what_comes_while_the_machine_has_no_time_is_not_late() -> None:
    run, collector = run_of(0.1, 1, 10)
    assert run._await_liveness(collector) > 0
