"""What a task gives when its capture has ended by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import PATIENCE_S, Tasks, committed, engine, orders_log, running, until

from tidelog.app.async_engine import capture_task
from tidelog.app.async_engine.capture_task import CaptureTask
from tidelog.config import Config, parse_config
from tidelog.engine.events import Event
from tidelog.engine.ports import Committer
from tidelog.errors import GapError, IncompleteDumpError, SourceError

LACKS = "the initial dump lacks public.keyless (no key)"


def task_of(path: Path, error: Exception | None, name: str = "engine") -> CaptureTask:
    """Over a log that is there; what captured it ends at once, so."""
    config = Config.model_validate(
        {
            "source": {
                "kind": "postgres",
                "url": "postgresql://nowhere/shop",
                "snapshot": "initial_only",
            },
            "log": {"path": str(path)},
            "state": {"url": f"sqlite:///{path}.db"},
        }
    )
    task = CaptureTask(config, name, batch_size=4)

    def run() -> None:
        task._on_status({"role": "leading"})
        if error is not None:
            raise error

    task.capture.run = run  # type: ignore[method-assign]
    return task


def test_what_is_there_is_delivered_before_what_it_lacks_is_raised(tmp_path: Path) -> None:
    built = orders_log(tmp_path / "log", range(10))
    seen: list[int] = []
    told: list[Any] = []
    for _ in range(2):  # nothing is left for the second, but the error is
        core = engine(
            task_of(tmp_path / "log", IncompleteDumpError(LACKS)),
            consumer=lambda event: seen.append(event.after["id"]),
            on_completion=lambda *completion: told.append(completion),
        )
        with running(core) as run:
            error = run.join()
        assert isinstance(error, IncompleteDumpError)
        assert seen == list(range(10))
        assert committed(tmp_path / "log") == built.writer.next_offset
    assert [(done, text) for done, text, _ in told] == [(False, f"the engine failed: {LACKS}")] * 2


def test_other_tasks_deliver_theirs_first(tmp_path: Path) -> None:
    """Else the same one would end them at every start."""
    names = ["lacks", "waits"]
    for name in names:
        orders_log(tmp_path / name, range(5))
    errors = [IncompleteDumpError(LACKS), None]
    tasks = [
        task_of(tmp_path / name, error, name) for name, error in zip(names, errors, strict=True)
    ]
    whole = threading.Event()
    seen: list[str] = []

    def consume(event: Event) -> None:
        if threading.current_thread().name.endswith("waits"):
            assert whole.wait(PATIENCE_S)
        seen.append(threading.current_thread().name)

    with running(engine(Tasks(*tasks), consumer=consume)) as run:
        until(lambda: len(seen) == 5)
        assert not tasks[0]._thread.is_alive()  # type: ignore[union-attr]
        whole.set()
        assert isinstance(run.join(), IncompleteDumpError)
    assert len(seen) == 10


def test_it_is_raised_if_the_engine_is_closed_before(tmp_path: Path) -> None:
    orders_log(tmp_path / "log", range(5))
    held: list[Any] = []

    def hold(events: Any, committer: Committer) -> None:
        held.append(events)

    core = engine(task_of(tmp_path / "log", IncompleteDumpError(LACKS)), change_consumer=hold)
    with running(core) as run:
        until(lambda: len(held) == 2)
    assert isinstance(run.error, IncompleteDumpError)
    assert committed(tmp_path / "log") == 0


@pytest.mark.parametrize("error", [GapError("gone"), ValueError("a fault")])
def test_anything_else_that_ends_capture_ends_the_engine(tmp_path: Path, error: Exception) -> None:
    orders_log(tmp_path / "log", range(5))
    with running(engine(task_of(tmp_path / "log", error), consumer=print)) as run:
        assert run.join() is error


def test_failures_in_a_row_are_counted_until_capture_leads_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(capture_task.time, "monotonic", lambda: now[0])
    config = parse_config(
        "source: {kind: postgres, url: 'postgresql://u@127.0.0.1:1/d'}\nlog: {path: log}",
        "tidelog.yaml", tmp_path, {},
    )  # fmt: skip

    def failure(*roles: str) -> BaseException | None:
        task = CaptureTask(config, "engine", batch_size=1, most_retries=2)
        for role in roles:
            if role == "led for long":
                now[0] += 11
            else:
                task._on_status({"role": role, "reason": "away"})
        return task._failure

    assert failure("retrying", "retrying") is None
    assert isinstance(
        failure("retrying", "leading", "retrying", "leading", "retrying"), SourceError
    )
    led = ("leading", "led for long", "retrying")
    assert failure("retrying", "retrying", *led, "retrying") is None
    assert failure("retrying", "retrying", "standby", "retrying") is None
