"""A disk that fills up with the event log and the state of a capture, and is given room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source
from tests.small_disk import grow

from tidelog import app

pytestmark = pytest.mark.integration

EACH_BYTES = 4096
AT_ONCE = 50


def test_capture_waits_for_room_says_so_and_loses_nothing(
    database: str, small_disk: Path, tmp_path: Path
) -> None:
    source = Source(database, tmp_path, small_disk / "log", state=f"sqlite:///{small_disk}/state")
    try:
        capture = source.start()
        source.wait_led()
        written = 0
        while shutil.disk_usage(small_disk).free:
            source.write(written + 1, written + AT_ONCE, EACH_BYTES)
            written += AT_ONCE
            assert written * EACH_BYTES < 64 << 20, "it never fills up"
        source.wait_for(lambda: "No space left" in capture.log_file.read_text())
        source.write(written + 1, written + AT_ONCE, EACH_BYTES)
        written += AT_ONCE

        def told() -> bool:
            problems = app.status(source.config)["overview"]["problems"]
            return any("No space left" in each["sentence"] for each in problems)

        source.wait_for(told)
        capture.stop()
        capture = source.start()  # with the state on the same disk
        source.wait_for(lambda: "full" in capture.log_file.read_text())
        grow(small_disk)
        source.wait_for(lambda: len(source.inserted()) >= written)
        assert source.inserted() == list(range(1, written + 1))
        assert not capture.died
    finally:
        source.close()
