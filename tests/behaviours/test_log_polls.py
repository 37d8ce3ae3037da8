"""Who polls an event log on an object store makes few requests, and misses nothing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.s3 import S3Server
from tests.unit.eventlog.records import SOURCE, batch, register

from tidelog.errors import ForeignSegmentError
from tidelog.eventlog import log_poller
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.system.private_files import temporary_directory

pytestmark = pytest.mark.integration

_numbers = count(1)


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"polls-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    with on_the_way(s3, place, monkeypatch) as network:
        yield network


@pytest.fixture
def writer(place: str, network: FaultyNetwork) -> EventLogWriter:
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place, "orders")
    return writer


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see no notes of the writer: as on another host."""
    directory = tmp_path / "notes"
    monkeypatch.setattr(log_poller, "temporary_directory", lambda _: directory)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUSY_EVERY_S", "IDLE_EVERY_S"):
        monkeypatch.setattr(log_poller, name, getattr(log_poller, name) / 10)


def append(writer: EventLogWriter, position: int) -> None:
    writer.append_log([batch([b"row"], position)])


def polled(log: EventLog, end: int, seconds: float) -> list[float]:
    """Until something is there; when polls began that found nothing."""
    begun, found = time.monotonic(), []
    while time.monotonic() < begun + seconds and not log.poll(end, 0.05):
        found.append(time.monotonic() - begun)
    return found


def asked(network: FaultyNetwork, before: int) -> list[str]:
    return [
        f"{line.split()[0]} {line.split()[1].rpartition('/')[2]}" for line in network.asked[before:]
    ]


@pytest.mark.usefixtures("elsewhere", "quick")
def test_a_poll_is_one_request_in_its_time_and_shared_by_readers_of_a_host(
    writer: EventLogWriter, place: str, network: FaultyNetwork, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    readers = [EventLog.open(place) for _ in range(3)]
    end = readers[0].latest_offset()
    assert [each.latest_offset() for each in readers] == [end] * 3
    before = len(network.asked)
    begun = time.monotonic()
    while time.monotonic() < begun + 2.6:
        assert not any(each.poll(end) for each in readers)
        time.sleep(0.005)
    lines = asked(network, before)
    assert set(lines) == {f"HEAD {end:020d}.arrow"}
    assert 8 <= len(lines) <= 12
    append(writer, 10)
    begun = time.monotonic()
    while not all(each.poll(end) for each in readers):
        assert time.monotonic() < begun + 0.5
        time.sleep(0.005)


@pytest.mark.usefixtures("elsewhere", "quick")
def test_who_can_not_keep_notes_polls_alone(
    writer: EventLogWriter, place: str, network: FaultyNetwork
) -> None:
    log = EventLog.open(place)
    end, before = log.latest_offset(), len(network.asked)
    assert polled(log, end, 1.3)[-1] > 1.2
    assert 4 <= len(asked(network, before)) <= 6
    append(writer, 10)
    assert log.poll(end, 0.5)


@pytest.mark.usefixtures("quick")
def test_readers_on_the_writers_host_ask_nothing_and_see_an_append_at_once(
    writer: EventLogWriter, place: str, network: FaultyNetwork
) -> None:
    log = EventLog.open(place)
    end = log.latest_offset()
    before, begun = len(network.asked), time.monotonic()
    while time.monotonic() < begun + log_poller.IDLE_EVERY_S + 0.5:
        writer.idle()
        assert not log.poll(end, 0.1)
    assert asked(network, before) == []
    append(writer, 10)
    assert log.poll(end)
    assert log.latest_offset() == writer.next_offset
    assert not log.poll(writer.next_offset)


@pytest.mark.usefixtures("quick")
def test_a_writer_that_is_silent_is_not_relied_upon(
    writer: EventLogWriter, place: str, network: FaultyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_poller, "WRITER_SILENT_S", 0.1)
    log = EventLog.open(place)
    end = log.latest_offset()
    log.poll(end)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(log_poller.HostNotes, "note_append", lambda *_: None)
        append(writer, 10)
    assert log.poll(end, log_poller.IDLE_EVERY_S + 0.5)


@pytest.mark.usefixtures("elsewhere", "quick")
@pytest.mark.parametrize("what", ["rolled up", "removed", "restored", "recreated"])
def test_what_no_segment_follows_is_noticed_by_the_end_that_is_gone(
    writer: EventLogWriter, place: str, s3: S3Server, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that did not poll while the name it waits for came and went."""
    monkeypatch.setattr(log_poller, "CHECK_EVERY_S", 0.3)
    append(writer, 10)
    log = EventLog.open(place)
    end = log.latest_offset()
    storage = storage_at(place)
    if what == "restored":
        storage.delete(max(name for name in storage.names() if name[0] == "0"))
    elif what == "recreated":
        for name in storage.names():
            storage.delete(name)
        EventLogWriter.create(place, SOURCE, 1, start_offset=1 << 40)
    else:
        for position in (20, 30):
            append(writer, position)
        maintenance = EventLogMaintenance(place)
        if what == "rolled up":
            assert maintenance.rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
        else:
            assert maintenance.retain(-10) > end
    assert log.poll(end, log_poller.CHECK_EVERY_S + 0.5)
    if what == "recreated":
        with pytest.raises(ForeignSegmentError, match="was recreated"):
            log.latest_offset()
    elif what == "restored":
        assert log.latest_offset() < end
    else:
        assert log.latest_offset() == writer.next_offset


def test_a_log_in_a_directory_is_asked_each_time(tmp_path: Path) -> None:
    writer = EventLogWriter.create(tmp_path / "log", SOURCE, 1)
    log = EventLog.open(tmp_path / "log")
    assert log.poll(writer.next_offset)


def test_notes_of_another_user_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"tidelog-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"tidelog-{os.getuid()}").chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's own"):
        temporary_directory("tidelog")


@pytest.mark.usefixtures("elsewhere", "quick")
def test_planning_of_spark_asks_little_of_an_idle_log_and_once_for_a_batch(
    writer: EventLogWriter, place: str, network: FaultyNetwork
) -> None:
    source = pytest.importorskip("tidelog.spark.datasource.source")
    append(writer, 10)
    options = {"path": place, "shape": "segments"}
    reader = source.TidelogSource(options).streamReader(source.shapes.SEGMENTS)
    start = reader.initialOffset() | {"offset": writer.next_offset}

    def plan() -> dict[str, Any]:
        found: dict[str, Any] = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert reader.reportLatestOffset()["lag"] == {"bytes": 0, "records": 0, "seconds": 0.0}
        return found

    plan()
    before, begun = len(network.asked), time.monotonic()
    for _ in range(5):
        assert plan() == start
    most = (time.monotonic() - begun) / log_poller.IDLE_EVERY_S + 1
    assert len(asked(network, before)) <= most
    append(writer, 20)
    before = len(network.asked)
    while (end := plan()) == start:
        pass
    assert end["offset"] == writer.next_offset
    assert len(reader.partitions(start, end)) == 1
    found = [line for line in asked(network, before) if ".arrow" not in line]
    assert found == ["HEAD chain.json", *found[1:]]
    assert set(found[1:]) <= {"GET 00000001.json", "GET schemas%2F"}
    assert sum(line.startswith("GET") and ".arrow" in line for line in asked(network, before)) == 1


def test_schemas_are_asked_for_by_number_and_not_listed_again(
    writer: EventLogWriter, place: str, network: FaultyNetwork
) -> None:
    log = EventLog.open(place)
    known = log.schemas.tables()
    before = len(network.asked)
    assert log.schemas.tables() == known
    assert asked(network, before) == ["HEAD 00000002.json"]
    register(place, "items")
    assert len(log.schemas.by_table()) == len(known) + 1
