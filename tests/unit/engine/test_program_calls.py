"""What a program calls on an engine that does not run, and what it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tidelog.app.async_engine.capture_task import CaptureTask
from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.config import as_config
from tidelog.engine.core import EngineState
from tidelog.errors import EngineStateError


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, Any]:
    return {
        "source": {"kind": "postgres", "dsn": "postgresql://nowhere.invalid/shop"},
        "log": {"path": str(tmp_path / "log")},
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
    }


def test_an_engine_is_closed_as_often_as_one_likes_and_never_starts_again(
    contents: dict[str, Any],
) -> None:
    ended: list[object] = []
    engine = AsyncEngine(contents, consumer=print, on_completion=lambda *how: ended.append(how))
    for _ in range(2):
        engine.close()
        engine.stop()
        assert engine.state is EngineState.STOPPED
    assert ended == [(True, "the engine was closed", None)]
    assert engine.stopping
    for call in (engine.start, engine.run, lambda: asyncio.run(engine.arun())):
        with pytest.raises(EngineStateError, match="make a new one"):
            call()


def test_each_status_has_the_role_and_why(contents: dict[str, Any]) -> None:
    told: list[dict[str, Any]] = []
    task = CaptureTask(as_config(contents), "engine", batch_size=1, on_status=told.append)
    retrying = {"role": "retrying", "reason": "no network", "leader": None}
    for given in (retrying, {"role": "leading", "reason": "", "leader": None}, {"dumps": []}):
        task._on_status(given)
    assert [(each["role"], each["reason"]) for each in told] == [
        ("retrying", "no network"),
        ("leading", ""),
        ("leading", ""),
    ]
    assert told[-1]["dumps"] == []
