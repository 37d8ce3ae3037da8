"""What an open page receives, without a server: all at first, then what changed."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from tidelog.app.overview.build import overview
from tidelog.app.web.routes import BEAT_EVERY_S, TABLES_EVERY_S, OverviewStream
from tidelog.app.web.site import PollResult

NOW_MS = 1_700_000_000_000


def found(*tables: str, at_ms: int = NOW_MS, refused: int = 0) -> PollResult:
    status: dict[str, Any] = {
        "leader": "h:1", "updated_ms": at_ms, "captured": list(tables), "capture": {"records": 1},
        "refused": [{"table": f"r.{n}", "reason": "no key", "since_ms": 0} for n in range(refused)],
    }  # fmt: skip
    shown = overview(status, at_ms).to_dict()
    return PollResult(shown, {row["table"]: row for row in shown.pop("tables")})


class Looked:
    """A site that says what the test wants said."""

    def __init__(self) -> None:
        self.next: PollResult | None = found()

    def latest(self) -> PollResult | None:
        return self.next


class Heard:
    """A page, and its site."""

    def __init__(self) -> None:
        self.site = Looked()
        self.teller = OverviewStream([self.site], 0, anyio.CapacityLimiter(1))  # type: ignore[list-item]

    def at(self, now: float, *, says: PollResult | None) -> dict[str, Any]:
        self.site.next = says
        events = {}
        for event in (*self.teller._beat(now), *self.teller._changes(now)):
            name, _, data = event.decode().partition("\n")
            events[name.removeprefix("event: ")] = json.loads(data.partition("data: ")[2])
        return events


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_all_tables_at_first_then_what_changed(heard: Heard) -> None:
    assert heard.at(99.0, says=None) == {"beat": {}}  # nothing is known yet
    first = heard.at(100.0, says=found("a.b", "a.c"))
    assert "tables" not in first["overview"]["overview"]
    assert [row["table"] for row in first["tables"]["changed"]] == ["a.b", "a.c"]
    assert "tables" not in heard.at(101.0, says=found("a.c", "a.d"))  # not every second
    later = heard.at(100.0 + TABLES_EVERY_S, says=found("a.c", "a.d"))["tables"]
    assert ([row["table"] for row in later["changed"]], later["gone"]) == (["a.d"], ["a.b"])


def test_problems_are_sent_again_only_if_they_changed(heard: Heard) -> None:
    (problem,) = heard.at(1.0, says=found(refused=3))["overview"]["overview"]["problems"]
    assert "2 more tables" in problem["sentence"]
    again = heard.at(2.0, says=found(at_ms=NOW_MS + 1000, refused=3))["overview"]["overview"]
    assert "problems" not in again
    assert again["at_ms"] == NOW_MS + 1000
    fewer = heard.at(3.0, says=found(at_ms=NOW_MS + 2000))["overview"]["overview"]
    assert fewer["problems"] == []


def test_a_page_hears_that_nothing_changed(heard: Heard) -> None:
    same = found()
    heard.at(10.0, says=same)
    assert heard.at(11.0, says=same) == {}
    assert heard.at(10.0 + BEAT_EVERY_S, says=same) == {"beat": {}}
    assert heard.at(11.0 + BEAT_EVERY_S, says=found()) == {}  # another look, the same news


def test_a_state_store_that_is_away_is_reported_and_so_is_its_return(heard: Heard) -> None:
    assert "overview" in heard.at(1.0, says=found(refused=1))["overview"]
    told = heard.at(2.0, says=PollResult(None, trouble="the state store does not answer"))[
        "overview"
    ]
    assert told == {"site": 0, "trouble": "the state store does not answer"}
    back = heard.at(3.0, says=found(refused=1))["overview"]["overview"]
    assert len(back["problems"]) == 1  # the page has lost them
