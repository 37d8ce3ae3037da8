"""An older copy of an event log is restored and continued: no offset means two records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.unit.eventlog.records import SOURCE, batch, payloads, register

from tidelog.errors import OffsetAheadError
from tidelog.eventlog import chain
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import RecordKind

_numbers = count(1)


@dataclass
class Place:
    """An event log, and a copy of its files."""

    place: str
    files: Path
    copy: dict[str, bytes] = field(default_factory=dict)

    def lead(self, epoch: int, seen: int | None = 0) -> EventLogWriter:
        return EventLogWriter(storage_at(self.place), SOURCE, epoch, seen=seen)

    def save(self) -> None:
        storage = storage_at(self.place)
        self.copy = {name: storage.read(name) for name in self._names()}

    def restore(self) -> None:
        storage = storage_at(self.place)
        for name in self._names():
            storage.delete(name)
        for name, data in self.copy.items():
            storage.replace(name, data)

    def lose_newest(self) -> None:
        storage_at(self.place).delete(max(name for name in self._names() if name[0] == "0"))

    def _names(self) -> list[str]:
        files = (each for each in self.files.rglob("*") if each.is_file())
        return [str(each.relative_to(self.files)) for each in files]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.integration)])
def at(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(chain, "_TAIL_CHECK_EVERY_S", 0.0)
    monkeypatch.setattr("tidelog.eventlog.reader._LATE_LISTING_S", 0.3)
    if request.param == "local":
        found = Place(str(tmp_path / "log"), tmp_path / "log")
    else:
        server, name = request.getfixturevalue("s3"), f"restored-{next(_numbers)}"
        found = Place(f"{server.url(name)}/log", server.files(name) / "log")
    EventLogWriter.create(found.place, SOURCE, 1)
    register(found.place, "orders")
    return found


@pytest.fixture
def issued(at: Place) -> tuple[int, int]:
    """Where the copy ends that was put back, and the offset up to which readers have read."""
    leader = at.lead(2)
    leader.append_log([batch([b"before"], 10, kind=RecordKind.INSERT)])
    end = leader.next_offset
    at.save()
    leader.append_log([batch([b"lost"], 20, kind=RecordKind.INSERT)])
    leader = at.lead(3)
    leader.append_log([batch([b"lost, too"], 30, kind=RecordKind.INSERT)])
    return end, leader.next_offset


def refuses(what: Callable[[], object], offset: int, end: int) -> None:
    with pytest.raises(OffsetAheadError, match=rf"at offset {offset}, .* at {end}: .*restore\.md"):
        what()


@pytest.mark.parametrize("rolled_up", [False, True])
def test_no_offset_is_issued_twice_and_readers_ahead_are_reported(
    at: Place, issued: tuple[int, int], rolled_up: bool
) -> None:
    end, ahead = issued
    running = EventLog.open(at.place)
    assert running.latest_offset() == ahead
    at.restore()
    refuses(lambda: running.segments(ahead), ahead, end)
    leader = at.lead(3)  # as the lease says: the state was put back, too
    first = leader.append_log([batch([b"after"], 20, kind=RecordKind.INSERT)]).first
    assert first > ahead
    leader.append_position(leader.resume)
    if rolled_up:
        maintenance = EventLogMaintenance(at.place)
        assert maintenance.rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    for log in (running, EventLog.open(at.place)):
        refuses(lambda log=log: log.segments(ahead), ahead, end)
        refuses(lambda log=log: log.segments(end - 1, ahead), ahead, end)
        refuses(lambda log=log: log.check_offsets(end, ahead), ahead, end)
        log.check_offsets(log.head_offset, end, first, log.latest_offset())
        assert payloads(log) == [(end - 6, b"before"), (first, b"after")]
        assert log.bytes_between(end, log.latest_offset()) == leader.next_offset - first


def test_a_lost_segment_is_reported_before_and_after_capture_continues(
    at: Place, issued: tuple[int, int]
) -> None:
    ahead = issued[1]
    running = EventLog.open(at.place)
    running.latest_offset()
    at.lose_newest()
    end = EventLog.open(at.place).latest_offset()
    assert end < ahead
    for _ in range(2):
        refuses(lambda: running.segments(ahead), ahead, end)
        refuses(lambda: EventLog.open(at.place).segments(ahead), ahead, end)
        assert at.lead(4).next_offset > ahead


def test_a_leader_begins_above_what_others_have_seen_whatever_the_clock_says(
    at: Place, issued: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at.restore()
    seen = issued[1] + (1 << 45)
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert at.lead(3, seen).next_offset > seen


def test_a_late_listing_is_no_restored_log(
    at: Place, issued: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_at(at.place)
    all_names, all_tags = storage.names, storage.tags
    newest = max(name for name in all_names() if name.endswith(".arrow"))
    monkeypatch.setattr(
        storage, "names", lambda *folder: [name for name in all_names(*folder) if name != newest]
    )
    monkeypatch.setattr(
        storage, "tags", lambda: {name: tag for name, tag in all_tags().items() if name != newest}
    )
    assert EventLog(storage).segments(issued[1]) == []
