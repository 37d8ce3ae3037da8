"""Epochs of capture grow whatever becomes of the state store."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.eventlog.records import SOURCE, batch, register

from tidelog.app.base import elections
from tidelog.app.base.elections import HANDOVER_KEY, LEASE_NAME, PATIENCE_S, CaptureElection
from tidelog.app.base.instances import (
    EXPIRED_MS,
    PREFIX,
    InstanceRegistration,
    processes_with,
    standbys,
)
from tidelog.app.sources.schema_versions import _exclude_capture
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import Config, parse_config
from tidelog.errors import EventLogError, UsageError
from tidelog.eventlog.storage import LocalStorage
from tidelog.eventlog.writer import EventLogWriter
from tidelog.state.documents import LeaseElection
from tidelog.state.opening import open_state


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = """
source: {kind: postgres, url: "postgresql://h/d", tables: ["a.b"]}
log: {path: log}
"""
    return parse_config(text, "tidelog.yaml", tmp_path, {})


def append(config: Config, epoch: int) -> None:
    writer = EventLogWriter.create(config.log.path, SOURCE, epoch)
    register(config.log.path)
    writer.append_log([batch([b"x"], 10 * epoch)])
    writer.close()


def test_a_store_that_was_wiped_before_a_takeover_does_not_count_from_zero(
    config: Config, tmp_path: Path
) -> None:
    with closing(CaptureElection(config, "a")) as a, closing(CaptureElection(config, "b")) as b:
        lease = a.acquire()
        assert lease is not None
        assert lease.epoch == 1
        append(config, 7)
        a.release(lease)
        again = b.acquire()
        assert again is not None
        assert again.epoch == 8
        assert a.acquire() is None
        assert b.renew(again).epoch == 8
        assert a.leader() == b.leader() == "b"


def test_a_lease_is_given_back_if_the_log_cannot_be_read(config: Config) -> None:
    append(config, 3)
    with closing(CaptureElection(config, "a")) as a, closing(CaptureElection(config, "b")) as b:
        (Path(config.log.path) / "log.json").write_text("{")
        with pytest.raises(EventLogError):
            a.acquire()
        assert b.leader() is None


def test_who_takes_over_reads_one_segment_to_know_its_epoch(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody leads meanwhile, and a log on an object store may have thousands."""
    for epoch in range(1, 5):
        append(config, epoch)
    opened: list[str] = []
    open_ = LocalStorage.open

    def opening(self: LocalStorage, name: str, *, footer: bool = False) -> object:
        opened.append(name)
        return open_(self, name, footer=footer)

    monkeypatch.setattr(LocalStorage, "open", opening)
    with closing(CaptureElection(config, "a")) as a:
        lease = a.acquire()
    assert lease is not None
    assert lease.epoch == 5
    assert len(opened) == 1


def test_a_handover_is_for_whom_it_names_and_for_a_while(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(open_state(config.state.location)) as state,
        closing(CaptureElection(config, "a", state=state)) as a,
        closing(CaptureElection(config, "b", state=state)) as b,
        closing(CaptureElection(config, "c", state=state)) as c,
    ):
        for name in "bc":
            InstanceRegistration(state, name, None).stand_by()
        lease = a.acquire()
        assert lease is not None
        a.hand_over("c")
        a.release(lease)
        assert a.acquire() is None
        assert b.acquire() is None
        taken = c.acquire()
        assert taken is not None
        assert state.get(HANDOVER_KEY) is None
        c.hand_over(None)
        c.release(taken)
        assert c.acquire() is None
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + PATIENCE_S + 1)
        assert c.acquire() is not None


def test_who_handed_over_may_lead_again_as_soon_as_another_has_led(config: Config) -> None:
    with (
        closing(open_state(config.state.location)) as state,
        closing(CaptureElection(config, "a", state=state)) as a,
        closing(CaptureElection(config, "b", state=state)) as b,
    ):
        InstanceRegistration(state, "b", None).stand_by()
        lease = a.acquire()
        assert lease is not None
        a.hand_over(None)
        a.release(lease)
        assert a.acquire() is None  # the other one goes first
        taken = b.acquire()
        assert taken is not None
        assert a.acquire() is None
        b.release(taken)
        assert a.acquire() is not None


def test_a_handover_has_its_time_from_when_the_lease_was_given_back(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    with (
        closing(open_state(config.state.location)) as state,
        closing(CaptureElection(config, "a", state=state)) as a,
    ):
        InstanceRegistration(state, "b", None).stand_by()
        lease = a.acquire()
        assert lease is not None
        a.hand_over(None)
        monkeypatch.setattr(time, "monotonic", lambda: now + PATIENCE_S + 1)
        a.release(lease)
        assert a.acquire() is None
        monkeypatch.setattr(time, "monotonic", lambda: now + 2 * PATIENCE_S)
        assert a.acquire() is None
        assert state.get(HANDOVER_KEY) is not None
        monkeypatch.setattr(time, "monotonic", lambda: now + 2 * PATIENCE_S + 2)
        assert a.acquire() is not None


def test_who_is_to_lead_by_name_takes_over_from_any_zone_at_once(config: Config) -> None:
    with (
        closing(open_state(config.state.location)) as state,
        closing(CaptureElection(config, "near", state=state)) as near,
        closing(CaptureElection(config, "far", 2 * PATIENCE_S, state)) as far,
    ):
        InstanceRegistration(state, "far", None).stand_by()
        lease = near.acquire()
        assert lease is not None
        assert far.acquire() is None
        near.hand_over(None)
        near.release(lease)
        assert far.acquire() is None
        state.delete(HANDOVER_KEY)
        near.hand_over("far")
        assert far.acquire() is not None


def test_captures_outside_the_preferred_zones_take_over_later(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(CaptureElection(config, "near")) as near,
        closing(CaptureElection(config, "far", 5)) as far,
    ):
        lease = near.acquire()
        assert lease is not None
        assert far.acquire() is None
        near.release(lease)
        assert far.acquire() is None
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 6)
        assert far.acquire() is not None


def test_captures_outside_the_preferred_zones_wait_if_the_lease_ends_while_they_ask(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(CaptureElection(config, "near")) as near,
        closing(CaptureElection(config, "far", 5)) as far,
    ):
        lease = near.acquire()
        assert lease is not None
        asked = far._election.leader

        def leader() -> str | None:
            found = asked()
            near.release(lease)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(far._election, "leader", leader)
            assert far.acquire() is None
        assert near.leader() is None
        assert far.acquire() is None
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 6)
        assert far.acquire() is not None


def test_standbys_are_reported_until_they_lead_end_or_die(config: Config) -> None:
    with closing(open_state(config.state.location)) as state:
        one, two = (
            InstanceRegistration(state, "one", "zone-a"),
            InstanceRegistration(state, "two", None),
        )
        for roster in (one, two):
            roster.stand_by()
            time.sleep(0.005)  # they are told in the order of their milliseconds
        assert [(told["holder"], told["zone"]) for told in standbys(state)] == [
            ("one", "zone-a"),
            ("two", None),
        ]
        one.leave()
        assert [told["holder"] for told in standbys(state)] == ["two"]
        key = next(iter(state.keys(PREFIX)))
        value = state.get(key).value  # type: ignore[union-attr]
        state.put(key, {**value, "seen_ms": value["seen_ms"] - EXPIRED_MS}, None)
        assert standbys(state) == []


def test_who_cannot_lead_says_why_and_is_no_standby(config: Config) -> None:
    with closing(open_state(config.state.location)) as state:
        one = InstanceRegistration(state, "one", None)
        one.stand_by()
        one.stand_by(trouble="the server is down")
        assert standbys(state) == []  # a handover to it would leave nobody in the lead
        assert [told["trouble"] for told in processes_with(state, "trouble")] == [
            "the server is down"
        ]
        one.stand_by()
        assert [told["holder"] for told in standbys(state)] == ["one"]
        assert processes_with(state, "trouble") == []


def test_a_command_waits_for_a_lease_that_nobody_renews_and_says_who_renews_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the holder were on another host."""

    def opened(
        _url: object, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> LeaseElection:
        state = open_state(f"sqlite:///{tmp_path}/leases.db")
        return LeaseElection(state, name, holder, ttl_s, first_epoch=first_epoch)

    monkeypatch.setattr(elections, "open_election", opened)
    with (
        closing(opened("", LEASE_NAME, "killed", 0.7)) as killed,
        closing(opened("", LEASE_NAME, "alive", 60)) as alive,
    ):
        assert killed.acquire() is not None
        with _exclude_capture(config):
            assert alive.leader() == "tidelog schema"
        lease = alive.acquire()
        assert lease is not None
        keeper = LeaseKeeper(alive, lease, 0.1)
        with (
            pytest.raises(UsageError, match=r"a capture leads \(alive\): stop it"),
            _exclude_capture(config),
        ):
            pass
        keeper.release()
