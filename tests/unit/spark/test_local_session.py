"""A session of this machine that starts when it is needed, and small work without it."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import OutputError, UsageError
from tidelog.spark.executor_jobs import is_small, run_on_executors
from tidelog.spark.sessions.connect import (
    by_jobs_alone,
    cancel_jobs,
    default_parallelism,
    is_open,
    session_beside,
    start_failure,
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


def test_small_work_opens_no_session() -> None:
    opened = Opened()
    session = session_beside(session_of(opened), {"a": "b"})
    assert run_on_executors(session, lambda n: n + 1, [1, 2], small=True) == [2, 3]
    assert default_parallelism(session) == 3
    cancel_jobs(session)
    assert not is_open(session)
    assert opened.count == 0


def test_what_is_small_work() -> None:
    session = session_of(Opened())
    assert is_small(session, 1000)
    assert not is_small(session, 1001)
    assert not is_small(session_of(Opened(), 0), 0)
    assert not is_small(object(), 0)  # type: ignore[arg-type] # a session of the user's own


def test_other_work_opens_the_session_once() -> None:
    opened = Opened()
    session = session_of(opened)
    for _ in range(2):
        with pytest.raises(AttributeError, match="createDataFrame"):
            run_on_executors(session, lambda n: n, [1], small=False)
    assert opened.count == 1


def test_tasks_have_copies_of_function_and_items() -> None:
    """As Spark's tasks have: a writer keeps its connection in itself."""
    seen: list[int] = []
    item = [0]

    def change(value: list[int]) -> int:
        value.append(1)
        seen.append(1)
        return len(value)

    assert run_on_executors(session_of(Opened()), change, [item, item], small=True) == [2, 2]
    assert (item, seen) == ([0], [])


def test_the_error_of_a_task_is_raised_when_all_have_ended(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def work(number: int) -> None:
        if number:
            raise OutputError("full")
        time.sleep(0.2)
        done.touch()

    with pytest.raises(OutputError, match="full"):
        run_on_executors(session_of(Opened()), work, [0, 1], small=True)
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


def test_a_session_that_did_not_start_has_the_error() -> None:
    opened = Opened(UsageError("spark.driver.memory: 4 elephants"))
    session = session_of(opened)
    assert start_failure(session) is None
    session.start()
    _await(lambda: start_failure(session) is not None)
    assert "elephants" in str(start_failure(session))
    assert not is_open(session)


def test_a_session_that_can_not_be_prepared_is_not_open() -> None:
    session: Any = LocalSession(Opened(), lambda _: 1 / 0, 1, DriverTasks(1))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            session.current()
        assert not is_open(session)


def test_no_core_is_one() -> None:
    """Work would be divided among none, and a batch be committed without its rows."""
    session: Any = LocalSession(Opened(), lambda _: None, 0, DriverTasks(1))
    assert default_parallelism(session) == 1


def test_the_exit_of_a_task_is_an_error() -> None:
    with pytest.raises(OutputError, match="SystemExit"):
        session_of(Opened()).tasks.run(lambda _: sys.exit(1), [1])


def test_work_that_needs_a_process_of_its_own_is_never_small() -> None:
    session = session_of(Opened())
    own = session_beside(by_jobs_alone(session), {})
    assert not is_small(own, 0)
    assert is_small(session, 1)


def test_a_session_is_prepared_with_what_changed_while_it_opened() -> None:
    prepared: list[bool] = []
    session: Any = LocalSession(
        Opened(), lambda _: prepared.append(session.is_open), 1, DriverTasks(1)
    )
    session.current()
    assert prepared == [True]


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[4]", 4), ("local[2,3]", 2), ("local[ 8 ]", 8), ("local[x]", 0)],
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
