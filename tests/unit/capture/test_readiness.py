"""A standby asks what it would need to lead, and takes no lease while it lacks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.engines import until
from tests.unit.capture.test_leadership import Alone

from tidelog.app.capture.standby import Readiness
from tidelog.capture.leadership import LeaseKeeper, lead
from tidelog.errors import ConfigError, ConnectionLostError, TidelogError


class Source:
    """Which can be away, or silent."""

    def __init__(self) -> None:
        self.error: TidelogError | None = None
        self.asked = 0
        self.speaks = threading.Event()
        self.speaks.set()

    def reach(self) -> None:
        self.asked += 1
        self.speaks.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.speaks.set()


def test_nothing_that_a_standby_lacks_ends_it(source: Source) -> None:
    """Also not what would end a leader: the one that leads may need it later."""
    stop, told, led = threading.Event(), list[tuple[str, str]](), threading.Event()
    source.error = ConfigError("no such host")

    class Session:
        def run(self, stop: threading.Event) -> bool:
            led.set()
            return stop.wait(30)

        def close(self) -> None: ...

    def open_session(_keeper: LeaseKeeper) -> Session:
        return Session()

    with Readiness(source.reach, lambda: None, stop) as readiness:
        readiness.stand_by(True)
        until(lambda: readiness.trouble == "no such host")
        leading = threading.Thread(
            target=lambda: lead(
                Alone(),
                open_session,
                stop,
                renew_every_s=0.05,
                on_state=lambda *state: told.append(state),
                ready=readiness.check,
            )
        )
        leading.start()
        until(lambda: ("retrying", "no such host") in told)
        assert leading.is_alive()
        assert not led.is_set()
        source.error = None
        assert led.wait(10)
        assert readiness.trouble == ""
        stop.set()
        leading.join(10)
        assert not leading.is_alive()


def test_who_failed_to_lead_is_shown_what_needs_a_person(source: Source) -> None:
    readiness = Readiness(source.reach, lambda: None, threading.Event())
    readiness.check(failed=True)
    source.error = ConfigError("no such host")
    with pytest.raises(ConfigError):
        readiness.check(failed=True)


def test_who_lacks_nothing_asks_nobody(source: Source) -> None:
    Readiness(source.reach, lambda: None, threading.Event()).check(failed=False)
    assert not source.asked


def test_an_answer_that_does_not_come_holds_up_no_end(source: Source) -> None:
    stop = threading.Event()
    readiness = Readiness(source.reach, lambda: None, stop)
    source.speaks.clear()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    readiness.check(failed=True)
    assert time.monotonic() - began < 10


def test_a_log_that_is_away_is_reported_before_the_source_is_asked(source: Source) -> None:
    def look() -> None:
        raise ConnectionLostError("the log is away")

    readiness = Readiness(source.reach, look, threading.Event())
    with pytest.raises(ConnectionLostError, match="the log is away"):
        readiness.check(failed=True)
    assert not source.asked
