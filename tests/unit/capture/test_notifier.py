"""Notifications: Debezium's form, every channel, and no way to stop a dump."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tidelog import Capture, CaptureGroup
from tidelog.app.capture.run import run_capture
from tidelog.app.pipeline.run import run_capture_and_pipeline as run_both
from tidelog.capture.notifications import Notification, NotificationType
from tidelog.config import parse_config
from tidelog.control.channels.notifier import NOTIFICATIONS_KEPT, Notifier
from tidelog.errors import ConfigError


def note(number: int = 1, **data: Any) -> Notification:
    kind = NotificationType.STARTED
    return Notification(f"d{number}", "Incremental Snapshot", kind, 1_695_817_046_353, data)


def test_notification_has_the_form_of_debezium(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "notes.jsonl"
    notifier = Notifier({"file"}, connector="shop", file=file)
    notifier.start()
    notifier.notify(
        note(data_collections=["a.b", "a.c"], total_rows_scanned=100, status="EMPTY", none=None)
    )
    notifier.close()
    assert json.loads(file.read_text()) == {
        "id": "d1",
        "aggregate_type": "Incremental Snapshot",
        "type": "STARTED",
        "additional_data": {
            "connector_name": "shop",
            "data_collections": "a.b,a.c",
            "total_rows_scanned": "100",
            "status": "EMPTY",
        },
        "timestamp": 1695817046353,
    }


def test_every_channel_gets_every_notification_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    appended: list[dict[str, Any]] = []
    called: list[str] = []
    notifier = Notifier(
        ["log", "file", "eventlog"],
        connector="shop",
        file=tmp_path / "notes",
        append_control=lambda value, _done: appended.append(value),
        callbacks=[lambda n: called.append(n.dump_id)],
    )
    notifier.notify(note(1))  # before the start
    notifier.start()
    for number in range(2, 50):
        notifier.notify(note(number))
    notifier.close()
    names = [f"d{number}" for number in range(1, 50)]
    assert called == names
    assert [value["notification"]["id"] for value in appended] == names
    assert {value["type"] for value in appended} == {"notification"}
    assert [json.loads(row)["id"] for row in (tmp_path / "notes").read_text().splitlines()] == names
    lines = [r for r in caplog.records if r.name == "tidelog.notifications"]
    assert [json.loads(record.getMessage())["id"] for record in lines] == names


def test_channels_that_were_not_asked_for_get_nothing(tmp_path: Path) -> None:
    appended: list[Any] = []
    notifier = Notifier(
        [],
        connector="shop",
        file=tmp_path / "notes",
        append_control=lambda *arguments: appended.append(arguments),
    )
    notifier.start()
    notifier.notify(note())
    notifier.close()
    assert not (tmp_path / "notes").exists()
    assert appended == []


def test_channel_that_fails_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def fails(_note: Notification) -> None:
        raise ValueError("s3cret")

    notifier = Notifier(
        ["file"],
        connector="shop",
        file=Path("/proc/nowhere/notes"),
        callbacks=[fails, lambda n: called.append(n.dump_id)],
    )
    notifier.start()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            notifier.notify(note(number))
            time.sleep(0.05)
        notifier.close()
    assert called == ["d0", "d1", "d2"]
    assert len(caplog.records) == 2  # one for each channel
    assert "s3cret" not in caplog.text


def test_full_disk_stops_nothing_and_no_line_is_torn(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.symlink_to("/dev/full")
    notifier = Notifier(["file"], connector="shop", file=file)
    notifier.start()
    notifier.notify(note(1))
    deadline = time.monotonic() + 10
    while not notifier._failing:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    file.unlink()
    file.write_text('{"half of a li')
    notifier.notify(note(2))
    notifier.close()
    assert json.loads(file.read_text().splitlines()[1])["id"] == "d2"


def test_slow_channel_does_not_hold_up_the_dump() -> None:
    release = threading.Event()
    notifier = Notifier([], connector="shop", callbacks=[lambda _n: release.wait(20) and None])
    notifier.start()
    began = time.monotonic()
    for number in range(12_000):  # more than may wait
        notifier.notify(note(number))
    assert time.monotonic() - began < 5
    release.set()
    notifier.close()


def test_history_is_bounded_and_may_be_followed() -> None:
    notifier = Notifier([], connector="shop")
    for number in range(1, NOTIFICATIONS_KEPT + 11):
        notifier.notify(note(number))
    found = notifier.history()
    assert [entry["number"] for entry in found] == list(range(11, NOTIFICATIONS_KEPT + 11))
    assert [e["id"] for e in notifier.history(NOTIFICATIONS_KEPT + 7, limit=2)] == [
        "d1008",
        "d1009",
    ]
    assert notifier.history(NOTIFICATIONS_KEPT + 10) == []


async def _told(*_told: object) -> None: ...


def test_callbacks_that_are_coroutine_functions_are_refused(tmp_path: Path) -> None:
    config = parse_config(
        "source: {kind: postgres, url: 'postgresql://u@127.0.0.1:1/d'}\nlog: {path: log}",
        "tidelog.yaml", tmp_path, {},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="on_notification: a coroutine"):
        Capture(config, on_notification=_told)
    with pytest.raises(ConfigError, match="on_status: a coroutine"):
        CaptureGroup([config], on_status=_told)
    for run in (run_capture, run_both):
        with pytest.raises(ConfigError, match="on_status: a coroutine"):
            run(config, on_status=_told, stop_event=threading.Event())


def test_callback_that_only_makes_a_coroutine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier([], connector="shop", callbacks=[lambda _note: _told()])
    notifier.start()
    notifier.notify(note())
    notifier.close()
    assert "notifications are lost: callback 0: WorkNotDoneError" in caplog.text
