"""A session of this machine that starts when it is needed, and little work without it."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import OutputError, UsageError
from tidelog.spark.executor_jobs import is_little, run_on_executors
from tidelog.spark.sessions.connect import (
    cancel_jobs,
    default_parallelism,
    is_open,
    session_beside,
)
from tidelog.spark.sessions.errors import output_error
from tidelog.spark.sessions.local import DriverTasks, LocalSession
from tidelog.spark.sessions.versions import local_cores


class Opened:
    """Opens no Spark, and counts how often it was asked to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return self


def session_of(opened: Any, small_bytes: int = 1000) -> Any:
    return LocalSession(opened, lambda _: None, 3, DriverTasks(small_bytes))


def test_little_work_opens_no_session() -> None:
    opened = Opened()
    session = session_beside(session_of(opened), {"a": "b"})
    assert run_on_executors(session, lambda n: n + 1, [1, 2], size_bytes=1000) == [2, 3]
    assert default_parallelism(session) == 3
    cancel_jobs(session)
    assert not is_open(session)
    assert opened.count == 0


def test_what_is_little_work() -> None:
    session = session_of(Opened())
    assert is_little(session, 1000)
    assert not is_little(session, 1001)
    assert not is_little(session_of(Opened(), 0), 0)
    assert not is_little(object(), 0)  # type: ignore[arg-type] # a session of the user's own


def test_other_work_opens_the_session_once() -> None:
    opened = Opened()
    session = session_of(opened)
    for _ in range(2):
        with pytest.raises(AttributeError, match="createDataFrame"):
            run_on_executors(session, lambda n: n, [1], size_bytes=1001)
    assert opened.count == 1


def test_tasks_have_copies_of_function_and_items() -> None:
    """As Spark's tasks have: a writer keeps its connection in itself."""
    seen: list[int] = []
    item = [0]

    def change(value: list[int]) -> int:
        value.append(1)
        seen.append(1)
        return len(value)

    assert run_on_executors(session_of(Opened()), change, [item, item], size_bytes=1) == [2, 2]
    assert (item, seen) == ([0], [])


def test_the_error_of_a_task_is_raised_when_all_have_ended(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def work(number: int) -> None:
        if number:
            raise OutputError("full")
        time.sleep(0.2)
        done.touch()

    with pytest.raises(OutputError, match="full"):
        run_on_executors(session_of(Opened()), work, [0, 1], size_bytes=1)
    assert done.exists()


def test_cancelled_work_is_not_waited_for() -> None:
    session = session_of(Opened())
    begun, end = threading.Event(), threading.Event()

    def work(_: int) -> None:
        begun.set()
        end.wait()

    def cancel() -> None:
        begun.wait()
        cancel_jobs(session)

    threading.Thread(target=cancel).start()
    try:
        with pytest.raises(OutputError, match="cancelled"):
            session.tasks.run(work, [1])
    finally:
        end.set()


def test_a_session_that_does_not_start_is_an_error_of_little_work_too() -> None:
    """Until it starts: a mistake in `pipeline.conf` would show only at a large batch."""
    wrong = UsageError("spark.driver.memory: 4 elephants")
    opened = Opened(wrong, wrong)
    session = session_of(opened)
    session.start()
    _await(lambda: opened.count == 1)
    for count in (2, 3):
        _await(lambda: session._failure is not None)
        with pytest.raises(UsageError, match="elephants"):
            is_little(session, 1)
        _await(lambda count=count: opened.count == count)
    _await(lambda: session.is_open)
    assert is_little(session, 1)


def test_a_session_is_prepared_with_what_changed_while_it_opened() -> None:
    prepared: list[bool] = []
    session: Any = LocalSession(
        Opened(), lambda _: prepared.append(session.is_open), 1, DriverTasks(1)
    )
    session.current()
    assert prepared == [True]


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[4]", 4), ("local[2,3]", 2), ("local[ 8 ]", 8)]
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert local_cores(master) == cores


def _await(condition: Any) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_error_of_a_task_here_is_described_by_its_line_and_not_by_its_values() -> None:
    def work(_: int) -> None:
        raise KeyError("a value of a row")

    with pytest.raises(KeyError) as raised:
        session_of(Opened()).tasks.run(work, [1])
    said = str(output_error("a batch", raised.value))
    assert re.fullmatch(r"a batch failed with KeyError \(test_local_session.py, line \d+\)", said)
