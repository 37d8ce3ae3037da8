"""The handle of the event log that a standby keeps while another process writes."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.s3 import S3Server
from tests.unit.eventlog.records import SOURCE, batch, register

from tidelog.app.capture.standby import RELEASE_POLL_S, StandbyLogPoller
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.writer import EventLogWriter

pytestmark = pytest.mark.integration
SEGMENTS = 60
MOST_REQUESTS = 25
_numbers = count(1)


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"known-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    with on_the_way(s3, place, monkeypatch) as network:
        yield network


def begun(place: str | Path, segments: int) -> EventLogWriter:
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place)
    appended(writer, segments)
    return writer


def appended(writer: EventLogWriter, segments: int) -> None:
    at = 0 if writer.resume is None else writer.resume.position
    for position in range(at + 10, at + 10 * (segments + 1), 10):
        writer.append_log([batch([b"row"], position)])


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_knows_the_log_takes_over_by_few_requests(place: str, network: FaultyNetwork) -> None:
    """However long the log is: who leads next must neither list it nor read its segments."""
    writer = begun(place, SEGMENTS)
    known = StandbyLogPoller(place, lambda: False)
    assert known.newest_epoch() == 1
    learned = known.log()
    assert learned is not None
    learned.chain()
    appended(writer, 2)
    before = len(network.asked)
    assert known.newest_epoch() == 1
    log = known.current()
    assert log is learned
    leader = EventLogWriter(log.storage, SOURCE, 2, schemas=log.schemas, chain=log.chain_reader())
    assert leader.resume is not None
    assert leader.resume.position == 10 * (SEGMENTS + 2)
    asked = network.asked[before:]
    assert not [line for line in asked if "list-type" in line]
    assert len([line for line in asked if line.startswith("GET") and ".arrow" in line]) == 2
    assert len(asked) <= MOST_REQUESTS, asked
    before = len(network.asked)
    assert EventLogMaintenance(log.storage, chain=log.chain_reader()).quarantine_strays()
    read = [line for line in network.asked[before:] if ".arrow" in line]
    assert len(read) <= 2, read  # the fence


def test_the_tail_of_a_known_chain_is_the_newest_segment_whatever_others_did(
    tmp_path: Path,
) -> None:
    writer = begun(tmp_path, 3)
    reader = EventLog.open(tmp_path).chain_reader()
    reader.refresh()
    for more in (0, 1, 20):
        appended(writer, more)
        assert reader.tail() == writer.tail
    assert EventLogMaintenance(tmp_path).rollup(
        target_bytes=64 << 20, min_age_s=-10, min_segments=2
    )
    assert reader.tail() == writer.tail
    leader = EventLogWriter.open(tmp_path, SOURCE, 2)
    assert reader.tail() == leader.tail
    appended(leader, 5)
    assert EventLogMaintenance(tmp_path).rollup(
        target_bytes=64 << 20, min_age_s=-10, min_segments=2
    )
    assert reader.tail() == leader.tail


def test_a_leader_that_knew_the_log_before_it_was_rolled_up_appends_behind_its_end(
    tmp_path: Path,
) -> None:
    """The names of what was rolled up are free again: none of them is its next one."""
    writer = begun(tmp_path, 30)
    log = EventLog.open(tmp_path)
    log.chain()
    appended(writer, 10)
    assert EventLogMaintenance(tmp_path).rollup(
        target_bytes=64 << 20, min_age_s=-10, min_segments=2
    )
    leader = EventLogWriter(log.storage, SOURCE, 2, chain=log.chain_reader())
    appended(leader, 1)
    found = EventLog.open(tmp_path)
    assert found.tail == leader.tail
    assert sum(meta.rows for meta in found.chain().segments) == 41


def test_a_leader_that_knew_more_than_is_there_appends_behind_what_is(tmp_path: Path) -> None:
    """As after a restore, or where a host lost what it had not synchronised."""
    writer = begun(tmp_path, 10)
    known = StandbyLogPoller(str(tmp_path), lambda: False)
    log = known.log()
    assert log is not None
    lost = [meta.name for meta in log.chain().segments[-3:]]
    assert writer.tail is not None
    for name in lost:
        (tmp_path / name).unlink()
    stale = log.chain_reader()
    there = stale.tail()
    assert there is not None
    assert there.name not in lost
    current = known.current()
    assert current is not None
    assert current is not log, "its schemas may be others as well"
    leader = EventLogWriter(current.storage, SOURCE, 2, chain=current.chain_reader())
    appended(leader, 1)
    found = EventLog.open(tmp_path)
    assert found.tail == leader.tail
    assert sum(meta.rows for meta in found.chain().segments) == 8


def test_a_log_that_was_recreated_is_reopened(tmp_path: Path) -> None:
    place = tmp_path / "log"
    known = StandbyLogPoller(str(place), lambda: False)
    assert known.log() is None
    assert known.newest_epoch() == 0
    begun(place, 3)
    assert known.newest_epoch() == 1
    shutil.rmtree(place)
    other = EventLogWriter.create(place, SOURCE, 7)
    assert known.newest_epoch() == 7
    log = known.log()
    assert log is not None
    assert log.generation == other.generation


def test_who_stands_by_learns_what_is_appended_once_the_leader_is_about_to_end(
    place: str, network: FaultyNetwork
) -> None:
    writer = begun(place, SEGMENTS)
    ends = threading.Event()

    def reads() -> int:
        return len([line for line in network.asked if line.startswith("GET") and ".arrow" in line])

    with StandbyLogPoller(place, ends.is_set) as known:
        time.sleep(1)
        assert not reads(), "it does not stand by"
        known.stand_by(True)
        wait_for(lambda: reads() > SEGMENTS)
        before = reads()
        appended(writer, 5)
        time.sleep(5 * RELEASE_POLL_S)
        assert reads() == before, "each request is paid for"
        ends.set()
        wait_for(lambda: reads() == before + 5)
        known.stand_by(False)
        time.sleep(4 * RELEASE_POLL_S)  # a look may be under way
        asked = len(network.asked)
        appended(writer, 1)
        ours = len(network.asked) - asked
        time.sleep(4 * RELEASE_POLL_S)
        assert len(network.asked) == asked + ours
