"""Calls on an engine that does not run, and what its callbacks receive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import Gates, engine, running

from tidelog.app.async_engine.capture_task import CaptureTask
from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.app.capture.run import Capture
from tidelog.app.multi_capture import CaptureGroup
from tidelog.commands import StartDump
from tidelog.config import as_config
from tidelog.engine.core import EngineState
from tidelog.errors import ConfigError, EngineStateError, UsageError


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, Any]:
    return {
        "source": {"kind": "postgres", "url": "postgresql://nowhere.invalid/shop"},
        "log": {"path": str(tmp_path / "log")},
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
    }


def test_an_engine_is_closed_as_often_as_one_likes_and_never_starts_again(
    contents: dict[str, Any],
) -> None:
    ended: list[object] = []
    made = AsyncEngine(contents, consumer=print, on_completion=lambda *how: ended.append(how))
    for _ in range(2):
        made.close()
        made.stop()
        assert made.state is EngineState.STOPPED
    assert ended == [(True, "the engine was closed", None)]
    assert made.stopping
    for call in (made.start, made.run, lambda: asyncio.run(made.arun())):
        with pytest.raises(EngineStateError, match="make a new one"):
            call()


def test_each_status_has_the_role_and_why(contents: dict[str, Any]) -> None:
    received: list[dict[str, Any]] = []
    task = CaptureTask(as_config(contents), "engine", batch_size=1, on_status=received.append)
    retrying = {"role": "retrying", "reason": "no network", "leader": None}
    for given in (retrying, {"role": "leading", "reason": "", "leader": None}, {"dumps": []}):
        task._on_status(given)
    assert [(each["role"], each["reason"]) for each in received] == [
        ("retrying", "no network"),
        ("leading", ""),
        ("leading", ""),
    ]
    assert received[-1]["dumps"] == []


def test_what_is_no_function_is_refused(contents: dict[str, Any]) -> None:
    three: Any = 3
    for name in ("consumer", "change_consumer", "record_processor"):
        with pytest.raises(ConfigError, match=f"{name}: give a function, not a value of int"):
            AsyncEngine(contents, **{name: three})
    with pytest.raises(ConfigError, match="transforms: give a function"):
        AsyncEngine(contents, consumer=print, transforms=[three])
    with pytest.raises(ConfigError, match="on_status: give a function"):
        Capture(contents, on_status=three)
    with pytest.raises(ConfigError, match="give at least one"):
        CaptureGroup([])


def test_what_a_transform_wrongly_returns_is_in_the_message(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    built.flush()
    wrong: Any = 3
    core = engine(Gates(tmp_path), consumer=print, transforms=[lambda _event: wrong])
    with running(core) as run:
        error = run.join()
    assert "a transform returned int: it gives an Event" in str(error)


def test_what_was_not_started_is_not_waited_for(contents: dict[str, Any]) -> None:
    for made in (Capture(contents), AsyncEngine(contents, consumer=print)):
        with pytest.raises(UsageError, match="was not started"):
            made.wait()


def test_a_wrong_command_is_refused_with_a_sentence(contents: dict[str, Any]) -> None:
    wrong: Any = "public.p"
    with pytest.raises(UsageError, match=r"^StartDump: tables: Input should be a valid tuple$"):
        StartDump(dump_id="d", tables=wrong)
    with pytest.raises(UsageError, match=r"send takes a command of tidelog\.commands"):
        Capture(contents).send(wrong)
