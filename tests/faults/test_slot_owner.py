"""One slot, one event log: a capture that others' configurations were copied from is left alone."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.history_run import CaptureProcess
from tests.faults.capture_fixture import Source
from tests.support.oracle.log import read_event_log
from tests.support.postgres import drop_slot

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

CONFIG = shutil.ignore_patterns("*.yaml", "capture-*.log")


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    directory = tmp_path / "first"
    directory.mkdir()
    made = Source(database, directory)
    made.write(1, 10)
    yield made
    made.close()


@pytest.fixture
def copied(source: Source, tmp_path: Path) -> Iterator[Copied]:
    made = Copied(source, tmp_path / "copied")
    yield made
    made.close()


class Copied:
    """The source's configuration with directories of its own."""

    def __init__(self, source: Source, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.config_file = directory / "tidelog.yaml"
        text = source.config_file.read_text()
        self.config_file.write_text(text.replace(str(source.directory), str(directory)))
        self.captures: list[CaptureProcess] = []

    def start(self) -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        self.captures.append(CaptureProcess(self.config_file, log_file, ""))
        return self.captures[-1]

    def close(self) -> None:
        for capture in self.captures:
            if not capture.died:
                capture.stop()


def checked(config_file: Path, level: str) -> str:
    """What `check` says of the slot."""
    findings = [each.to_dict() for each in app.check(load_config(config_file, {}))]
    [found] = [each for each in findings if each["check"] == "slot"]
    assert found["level"] == level, found
    message: str = found["message"]
    return message


def walsender(source: Source) -> int | None:
    row = source.sql.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    return None if row is None else row[0]


def test_a_copied_configuration_does_not_touch_the_capture_that_runs(
    source: Source, copied: Copied
) -> None:
    running = source.start()
    source.wait_led()
    reader = walsender(source)
    newcomer = copied.start()
    assert newcomer.wait(120) == 2
    said = newcomer.log_file.read_text()
    assert f"process {reader} " in said, said
    assert "source.slot" in said
    assert walsender(source) == reader, "the running capture was not disturbed"
    assert f"process {reader} " in checked(copied.config_file, "error")
    assert "is being read" in checked(source.config_file, "ok")
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    assert not running.died


def test_a_copied_configuration_does_not_move_the_slot_of_a_capture_that_is_down(
    source: Source, copied: Copied
) -> None:
    source.start()
    source.wait_led()
    source.captures[-1].stop()
    source.write(11, 20)
    newcomer = copied.start()
    assert "exists already, and this event log is new" in checked(copied.config_file, "error")
    assert newcomer.wait(120) == 2
    said = newcomer.log_file.read_text()
    assert "pg_drop_replication_slot" in said, said
    assert "source.slot" in said
    assert "pg_drop_replication_slot" in checked(copied.config_file, "error")
    assert "not being read" in checked(source.config_file, "ok")
    source.start()
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))


@pytest.mark.parametrize("changes", [False, True], ids=["idle", "behind"])
def test_a_copy_of_event_log_and_state_does_not_touch_the_capture_that_runs(
    source: Source, copied: Copied, changes: bool
) -> None:
    """It has the same generation, and the lease of a state store of its own."""
    running = source.start()
    source.wait_led()
    source.freeze(running)
    shutil.copytree(source.directory, copied.directory, dirs_exist_ok=True, ignore=CONFIG)
    reader = walsender(source)
    if changes:
        running.send(signal.SIGCONT)
        source.write(11, 20)
        source.wait_for(lambda: 20 in source.inserted())
    newcomer = copied.start()
    assert newcomer.wait(120) == 2, newcomer.log_file.read_text()
    said = newcomer.log_file.read_text()
    assert "into another copy of this event log" in said, said
    assert "pg_drop_replication_slot" not in said
    assert walsender(source) == reader, "the running capture was not disturbed"
    assert "another copy of this event log" in checked(copied.config_file, "error")
    assert "is being read" in checked(source.config_file, "ok")
    if not changes:
        running.send(signal.SIGCONT)
    source.write(21, 30)
    source.wait_for(lambda: 30 in source.inserted())
    assert not running.died


def test_an_event_log_that_was_moved_is_continued(source: Source, copied: Copied) -> None:
    source.start()
    source.wait_led()
    source.captures[-1].stop()
    source.write(11, 20)
    shutil.copytree(source.directory, copied.directory, dirs_exist_ok=True, ignore=CONFIG)
    moved = copied.start()
    source.wait_for(lambda: moved.died or walsender(source))
    config = load_config(copied.config_file, {})

    def come() -> bool:
        log = EventLog.open(event_log_path(config))
        found = read_event_log(log, log.head_offset, log.latest_offset())
        return [int(r.new["id"] or 0) for r in found if r.op == "I" and r.new] == [*range(11, 21)]

    source.wait_for(come)


def test_a_capture_that_died_before_it_wrote_its_place_continues_with_its_slot(
    source: Source,
) -> None:
    dead = source.start("slot.created:kill")
    assert dead.wait(120) != 0
    source.write(11, 20)
    source.start()
    source.wait_led()
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))


def test_a_slot_from_before_owners_were_noted_is_taken_on(source: Source) -> None:
    source.start()
    source.wait_led()
    source.captures[-1].stop()
    state = SqliteState(source.config.state.url)
    state.delete("source-slot")
    state.close()
    source.write(11, 20)
    source.start()
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))


def test_a_new_event_log_makes_its_slot_once_the_old_one_is_dropped(
    source: Source, copied: Copied
) -> None:
    """What the message says works."""
    source.start()
    source.wait_led()
    source.captures[-1].stop()
    assert copied.start().wait(120) == 2
    drop_slot(source.sql, "slot_" + source.dsn.rsplit("/", 1)[1])
    newcomer = copied.start()
    source.wait_for(lambda: newcomer.died or walsender(source))
    assert not newcomer.died, newcomer.log_file.read_text()
