"""What several campaigns noted comes together on one page."""

from __future__ import annotations

from typing import Any

import pytest
from tools.campaign_page import campaigns_of, mend, merged, page


def campaign(name: str, *, hours: float = 1.0, faults: int = 1, **more: Any) -> dict[str, Any]:
    run = {
        "seed": 1,
        "source": "PostgreSQL 16",
        "state": "log:",
        "transactions": 1_000,
        "records": 5_000,
        "faults": {"kill": faults},
        "lively_s": 2.0,
        "leaderless_s": [1.0],
    }
    return {
        "campaign": name,
        "hours": hours,
        "runs": [run],
        "violations": [],
        "empty": 0,
        "kinds": {"kill": "kill -9"},
        "lease_s": 3.0,
        "lag_s": 5.0,
        "lively_s": 60.0,
        **more,
    }


def test_hours_faults_transactions_and_violations_add_up() -> None:
    violated = {"seed": 7, "what": "a row is lost", "error": ""}
    kinds = {"kill": "kill -9", "fill the disk": "a full disk"}
    told = [campaign("a"), campaign("b", faults=2, violations=[violated], kinds=kinds)]
    notes = merged(campaigns_of(told))
    text = page(notes, [1.0, 1.0])
    for line in (
        "| campaigns | 2 |",
        "| hours, with the judging | 2.00 |",
        "| runs | 3 |",
        "| transactions captured in the runs that hold | 2,000 |",
        "| faults in the runs that hold | 3 |",
        "| violations | 1 |",
        "- seed 7: a row is lost",
    ):
        assert line in text.splitlines()
    assert "Of 2 kinds: " in text


def test_a_violation_whose_cause_is_fixed_stays_with_its_cause() -> None:
    violations = [{"seed": seed, "what": "it ended", "error": "its logs"} for seed in (7, 8)]
    campaigns = [campaign("a", violations=violations)]
    mend(campaigns, {8: "a lost connection was taken for a wrong one"})
    notes = merged(campaigns)
    for line in (
        "| runs | 3 |",
        "| violations | 1 |",
        "| violations whose cause is mended since | 1 |",
        "- seed 7: it ended",
    ):
        assert line in page(notes, []).splitlines()
    assert "seed 8" not in page(notes, [])
    assert notes["violations"][1]["mended"] == "a lost connection was taken for a wrong one"
    assert not any("error" in found for found in notes["violations"])


def test_a_campaign_that_is_given_again_counts_once_with_what_it_noted_last() -> None:
    beside = {"campaigns": [campaign("a"), campaign("b")]}
    campaigns = campaigns_of([beside, campaign("b", hours=3.0)])
    assert [(one["campaign"], one["hours"]) for one in campaigns] == [("a", 1.0), ("b", 3.0)]


def test_campaigns_that_ask_for_other_things_are_not_added() -> None:
    with pytest.raises(ValueError, match="lease_s differs"):
        merged(campaigns_of([campaign("a"), campaign("b", lease_s=10.0)]))
