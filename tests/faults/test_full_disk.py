"""A disk that fills up with the event log and the state of a capture, and is given room."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.history_run import CaptureProcess
from tests.faults.capture_fixture import Source
from tests.small_disk import grow

pytestmark = pytest.mark.integration

ROWS, EACH_BYTES = 2000, 4096
"""Of random hexadecimal digits: compressed they take twice what the disk has."""


def test_capture_waits_for_room_says_so_and_loses_nothing(
    database: str, small_disk: Path, tmp_path: Path
) -> None:
    source = Source(database, tmp_path, small_disk / "log", state=f"sqlite:///{small_disk}/state")
    try:
        capture = source.start()
        source.wait_led()
        for first in range(1, ROWS, 50):
            source.write(first, first + 49, EACH_BYTES)
        source.wait_for(lambda: _is_told(capture))
        capture.stop()
        capture = source.start()
        source.wait_for(lambda: _is_told(capture))
        assert len(source.inserted()) < ROWS
        grow(small_disk)
        source.wait_for(lambda: len(source.inserted()) >= ROWS)
        assert source.inserted() == list(range(1, ROWS + 1))
        assert not capture.died
    finally:
        source.close()


def _is_told(capture: CaptureProcess) -> bool:
    """The state may be what finds no room."""
    said = capture.log_file.read_text()
    return "No space left" in said or "disk is full" in said
