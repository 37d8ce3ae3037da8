"""When the source's log is in danger, and what capture does about it by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.capture.dump_gate import DumpBlockCause, DumpGate
from tidelog.capture.log_guard import (
    EASED,
    STOP_AFTER_S,
    DangerKind,
    LogGuard,
    RetainedLog,
    WhenLogInDanger,
    danger_of,
)
from tidelog.errors import LogInDangerError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("kept", "kind"),
    [
        (RetainedLog(), None),
        (RetainedLog(retained_bytes=GIB, spare_bytes=GIB), None),
        (RetainedLog(retained_bytes=8 * GIB, spare_bytes=2 * GIB), DangerKind.ROOM_SMALL),
        (RetainedLog(retained_bytes=8 * GIB, spare_bytes=0), DangerKind.NEARLY_LOST),
        (RetainedLog(retained_bytes=9 * GIB), None),
        (RetainedLog(retained_bytes=10 * GIB), DangerKind.FILLS_DISK),
        (RetainedLog(retained_bytes=10 * GIB, spare_bytes=90 * GIB), None),
        (RetainedLog(retained_bytes=10 * GIB, much_bytes=50 * GIB), None),
        (
            RetainedLog(retained_bytes=2 * GIB, spare_bytes=90 * GIB, much_bytes=GIB),
            DangerKind.FILLS_DISK,
        ),
        (
            RetainedLog(retained_bytes=GIB, spare_bytes=GIB, lost_in_s=3500.0),
            DangerKind.NEARLY_LOST,
        ),
        (RetainedLog(kept_s=7 * 86_400.0, lost_in_s=3500.0), DangerKind.NEARLY_LOST),
        (RetainedLog(kept_s=1800.0, lost_in_s=1799.0), None),
        (RetainedLog(kept_s=1800.0, lost_in_s=800.0), DangerKind.NEARLY_LOST),
    ],
)
def test_what_is_a_danger(kept: RetainedLog, kind: DangerKind | None) -> None:
    found = danger_of(kept)
    assert (None if found is None else found.kind) == kind
    # What is over must not begin again at once.
    if kind is not None:
        assert danger_of(kept, eased=EASED) is not None


def test_a_danger_is_over_only_well_below_where_it_began() -> None:
    at = RetainedLog(retained_bytes=7 * GIB, spare_bytes=3 * GIB)
    assert danger_of(at) is None
    assert danger_of(at, eased=EASED) is not None
    assert danger_of(RetainedLog(retained_bytes=5 * GIB, spare_bytes=5 * GIB), eased=EASED) is None


def test_how_much_of_what_may_be_kept_is_kept() -> None:
    assert RetainedLog(retained_bytes=GIB, spare_bytes=3 * GIB).share == 0.25
    assert RetainedLog(retained_bytes=GIB, spare_bytes=-GIB).share == 1.0
    assert RetainedLog(retained_bytes=5 * GIB).share == 0.5
    assert RetainedLog(retained_bytes=GIB, spare_bytes=99 * GIB, much_bytes=2 * GIB).share == 0.5
    assert RetainedLog(kept_s=1000.0, lag_s=250.0).share == 0.25
    assert RetainedLog().share == 0.0


class Looking:
    """A guard over a source that says what it is told to."""

    def __init__(self, wanted: WhenLogInDanger) -> None:
        self.gate = DumpGate()
        self.now = 0.0
        self.guard = LogGuard(wanted, 100, self.gate, lambda: self.now)

    def check(self, retained: int, after_s: float = 1.0) -> None:
        self.now += after_s
        source: dict[str, Any] = {"retained_bytes": retained, "spare_bytes": None}
        self.guard.check(source)


def test_dumps_are_held_while_there_is_a_danger() -> None:
    looking = Looking(WhenLogInDanger.PAUSE_DUMPS)
    looking.check(99)
    assert not looking.gate.blocks_dumps
    looking.check(100)
    assert looking.gate.blocks_dumps
    assert not looking.gate.blocks_all
    (hold,) = looking.gate.summary()
    assert (hold["why"], "log_danger_bytes" in hold["reason"]) == (
        DumpBlockCause.LOG_IN_DANGER,
        True,
    )
    looking.check(80, after_s=10 * STOP_AFTER_S)
    (later,) = looking.gate.summary()
    assert later["since_ms"] == hold["since_ms"]
    looking.check(74)
    assert not looking.gate.blocks_dumps
    assert looking.guard.summary()["danger"] is None


def test_a_warning_holds_nothing() -> None:
    looking = Looking(WhenLogInDanger.WARN)
    looking.check(1000)
    looking.check(1000, after_s=10 * STOP_AFTER_S)
    assert not looking.gate.blocks_dumps
    assert looking.guard.summary()["danger"] is not None


@pytest.mark.parametrize("wanted", [WhenLogInDanger.STOP, WhenLogInDanger.DROP_SLOT])
def test_capture_stops_only_for_a_danger_that_does_not_get_less(wanted: WhenLogInDanger) -> None:
    looking = Looking(wanted)
    kept = 100_000
    while kept > 50_000:  # it was away, and catches up, slowly
        looking.check(kept, after_s=0.9 * STOP_AFTER_S)
        assert looking.gate.blocks_dumps
        kept = int(kept * 0.98)
    looking.check(kept, after_s=1.0)
    looking.check(kept, after_s=0.9 * STOP_AFTER_S)
    with pytest.raises(LogInDangerError, match=f"when_log_in_danger: {wanted} says") as raised:
        looking.check(kept - 1, after_s=0.2 * STOP_AFTER_S)
    assert ("slot is dropped" in str(raised.value)) == looking.guard.drops_slot


def test_a_danger_that_begins_again_has_all_the_time_again() -> None:
    looking = Looking(WhenLogInDanger.STOP)
    looking.check(100)
    looking.check(10, after_s=0.9 * STOP_AFTER_S)
    looking.check(100)
    looking.check(100, after_s=0.9 * STOP_AFTER_S)
