"""When scheduled dumps are asked for: once for each time, and once for what was missed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tidelog.app.base import channels as schedule
from tidelog.app.base.channels import DumpSchedule
from tidelog.config.models import ScheduledDumpSection
from tidelog.control.commands import Command, StartDump
from tidelog.control.mailbox import Mailbox
from tidelog.state.sqlite import SqliteState

BERLIN = {"time_zone": "Europe/Berlin"}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Capture:
    """The schedule of one leading capture after the other, at times that the test sets."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedule, "CHECK_EVERY_S", 0)
        self.state = SqliteState(f"sqlite:///{path}")
        self.mailbox = Mailbox(self.state)
        self.dumps: list[Any] = []
        self.now = at("2026-11-23T02:59:00")
        self.lead()

    def lead(self, **options: Any) -> None:
        self.schedule = DumpSchedule(
            [ScheduledDumpSection(name="nightly", cron="0 3 * * *", **options)],
            state=self.state,
            mailbox=self.mailbox,
            dumps=lambda: self.dumps,
            clock=lambda: self.now,
        )

    def asked(self, time: str) -> list[str]:
        """What is asked for at that time."""
        self.now = at(time)
        self.schedule.act()
        found: list[str] = []

        def handle(_id: str, command: Command) -> dict[str, Any]:
            assert isinstance(command, StartDump)
            found.append(command.dump_id)
            return {}

        self.mailbox.handle_pending(handle)
        return found


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    found = Capture(tmp_path / "state.db", monkeypatch)
    assert found.asked("2026-11-23T02:59:00") == []
    return found


def test_each_time_once(capture: Capture) -> None:
    assert capture.asked("2026-11-23T02:59:59") == []
    assert capture.asked("2026-11-23T03:00:00") == ["nightly-20261123T0300Z"]
    assert capture.asked("2026-11-23T03:00:05") == []
    assert capture.asked("2026-11-24T03:00:01") == ["nightly-20261124T0300Z"]


def test_what_was_missed_is_made_up_for_once(capture: Capture) -> None:
    capture.asked("2026-11-23T03:00:00")
    capture.lead()
    assert capture.asked("2026-11-27T12:00:00") == ["nightly-20261127T0300Z"]
    assert capture.asked("2026-11-27T12:00:05") == []


def test_the_next_leader_does_not_ask_again(capture: Capture) -> None:
    capture.asked("2026-11-23T03:00:00")
    capture.lead()
    assert capture.asked("2026-11-23T03:00:10") == []


def test_a_leader_that_ended_before_it_noted_it_asked_once(capture: Capture) -> None:
    before = capture.state.get("schedule/nightly")
    assert before is not None
    assert capture.asked("2026-11-23T03:00:00") == ["nightly-20261123T0300Z"]
    capture.state.put("schedule/nightly", before.value, None)
    capture.lead()
    assert capture.asked("2026-11-23T03:00:10") == []


def test_one_that_was_altered_asks_for_no_time_before(capture: Capture) -> None:
    capture.asked("2026-11-23T03:00:00")
    capture.lead(time_zone="America/New_York")
    assert capture.asked("2026-11-23T12:00:00") == []
    assert capture.asked("2026-11-24T07:59:00") == []
    assert capture.asked("2026-11-24T08:00:00") == ["nightly-20261124T0800Z"]


def test_what_was_refused_is_said(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    capture.now = at("2026-11-23T03:00:00")
    capture.schedule.act()

    def refuse(_id: str, _command: Command) -> dict[str, Any]:
        return {"rejected": [{"table": "public.ordrs", "reason": "no captured table matches"}]}

    capture.mailbox.handle_pending(refuse)
    capture.schedule.act()
    said = "nightly-20261123T0300Z: not dumped: public.ordrs: no captured table matches"
    assert said in caplog.text


def test_a_new_schedule_does_not_ask_for_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Capture(tmp_path / "state.db", monkeypatch)
    assert fresh.asked("2026-11-23T12:00:00") == []
    assert fresh.asked("2026-11-24T03:00:00") == ["nightly-20261124T0300Z"]


def test_a_time_is_left_out_while_the_last_dump_runs(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    capture.dumps = [SimpleNamespace(dump_id="nightly-20261122T0300Z", finished=False)]
    assert capture.asked("2026-11-23T03:00:00") == []
    assert "nightly-20261122T0300Z is not done yet" in caplog.text
    capture.dumps[0].finished = True
    assert capture.asked("2026-11-23T03:05:00") == []
    assert capture.asked("2026-11-24T03:00:00") == ["nightly-20261124T0300Z"]


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-03-29T00:59:59", "2026-03-28T01:30:00"),
        ("2026-03-29T01:00:00", "2026-03-29T01:00:00"),  # 2:30 is not on that day
        ("2026-10-25T00:30:00", "2026-10-25T00:30:00"),  # the first of two
        ("2026-10-25T05:00:00", "2026-10-25T00:30:00"),  # and not the second
        ("2026-11-23T01:30:00", "2026-11-23T01:30:00"),
    ],
)
def test_times_are_of_their_zone(now: str, due: str) -> None:
    nightly = ScheduledDumpSection(name="nightly", cron="30 2 * * *", **BERLIN)
    assert nightly.last_due(at(now)) == at(due)


def test_the_second_half_past_two_of_a_night_asks_for_nothing(capture: Capture) -> None:
    capture.asked("2026-10-24T12:00:00")
    capture.schedule = DumpSchedule(
        [ScheduledDumpSection(name="other", cron="30 2 * * *", **BERLIN)],
        state=capture.state,
        mailbox=capture.mailbox,
        dumps=list,
        clock=lambda: capture.now,
    )
    assert capture.asked("2026-10-24T20:00:00") == []
    assert capture.asked("2026-10-25T00:30:00") == ["other-20261025T0030Z"]
    for minute in range(31, 180):
        assert capture.asked(f"2026-10-25T{minute // 60:02}:{minute % 60:02}:00") == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cron": "0 3 * *"}, "wrong number of fields"),
        ({"cron": "0 0 3 * * *"}, "wrong number of fields"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 0 31 2 *"}, "bad day-of-month"),
        ({"time_zone": "Mars/Olympus"}, "no such time zone"),
        ({"time_zone": "../etc/passwd"}, "no such time zone"),
        ({"where": "id > 1"}, "where need exactly one table"),
        ({"tables": ["a b c"]}, "expected"),
        ({"name": "auto"}, "used by capture itself"),
    ],
)
def test_what_can_t_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ScheduledDumpSection(**{"name": "x", "cron": "* * * * *", **given})
