"""File systems that an event log can't be on are refused by name when a leader starts."""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.eventlog.records import SOURCE

from tidelog.errors import EventLogError, StorageError, UsageError
from tidelog.eventlog import storage
from tidelog.eventlog.storage import LocalStorage, probe_directory
from tidelog.eventlog.writer import EventLogWriter

Patch = pytest.MonkeyPatch
link = Path.hardlink_to


def refuse(*_: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def without_links(patch: Patch) -> None:
    """As vfat and exFAT."""
    patch.setattr(Path, "hardlink_to", refuse)


def copies(patch: Patch) -> None:
    """As some file systems over object stores."""

    def copy(self: Path, target: Path) -> None:
        if self.exists():
            raise FileExistsError
        shutil.copyfile(target, self)

    patch.setattr(Path, "hardlink_to", copy)


def overwrites(patch: Patch) -> None:
    def over(self: Path, target: Path) -> None:
        self.unlink(missing_ok=True)
        link(self, target)

    patch.setattr(Path, "hardlink_to", over)


def locks_nothing(patch: Patch) -> None:
    patch.setattr(fcntl, "flock", lambda *_: None)


def is_not_durable(patch: Patch) -> None:
    def fsync(_path: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    patch.setattr(storage, "fsync_directory", fsync)


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        (without_links, "has no hard links"),
        (copies, "copies a file"),
        (overwrites, "where the name exists"),
        (locks_nothing, "one lock to two holders"),
        (is_not_durable, "can't make them durable"),
    ],
)
def test_what_a_file_system_lacks_is_reported(
    lacks: Callable[[Patch], None], told: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    lacks(monkeypatch)
    with pytest.raises(UsageError, match=told):
        probe_directory(tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def test_a_leader_refuses_it_before_it_writes_a_segment(tmp_path: Path, monkeypatch: Patch) -> None:
    EventLogWriter.create(tmp_path / "log", SOURCE, 1).close()
    before = LocalStorage(tmp_path / "log").names()
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(UsageError, match="has no hard links"):
        EventLogWriter.open(tmp_path / "log", SOURCE, 2)
    assert LocalStorage(tmp_path / "log").names() == before


def test_a_full_disk_is_no_reason_to_give_up(tmp_path: Path, monkeypatch: Patch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    EventLogWriter.create(tmp_path / "log", SOURCE, 1).close()
    monkeypatch.setattr(Path, "hardlink_to", full)
    with pytest.raises(StorageError) as told:
        EventLogWriter.open(tmp_path / "log", SOURCE, 2)
    assert isinstance(told.value, EventLogError)


def test_this_file_system_and_a_memory_one_serve(tmp_path: Path, small_disk: Path) -> None:
    probe_directory(tmp_path)
    probe_directory(small_disk)
    assert not list(small_disk.iterdir())
