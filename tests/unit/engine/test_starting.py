"""All tasks start, or none polls; and nothing is left of those that had started."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.support.engines import (
    PATIENCE_S,
    Gates,
    Running,
    Tasks,
    engine,
    no_threads_left,
    orders_log,
    running,
    until,
)

from tidelog.engine.core import EngineState
from tidelog.engine.ports import ConnectorEvent
from tidelog.errors import ConfigError, SourceError, TaskStartError

TIME_MS = 700
"""Enough for the tasks that do not hang, on a busy machine, too."""


def four(path: Path) -> list[Gates]:
    orders_log(path, range(3))
    return [Gates(path, f"task{number}") for number in range(4)]


def test_one_of_four_tasks_fails_and_none_polls(tmp_path: Path) -> None:
    tasks = four(tmp_path)
    failure = SourceError("no such database")
    tasks[2].fails_at["start"] = [failure]
    tasks[3].may_start.clear()
    tasks[3].patient = False
    happened: list[ConnectorEvent] = []
    run = Running(engine(Tasks(*tasks), consumer=print, on_connector=happened.append))
    run.thread.start()
    until(lambda: ConnectorEvent("started", "task1") in happened)
    time.sleep(0.05)
    # It does not stop before the last start has come back.
    assert not any("stop" in task.calls for task in tasks)
    assert run.core.state is EngineState.STARTING_TASKS
    tasks[3].may_start.set()
    assert run.join() is failure
    assert [task.calls for task in tasks] == [["start", "stop"]] * 4
    assert no_threads_left()


def test_a_task_that_hangs_is_asked_to_give_up_and_none_polls(tmp_path: Path) -> None:
    tasks = four(tmp_path)
    tasks[1].may_start.clear()
    run = Running(engine(Tasks(*tasks), consumer=print, task_management_timeout_ms=TIME_MS))
    run.thread.start()
    error = run.join()
    assert isinstance(error, TaskStartError)
    assert f"task1 had not started after {TIME_MS} ms" in str(error)
    assert [task.calls for task in tasks] == [["start", "stop"]] * 4
    assert no_threads_left()


def test_a_start_that_comes_back_after_the_end_frees_what_it_took(tmp_path: Path) -> None:
    tasks = four(tmp_path)
    tasks[1].may_start.clear()
    tasks[1].patient = False
    run = Running(engine(Tasks(*tasks), consumer=print, task_management_timeout_ms=TIME_MS))
    run.thread.start()
    assert isinstance(run.join(), TaskStartError)
    assert tasks[1].calls == ["start"]
    assert [task.calls for task in tasks if task is not tasks[1]] == [["start", "stop"]] * 3
    tasks[1].may_start.set()
    until(no_threads_left)
    assert tasks[1].calls == ["start", "stop"]


def test_close_waits_for_tasks_that_start(tmp_path: Path) -> None:
    tasks = four(tmp_path)
    tasks[1].may_start.clear()
    tasks[1].patient = False
    run = Running(engine(Tasks(*tasks), consumer=print))
    run.thread.start()
    until(lambda: all("start" in task.calls for task in tasks))
    closer = threading.Thread(target=run.core.close)
    closer.start()
    until(lambda: run.core.state is EngineState.STOPPING)
    time.sleep(0.05)
    assert closer.is_alive()
    assert "stop" not in tasks[1].calls
    tasks[1].may_start.set()
    closer.join(30)
    assert run.join() is None
    assert [task.calls for task in tasks] == [["start", "stop"]] * 4
    assert no_threads_left()


def test_a_connector_without_tasks_is_refused() -> None:
    connector = Tasks()
    run = Running(engine(connector, consumer=print))
    run.thread.start()
    assert isinstance(run.join(), ConfigError)
    assert connector.calls == ["start", "tasks", "stop"]


@pytest.mark.parametrize("where", ["consumer", "callback"])
def test_close_from_inside_does_not_wait_for_itself(tmp_path: Path, where: str) -> None:
    orders_log(tmp_path, range(3))
    task = Gates(tmp_path)

    def consume(_event: object) -> None:
        if where == "consumer":
            core.close()

    def on_connector(happened: ConnectorEvent) -> None:
        if where == "callback" and happened == ConnectorEvent("started", "engine"):
            core.close()

    core = engine(task, consumer=consume, on_connector=on_connector)
    with running(core) as run:
        assert run.join() is None
    assert task.calls[-1] == "stop"
    assert no_threads_left()


def test_waiting_for_polling_ends_when_the_time_is_over(tmp_path: Path) -> None:
    orders_log(tmp_path, [0])
    task = Gates(tmp_path)
    task.may_start.clear()
    core = engine(task, consumer=print)
    with running(core):
        assert not core.wait_for_polling(0.01)
        task.may_start.set()
        assert core.wait_for_polling(PATIENCE_S)
