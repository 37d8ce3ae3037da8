"""Processes that process records: what comes of them when something is wrong with one."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import PATIENCE_S, Gates, orders_log

from tidelog.engine.events import Event, Events
from tidelog.engine.options import EngineOptions, Retries, StoppingError
from tidelog.engine.ports import Message
from tidelog.engine.workers import EventWork, WorkerChain, WorkerProcesses
from tidelog.errors import ConfigError, ConsumerError, TidelogError

SECRET = "S3cret-value"


class OwnError(TidelogError):
    """Of a program: what pickle calls it with is not what it takes."""

    def __init__(self, row: str, column: str) -> None:
        super().__init__(f"{row} in {column}")


class Refusing:
    """A serializer that raises at the first event, and then no more."""

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._calls = 0

    def serialize(self, events: Events) -> list[Message]:
        self._calls += 1
        if self._calls > 1:
            return [Message(None, b"", None, "t", event) for event in events]
        raise OwnError(SECRET, "note") if self._own else ConfigError("mend this")


class Unreadable:
    """What can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (SECRET,)


def with_lock(event: Event) -> Event:
    """Its first event gets a value that can't be pickled."""
    assert event.after is not None
    note = threading.Lock() if event.after["id"] == 0 else "fine"
    return event.replace(after={**event.after, "note": note})


def with_unreadable(event: Event) -> Event:
    assert event.after is not None
    note = Unreadable() if event.after["id"] == 0 else "fine"
    return event.replace(after={**event.after, "note": note})


class Big:
    """A transform that does nothing, of more bytes than a pipe takes."""

    def __init__(self) -> None:
        self.bytes = bytes(1 << 20)

    def __call__(self, event: Event) -> Event:
        return event


def polled(path: Path, rows: int) -> Events:
    orders_log(path, range(rows))
    task = Gates(path)
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return events


@contextmanager
def one_process(**work: Any) -> Iterator[WorkerProcesses]:
    given = {"transforms": (), "serializer": None, "tolerant": False, "consumer": None, **work}
    processes = WorkerProcesses(1, EventWork(options=EngineOptions(), **given))
    try:
        yield processes
    finally:
        processes.close()


def call(processes: WorkerProcesses, events: Events) -> list[int]:
    return [number for number, *_ in processes.call(events).results]


@pytest.mark.parametrize("own", [True, False])
def test_an_error_of_the_programs_own_is_reported_without_its_text(
    tmp_path: Path, own: bool
) -> None:
    events = polled(tmp_path, 3)
    with one_process(serializer=Refusing(own=own)) as processes:
        with pytest.raises(ConsumerError if own else ConfigError) as raised:
            call(processes, events)
        assert str(raised.value) == ("a worker raised OwnError" if own else "mend this")
        [process] = multiprocessing.active_children()
        assert call(processes, events) == [0, 1, 2]
        assert multiprocessing.active_children() == [process]


@pytest.mark.parametrize("transform", [with_lock, with_unreadable])
def test_what_can_not_come_back_fails_its_job_alone(tmp_path: Path, transform: Any) -> None:
    events = polled(tmp_path, 3)
    with one_process(transforms=[transform]) as processes:
        with pytest.raises(ConsumerError, match="can't be pickled") as raised:
            call(processes, events)
        assert SECRET not in str(raised.value)
        [process] = multiprocessing.active_children()
        assert call(processes, Events.of(events[1:], events.end)) == [1, 2]
        assert multiprocessing.active_children() == [process]


def test_one_that_dies_as_it_begins_keeps_nobody_waiting(tmp_path: Path) -> None:
    events = polled(tmp_path, 3)
    false = shutil.which("false")
    assert false is not None
    resource_tracker.ensure_running()  # it is begun with the same program
    program = spawn.get_executable()
    outcome: Future[list[int]] = Future()

    def run() -> None:
        try:
            outcome.set_result(call(processes, events))
        except BaseException as error:  # noqa: BLE001 - what the test asks for
            outcome.set_exception(error)

    spawn.set_executable(false)
    try:
        with one_process(transforms=[Big()]) as processes:
            caller = threading.Thread(target=run, daemon=True)
            caller.start()
            caller.join(PATIENCE_S / 6)
            closer = threading.Thread(target=processes.close, daemon=True)
            closer.start()
            closer.join(PATIENCE_S / 6)
            assert not closer.is_alive()
            assert isinstance(outcome.exception(PATIENCE_S), ConsumerError | StoppingError)
    finally:
        spawn.set_executable(program)


def test_one_that_can_not_be_started_leaves_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = polled(tmp_path, 3)

    def no_more(_process: Any) -> None:
        raise BlockingIOError("no more processes")

    with one_process(transforms=[Big()]) as processes:
        with monkeypatch.context() as patched:
            patched.setattr(multiprocessing.context.SpawnProcess, "start", no_more)
            with pytest.raises(BlockingIOError):
                call(processes, events)
        assert call(processes, events) == [0, 1, 2]


@pytest.mark.parametrize(("rows", "groups"), [(40, 8), (11, 8), (3, 3), (1, 1)])
def test_events_in_no_order_are_given_away_as_slices(
    tmp_path: Path, rows: int, groups: int
) -> None:
    events = polled(tmp_path, rows)
    retries = Retries(EngineOptions(), threading.Event())
    with one_process() as processes:
        chain = WorkerChain((), None, retries, None, processes)
        found = chain.groups([[event] for event in events], 2)
    assert len(found) == groups
    assert [event.number for group in found for event in group] == list(range(rows))
    assert {len(Events.of(group, events.end).parts) for group in found} == {1}
    sizes = {len(group) for group in found}
    assert max(sizes) - min(sizes) <= 1


TYPED = """
from tidelog.engine.options import EngineOptions
from tidelog.engine.workers import WorkerProcesses
from tidelog.engine.workers import EventWork

def change(event): return event

WorkerProcesses(1, EventWork([change], None, EngineOptions(), False, None))
"""


@pytest.mark.parametrize("how", [["-c", TYPED], ["-"]], ids=["-c", "typed in"])
def test_functions_that_were_typed_in_are_refused(how: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *how], input=TYPED, capture_output=True, text=True, timeout=60
    )
    assert "write them to a file" in done.stderr
