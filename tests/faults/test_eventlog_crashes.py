"""Invariant 8 on the event log: kill -9 at every named place, a full disk, a frozen process."""

from __future__ import annotations

import contextlib
import signal

import numpy as np
import pytest
from tests.faults.appender import appended_positions, start, wait_frozen
from tests.unit.eventlog.records import SOURCE, batch, payloads, register

from tidelog.errors import StorageError
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.storage import LocalStorage
from tidelog.eventlog.writer import EventLogWriter

POINTS = {
    "append": [
        "put.before_write",
        "put.after_write",
        "put.before_link",
        "put.after_link",
        "put.after_fsync",
    ],
    "rollup": [
        "rollup.before_replace",
        "replace.before_write",
        "replace.after_write",
        "replace.before_rename",
        "replace.after_rename",
        "replace.after_fsync",
        "rollup.after_replace",
        "rollup.after_delete",
    ],
    "retain": ["retention.after_head", "retention.after_delete"],
}


HITS = (1, 2, 9)


@pytest.mark.parametrize(
    ("work", "point", "hit"),
    [
        # A sample: each place, killed the first, second or ninth time that it is reached.
        pytest.param(
            work, point, hit, marks=[] if place % len(HITS) == turn else pytest.mark.thorough
        )
        for place, (work, point) in enumerate(
            (work, point) for work, points in POINTS.items() for point in points
        )
        for turn, hit in enumerate(HITS)
    ],
)
def test_killed_at_any_point_the_log_holds_what_was_reported(tmp_path, work, point, hit):
    process = start(tmp_path, 1, work, f"{point}:kill:{hit}")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "the failpoint was not reached"
    if not (tmp_path / "log.json").exists():
        assert point.startswith("put.")
        assert not appended_positions(output)
        return
    appended = appended_positions(output)
    log = EventLog.open(tmp_path)
    seen = dict(payloads(log))
    for offset, position in appended.items():
        assert offset < log.head_offset or seen[offset] == b"%06d" % position
    assert len(seen) <= len(appended) + 1, "at most the append that was under way is there too"
    # Reopened: the next leader goes on where the log ends, and maintenance cleans up.
    writer = EventLogWriter.open(tmp_path, SOURCE, 2)
    assert not list(tmp_path.glob(".tmp*"))
    if appended and writer.resume:
        assert writer.resume.position in (max(appended.values()), max(appended.values()) + 10)
    register(tmp_path)
    writer.append_log([batch([b"on"], 100_000)])
    swept = EventLogMaintenance(tmp_path).quarantine_strays()
    assert swept.quarantined == [], "an interrupted roll-up or retention leaves no strays"
    again = EventLog.open(tmp_path)
    names = {segment.name for segment in again.chain().segments}
    assert {file.name for file in tmp_path.glob("*.arrow")} == names
    after = [record for record in payloads(again) if record[1] != b"on"]
    assert after == sorted(seen.items())


def test_a_frozen_leader_cannot_append_when_it_wakes_up(tmp_path):
    """Invariant 7, with a real SIGSTOP."""
    process = start(tmp_path, 1, "append", "put.before_write:pause:20")
    try:
        wait_frozen(process)
        leader = EventLogWriter.open(tmp_path, SOURCE, 2)
        position = leader.resume.position
        for n in range(1, 6):
            leader.append_log([batch([b"leader"], position + 10 * n)])
        EventLogMaintenance(tmp_path).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
        expected = payloads(EventLog.open(tmp_path))
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 1
        assert payloads(EventLog.open(tmp_path)) == expected
        assert set(appended_positions(output)) <= {offset for offset, _ in expected}
        assert len(EventLogMaintenance(tmp_path).quarantine_strays().quarantined) == 1
        leader.append_log([batch([b"on"], position + 1000)])
    finally:
        process.kill()
        process.wait()


def test_two_captures_on_one_log_one_loses_and_nothing_is_lost(tmp_path):
    first = start(tmp_path, 1, "append")
    assert first.stdout.readline().strip() == "leads"
    second = start(tmp_path, 2, "append")
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert second.returncode == 0
    seen = dict(payloads(EventLog.open(tmp_path)))
    for output in outputs:
        for offset, position in appended_positions(output).items():
            assert seen[offset] == b"%06d" % position
    positions = [int(payload) for payload in seen.values()]
    assert positions == sorted(set(positions))


def test_a_full_disk_loses_nothing_and_shows_nothing_half(small_disk):
    writer = EventLogWriter.create(small_disk, SOURCE, 1)
    register(small_disk)
    rng = np.random.default_rng(1)
    appended = []

    def fill():
        for position in range(10, 10_000, 10):
            payload = rng.bytes(60_000)
            meta = writer.append_log([batch([payload], position)])
            appended.append((meta.first, payload))

    with pytest.raises(StorageError, match=r"No space left on device\. Check free space"):
        fill()
    assert len(appended) > 5
    assert not list(small_disk.glob(".tmp*"))
    assert payloads(EventLog.open(small_disk)) == appended
    assert not writer.closed
    # Space comes back: the same writer goes on.
    EventLogMaintenance(small_disk).retain(-10)
    meta = writer.append_log([batch([b"after"], 10_000)])
    assert payloads(EventLog.open(small_disk))[-1] == (meta.first, b"after")


def test_a_full_disk_does_not_harm_roll_up_or_schemas(small_disk):
    writer = EventLogWriter.create(small_disk, SOURCE, 1)
    register(small_disk)
    rng = np.random.default_rng(1)
    for position in range(10, 60, 10):
        writer.append_log([batch([rng.bytes(100_000)], position)])
    expected = payloads(EventLog.open(small_disk))
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(2 << 20))
    with pytest.raises(StorageError):
        EventLogMaintenance(small_disk).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    with pytest.raises(StorageError):
        register(small_disk, "another")
    assert payloads(EventLog.open(small_disk)) == expected
    (small_disk / "filler").unlink()
    assert LocalStorage(small_disk).names("schemas") == ["schemas/00000001.json"]
    assert register(small_disk, "another") == [2]
