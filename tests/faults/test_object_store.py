"""The event log on an object store whose network and server fail."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from itertools import count

import pytest
from tests.faults.appender import appended_positions, start, wait_frozen
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.s3 import S3Server
from tests.unit.eventlog.records import SOURCE, batch, payloads, register

from tidelog.errors import AppendRaceLostError, StorageError, UsageError
from tidelog.eventlog import object_storage
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.object_storage import ObjectStorage
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import OPTIONS_VARIABLE, provide_options
from tidelog.eventlog.writer import EventLogWriter
from tidelog.system import failpoints

pytestmark = pytest.mark.integration
_numbers = count(1)


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"faults-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    """The way to the server from now on; a client tries again once."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 1)
    with on_the_way(s3, place, monkeypatch) as network:
        yield network


@pytest.fixture
def writer(place: str, request: pytest.FixtureRequest) -> EventLogWriter:
    if "network" in request.fixturenames:
        request.getfixturevalue("network")
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place)
    writer.append_log([batch([b"first"], 10)])
    return writer


def values(place: str) -> list[bytes]:
    return [payload for _, payload in payloads(EventLog.open(place))]


def put_of(s3: S3Server, place: str, name: str = "") -> str:
    return f"PUT /{s3.bucket}/{place.rpartition('/')[2]}/{name}"


# ---------------------------------------------------------------- puts


def test_the_environment_alone_may_say_where_the_store_is_and_who_asks(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE)
    for name, value in s3.options.items():
        variable = "ENDPOINT_URL" if name == "endpoint" else name.upper()
        monkeypatch.setenv(f"AWS_{variable}", value)
    storage = ObjectStorage(s3.url(f"environment-{next(_numbers)}"), {})
    assert storage.put_if_absent("a", b"what is there")
    assert storage.read("a") == b"what is there"


def test_a_busy_store_is_asked_again(writer, s3, place, network):
    network.arm("busy", put_of(s3, place))
    writer.append_log([batch([b"second"], 20)])
    assert network.struck == 1
    assert values(place) == [b"first", b"second"]


def test_a_put_whose_answer_got_lost_is_recognised_as_ours(writer, s3, place, network):
    """The client puts again and is told that the name exists: it is our own segment."""
    network.arm("lose_answer", put_of(s3, place))
    writer.append_log([batch([b"second"], 20)])
    assert network.struck == 1
    writer.append_log([batch([b"third"], 30)])
    assert values(place) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("tries", [0, 2], ids=["once", "again"])
@pytest.mark.parametrize("answer", ["done_500", "done_503"])
def test_a_put_that_was_done_and_answered_with_an_error_is_ours_once(
    writer, s3, place, network, monkeypatch, answer, tries
):
    """``tries``: of the client, after the first."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", tries)
    object_storage._open_client.cache_clear()
    other = EventLogWriter.open(place, SOURCE, 2)
    network.arm(answer, put_of(s3, place, "0000"))
    other.append_log([batch([b"second"], 20)])
    assert network.struck == 1
    other.append_log([batch([b"third"], 30)])
    assert values(place) == [b"first", b"second", b"third"]


def test_a_put_that_may_still_happen_closes_the_writer(writer, s3, place, network):
    network.arm("delay", put_of(s3, place), times=2)
    with pytest.raises(AppendRaceLostError, match="unknown"):
        writer.append_log([batch([b"late"], 20)])
    assert writer.closed
    assert values(place) == [b"first"]
    with pytest.raises(AppendRaceLostError):
        writer.append_log([batch([b"other"], 20), batch([b"more"], 30)])
    # It arrives when another writer leads: the fence stands where it wants to.
    leader = EventLogWriter.open(place, SOURCE, 1)
    assert leader.resume.position == 10
    assert {answer.split()[1] for answer in network.deliver()} == {b"412"}
    leader.append_log([batch([b"late"], 20)])
    assert values(place) == [b"first", b"late"]


def test_a_put_that_arrives_before_the_next_leader_counts(writer, s3, place, network):
    network.arm("delay", put_of(s3, place), times=2)
    with pytest.raises(AppendRaceLostError, match="unknown"):
        writer.append_log([batch([b"late"], 20)])
    assert sorted(answer.split()[1] for answer in network.deliver()) == [b"200", b"412"]
    leader = EventLogWriter.open(place, SOURCE, 1)
    assert leader.resume.position == 20
    leader.append_log([batch([b"next"], 30)])
    assert values(place) == [b"first", b"late", b"next"]


def test_a_late_fence_is_the_fence(s3, place, network):
    EventLogWriter.create(place, SOURCE, 1)
    network.arm("delay", put_of(s3, place, "0000"), times=2)
    leader = EventLogWriter.open(place, SOURCE, 2)  # tries again by itself
    assert {answer.split()[1] for answer in network.deliver()} == {b"412"}
    assert leader.tail.kind == "fence"
    assert [meta.epoch for meta in EventLog.open(place).chain().segments] == [1, 2]


# ---------------------------------------------------------------- the server


def test_a_server_killed_amid_a_put_loses_nothing_that_was_reported(place, monkeypatch):
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 1)
    with S3Server() as server:
        place = server.url("log")
        writer = EventLogWriter.create(place, SOURCE, 1)
        register(place)
        writer.append_log([batch([b"told"], 10)])
        log = EventLog.open(place)
        with failpoints.arm({"put.before_link": server.kill}), pytest.raises(AppendRaceLostError):
            writer.append_log([batch([b"lost"], 20)])
        with pytest.raises(StorageError, match=r"cannot .* s3://.*Check the endpoint"):
            log.latest_offset()
        with pytest.raises(StorageError):
            EventLogWriter.open(place, SOURCE, 2)
        server.start()
        leader = EventLogWriter.open(place, SOURCE, 2)
        assert leader.resume.position == 10
        leader.append_log([batch([b"again"], 20)])
        assert [payload for _, payload in payloads(log)] == [b"told", b"again"]


def test_wrong_keys_are_an_error_that_does_not_show_them(s3, place, monkeypatch):
    monkeypatch.setenv(OPTIONS_VARIABLE, os.environ[OPTIONS_VARIABLE])
    provide_options(place, s3.options | {"secret_access_key": "not-the-secret"})
    for look in (lambda: EventLog.exists(place), lambda: EventLog.open(place)):
        with pytest.raises(StorageError, match=r"403 Forbidden.*credentials") as caught:
            look()
        shown = "".join(traceback.format_exception(caught.value)) + repr(ObjectStorage(place))
        assert "not-the-secret" not in shown
        assert "<" not in str(caught.value), "a server's document may tell what was signed"
    assert "(SignatureDoesNotMatch)" in str(caught.value)
    assert "Debug source" not in shown


def test_an_unknown_option_is_named_and_its_value_is_not(place):
    with pytest.raises(UsageError, match="colour") as caught:
        ObjectStorage(place, {"colour": "secret-red"})
    assert "secret-red" not in str(caught.value)


def test_a_store_that_ignores_conditions_is_refused(writer, place, monkeypatch):
    put = ObjectStorage._put
    monkeypatch.setattr(ObjectStorage, "_put", lambda s, n, d, mode: put(s, n, d, "overwrite"))
    with pytest.raises(UsageError, match=r"If-None-Match: \*"):
        EventLogWriter.open(place, SOURCE, 2)
    monkeypatch.setattr(
        ObjectStorage,
        "_put",
        lambda s, n, d, mode: put(s, n, d, mode if mode == "create" else "overwrite"),
    )
    with pytest.raises(UsageError, match="If-Match"):
        EventLogWriter.open(place, SOURCE, 2)


# ---------------------------------------------------------------- listings


def test_a_listing_torn_by_a_roll_up_is_read_again(writer, place, monkeypatch):
    for position in range(20, 90, 10):
        writer.append_log([batch([b"%d" % position], position)])
    expected = values(place)
    old = ObjectStorage.tags(writer.storage)
    EventLogMaintenance(place).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    tags, answers = ObjectStorage.tags, [old]
    monkeypatch.setattr(ObjectStorage, "tags", lambda s: answers.pop() if answers else tags(s))
    assert values(place) == expected
    assert not answers


def test_a_listing_that_lags_behind_costs_a_new_leader_a_second_look(writer, place, monkeypatch):
    names, lagging = ObjectStorage.names, [ObjectStorage.names(writer.storage)]
    writer.append_log([batch([b"second"], 20)])
    monkeypatch.setattr(
        ObjectStorage, "names", lambda s, f="": lagging.pop() if lagging else names(s, f)
    )
    leader = EventLogWriter.open(place, SOURCE, 2)
    assert leader.resume.position == 20
    assert values(place) == [b"first", b"second"]


# ---------------------------------------------------------------- two leaders


@pytest.mark.parametrize("point", ["put.before_link", "replace.before_rename"])
def test_a_frozen_leader_changes_nothing_when_it_wakes_up(place, point):
    """Invariant 7, with a real SIGSTOP right before a put: of a segment, of a rolled-up one."""
    hit = 20 if point == "put.before_link" else 4
    process = start(place, 1, "rollup", f"{point}:pause:{hit}")
    try:
        wait_frozen(process)
        leader = EventLogWriter.open(place, SOURCE, 2)
        position = leader.resume.position
        for n in range(1, 12):
            leader.append_log([batch([b"leader"], position + 10 * n)])
        EventLogMaintenance(place).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
        expected = payloads(EventLog.open(place))
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert payloads(EventLog.open(place)) == expected
        assert set(appended_positions(output)) <= {offset for offset, _ in expected}
        EventLogMaintenance(place).quarantine_strays()
        leader.append_log([batch([b"on"], position + 1000)])
        EventLogMaintenance(place).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
        assert payloads(EventLog.open(place))[:-1] == expected
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("work", "point"),
    [
        pytest.param(work, point, marks=() if sampled else pytest.mark.thorough)
        for work, point, sampled in (
            ("append", "put.before_link", False),
            ("append", "put.after_link", True),
            ("rollup", "rollup.before_replace", True),
            ("rollup", "replace.before_rename", False),
            ("rollup", "replace.after_rename", False),
            ("rollup", "rollup.after_replace", False),
            ("rollup", "rollup.after_delete", True),
            ("retain", "retention.after_head", True),
            ("retain", "retention.after_delete", False),
        )
    ],
)
def test_killed_at_any_point_the_log_holds_what_was_reported(place, s3, work, point):
    """Invariant 8."""
    process = start(place, 1, work, f"{point}:kill:3")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "the failpoint was not reached"
    appended = appended_positions(output)
    log = EventLog.open(place)
    seen = dict(payloads(log))
    for offset, position in appended.items():
        assert offset < log.head_offset or seen[offset] == b"%06d" % position
    assert len(seen) <= len(appended) + 1
    leader = EventLogWriter.open(place, SOURCE, 2)
    register(place)
    leader.append_log([batch([b"on"], 100_000)])
    assert EventLogMaintenance(place).quarantine_strays().quarantined == []
    EventLogMaintenance(place).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    again = EventLog.open(place)
    files = s3.files(place.rpartition("/")[2]).glob("*.arrow")
    assert {file.name for file in files} == {segment.name for segment in again.chain().segments}
    after = [record for record in payloads(again) if record[1] != b"on"]
    assert after == sorted(seen.items())
