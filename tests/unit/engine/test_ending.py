"""An engine ends in full, whatever fails on the way: all is stopped, and `wait` returns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
    versions,
)

from tidelog import AsyncEngine, Event
from tidelog.engine.core import EngineCore, EngineState
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import ConnectorEvent, EndReachedError
from tidelog.engine.workers import ThreadPool
from tidelog.errors import SourceError, TaskStartError


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From the call on none can be started whose name begins so."""
    start = threading.Thread.start

    def refuse(prefix: str) -> None:
        def limited(thread: threading.Thread) -> None:
            if thread.name.startswith(prefix):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)

    return refuse


def two(path: Path) -> list[Gates]:
    orders_log(path, range(3))
    return [Gates(path, f"task{number}") for number in range(2)]


def came_back(function: Callable[[], Any]) -> bool:
    """Did it, within a while?"""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE_S / 6)
    return not thread.is_alive()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_wait_returns_though_on_completion_ends_the_program(
    tmp_path: Path, error: type[BaseException]
) -> None:
    task = two(tmp_path)[0]

    def end(*_completion: Any) -> None:
        raise error

    core = engine(task, consumer=print, on_completion=end)
    run = Running(core)
    run.thread.start()
    assert core.wait_for_polling()
    assert came_back(core.close)
    assert came_back(core.wait_for_polling)
    assert isinstance(run.join(), error)
    assert core.state is EngineState.STOPPED


@pytest.mark.parametrize("when", ["started", "stopped"])
@pytest.mark.parametrize("of", ["task0", None])
def test_all_is_stopped_though_on_connector_ends_the_program(
    tmp_path: Path, when: Any, of: str | None
) -> None:
    tasks = two(tmp_path)
    connector = Tasks(*tasks)
    told: list[tuple[str, str | None]] = []

    def end(happened: ConnectorEvent) -> None:
        told.append((happened.what, happened.task))
        if happened == ConnectorEvent(when, of):
            raise SystemExit(3)

    core = engine(connector, consumer=print, on_connector=end)
    with running(core) as run:
        core.wait_for_polling()
    assert isinstance(run.error, SystemExit)
    assert connector.calls[-1] == "stop"
    for task in tasks:
        assert task.calls[-1:] in (["stop"], [])
        assert task.calls.count("start") == task.calls.count("stop")
    for what, who in told:
        assert told.count(("stopped", who)) == 1, what
    assert no_threads_left()


def test_a_pool_that_gets_no_thread_takes_no_job(no_thread: Callable[[str], None]) -> None:
    pool = ThreadPool(2)
    ran: list[int] = []
    go = threading.Event()
    first = pool.submit(go.wait)
    no_thread("tidelog-records-")
    with pytest.raises(RuntimeError, match="can't start"):
        pool.submit(lambda: ran.append(1))
    go.set()
    assert first.result(PATIENCE_S)
    assert pool.close(PATIENCE_S)
    assert ran == []


@pytest.mark.parametrize("thread", ["tidelog-stop-", "tidelog-"])
def test_at_the_limit_of_threads_all_is_stopped(
    tmp_path: Path, no_thread: Callable[[str], None], thread: str
) -> None:
    tasks = two(tmp_path)
    connector = Tasks(*tasks)
    taken: list[Any] = []

    def consume(event: Any) -> None:
        taken.append(event)
        if len(taken) == 6:
            no_thread(thread)
            raise ValueError

    core = engine(
        connector, consumer=consume, transforms=[lambda event: event], record_processing_threads=64
    )
    with running(core) as run:
        assert run.join() is not None
    assert [task.calls.count("stop") for task in tasks] == [1, 1]
    assert connector.calls[-1] == "stop"
    until(no_threads_left)


def test_the_first_job_gets_no_thread_and_all_is_stopped(
    tmp_path: Path, no_thread: Callable[[str], None]
) -> None:
    tasks = two(tmp_path)
    no_thread("tidelog-records-")
    with running(engine(Tasks(*tasks), consumer=print, transforms=[lambda event: event])) as run:
        error = run.join()
    assert isinstance(error, RuntimeError)
    assert str(error) == "can't start new thread"
    assert [task.calls.count("stop") for task in tasks] == [1, 1]
    assert no_threads_left()


def test_all_is_stopped_though_what_is_closed_with_the_pool_raises(tmp_path: Path) -> None:
    task = two(tmp_path)[0]
    connector = Tasks(task)
    calls: list[str] = []

    class Failing:
        jobs_are_dear = False

        def open(self) -> None:
            calls.append(f"opened after {connector.calls}")

        def call(self, events: Any) -> Any: ...

        def close(self) -> None:
            calls.append("closed")
            raise OSError("no")

    class Nothing:
        def process_records(self, records: Any) -> None: ...

    core = EngineCore(connector, EngineOptions(), lambda *_: Nothing(), workers=Failing())
    with running(core) as run:
        assert core.wait_for_polling()
    assert isinstance(run.error, OSError)
    assert calls == ["opened after []", "closed"]
    assert task.calls[-1] == "stop"
    assert connector.calls[-1] == "stop"
    assert no_threads_left()


def test_it_ends_by_itself_when_all_tasks_have_given_everything(tmp_path: Path) -> None:
    """Not before what a consumer marks later is marked."""
    tasks = two(tmp_path)
    tasks[0].fails_at["poll"] = [EndReachedError()]
    told: list[Any] = []
    held: list[Any] = []

    def hold(events: Any, committer: Any) -> None:
        held.append((events, committer))
        tasks[1].fails_at["poll"] = [EndReachedError()]

    core = engine(
        Tasks(*tasks),
        change_consumer=hold,
        on_completion=lambda *completion: told.append(completion),
        offset_commit_policy="periodic",
    )
    with running(core) as run:
        until(lambda: held and not tasks[1].fails_at["poll"])
        time.sleep(0.1)
        assert core.state is EngineState.POLLING_TASKS
        [(events, committer)] = held
        committer.mark_processed(events)
        assert run.join() is None
    assert core.state is EngineState.STOPPED
    assert told == [(True, "all events were delivered", None)]
    assert f"commit {events.end}" in tasks[1].calls
    assert no_threads_left()


def test_a_commit_that_fails_at_the_end_of_everything_is_raised(tmp_path: Path) -> None:
    task = two(tmp_path)[0]

    def take(events: Any, committer: Any) -> None:
        committer.mark_processed(events)
        task.fails_at |= {"poll": [EndReachedError()], "commit": [ValueError()]}

    with running(engine(task, change_consumer=take)) as run:
        assert isinstance(run.join(), ValueError)


def hangs(event: Event) -> None:
    """A consumer that does not come back."""
    HELD.wait(60)


async def hangs_as_a_coroutine(event: Event) -> None:
    await asyncio.sleep(60)


HELD = threading.Event()


@pytest.mark.parametrize("consumer", [hangs, hangs_as_a_coroutine, partial(hangs)])
def test_a_consumer_that_hangs_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, consumer: Any
) -> None:
    orders_log(tmp_path, [1, 2])
    HELD.clear()
    made = engine(Gates(tmp_path), consumer=consumer, polling_shutdown_timeout_ms=50)
    with running(made):
        until(lambda: made._tasks and made._tasks[0]._processing)
        made.close()
    HELD.set()
    named = "hangs_as_a_coroutine" if consumer is hangs_as_a_coroutine else "hangs"
    [told] = [each.getMessage() for each in caplog.records if "did not return" in each.message]
    assert f"test_ending.{named} did not return" in told
    assert f"version {versions(tmp_path)[0]} of public.orders" in told


def test_a_source_that_is_away_is_named_and_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    config = {
        "source": {"kind": "postgres", "url": "postgresql://u@127.0.0.1:1/d"},
        "log": {"path": str(tmp_path / "log")},
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "engine": {"task_management_timeout_ms": 3000},
    }
    made = AsyncEngine(config, consumer=hangs)
    with pytest.raises(TaskStartError, match=r"after 3000 ms: .*connect to PostgreSQL at 127"):
        made.run()
    told: list[Any] = []
    config["engine"] = {"errors_max_retries": 1}
    bounded = AsyncEngine(config, consumer=hangs, on_status=told.append)
    with pytest.raises(SourceError, match=r"2 times in a row .* connect to PostgreSQL at 127"):
        bounded.run()
    assert [each["role"] for each in told] == ["retrying"] * len(told)
    assert len(told) >= 2
