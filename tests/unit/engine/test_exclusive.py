"""Engines of one name: one gives events, the others stand by, and go on where it has committed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import committed, orders_log, until

from tidelog.app.async_engine import capture_task
from tidelog.app.async_engine.capture_task import ExclusiveTask, GroupMembers
from tidelog.errors import ConfigError, LeaseLostError
from tidelog.state.opening import open_state

HOLDER = """
import sys, threading, time
from tidelog.app.async_engine.capture_task import ExclusiveTask
from tidelog.app.async_engine.capture_task import GroupMembers
from tidelog.state.opening import open_state

path, state = sys.argv[1:]
members = GroupMembers(lambda: open_state(state), "mail", 3600.0)
task = ExclusiveTask(path, "mail", members, batch_size=4)
task.start(threading.Event())
task.commit(task.poll(5.0).end)
task.poll(5.0)
print("has events in hand", flush=True)
time.sleep(3600)
"""


def state_of(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


def task(tmp_path: Path, lease_s: float = 3600.0, **options: int) -> ExclusiveTask:
    members = GroupMembers(partial(open_state, state_of(tmp_path)), "mail", lease_s)
    return ExclusiveTask(str(tmp_path / "log"), "mail", members, **options)


def started(tmp_path: Path, lease_s: float = 3600.0, **options: int) -> ExclusiveTask:
    made = task(tmp_path, lease_s, **options)
    made.start(threading.Event())
    return made


def ids(given: ExclusiveTask, timeout_s: float = 0.0) -> list[int]:
    events = given.poll(timeout_s)
    return [] if events is None else [event.after["id"] for event in events]


def next_ids(given: ExclusiveTask) -> list[int]:
    """Once it has the name."""
    found: list[int] = []
    until(lambda: found.extend(ids(given)) or found)
    return found


@pytest.fixture
def log(tmp_path: Path) -> BuiltLog:
    return orders_log(tmp_path / "log", range(8))


def test_one_stands_by_and_continues_where_the_other_has_committed(
    log: BuiltLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = started(tmp_path, batch_size=4)
    second = started(tmp_path, 1.0)
    assert "stands by" in caplog.text
    assert not second.has_events
    events = first.poll(0.0)
    assert events is not None
    assert [event.after["id"] for event in events] == [0, 1, 2, 3]
    assert second.poll(0.0) is None
    first.commit(events.end)
    assert first.committed() == events.end
    first.stop()
    assert next_ids(second) == [4, 5, 6, 7]
    second.commit(log.writer.next_offset)
    second.stop()
    assert committed(tmp_path / "log", "mail") == log.writer.next_offset
    third = started(tmp_path)
    assert ids(third) == []
    third.stop()


def test_one_that_is_killed_is_succeeded_at_once(
    log: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lease that does not end, and looks every 0.3 s.
    monkeypatch.setattr(capture_task, "_BEATS", 12_000)
    given = [str(tmp_path / "log"), state_of(tmp_path)]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, *given], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        standby = started(tmp_path)
        assert ids(standby) == []
        holder.send_signal(signal.SIGSTOP)
        assert ids(standby) == []  # its lease runs
        holder.kill()
        holder.wait()
        assert next_ids(standby) == [4, 5, 6, 7]  # what was in hand comes again
        standby.stop()
    finally:
        holder.kill()
        holder.wait()


def test_one_that_was_taken_for_dead_gives_and_commits_nothing_more(
    log: BuiltLog, tmp_path: Path
) -> None:
    frozen = started(tmp_path, batch_size=2)
    early = frozen.poll(0.0)
    assert early is not None
    successor = started(tmp_path, 1.0)
    until(lambda: successor.poll(0.0) is not None)
    successor.commit(log.writer.next_offset)
    with pytest.raises(LeaseLostError):
        frozen.commit(early.end)
    with pytest.raises(LeaseLostError):
        frozen.poll(0.0)
    assert committed(tmp_path / "log", "mail") == log.writer.next_offset
    successor.stop()
    frozen.stop()


def test_a_name_is_of_a_group_or_of_one(log: BuiltLog, tmp_path: Path) -> None:
    opened = partial(open_state, state_of(tmp_path))
    alone = started(tmp_path, 1.0)
    with pytest.raises(ConfigError, match=r"named mail divide the keys into 1 .*group"):
        GroupMembers(opened, "mail", 1.0).join(4, "log", 0)
    alone.stop()
    group = GroupMembers(opened, "mail", 0.2)
    group.join(4, log.log.generation, 0)  # nobody is there, and the document has no progress
    group.leave()


def test_what_waits_does_not_touch_the_progress(log: BuiltLog, tmp_path: Path) -> None:
    """A standby that registered what it read would move the other's progress back."""
    first = started(tmp_path, batch_size=4)
    standby = task(tmp_path)
    events = first.poll(0.0)
    assert events is not None
    first.commit(events.end)
    standby.start(threading.Event())
    assert committed(tmp_path / "log", "mail") == events.end
    for each in (standby, first):
        each.stop()
