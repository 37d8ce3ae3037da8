"""What may hang is asked beside the event loop: bounded, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tidelog.app.web import metrics_routes as metrics
from tidelog.control.channels import rest
from tidelog.control.channels.request_workers import BusyError, RequestWorkers, SilentError


def test_what_hangs_is_left_and_takes_its_place_until_it_ends() -> None:
    go_on, workers = threading.Event(), RequestWorkers(2)

    async def work() -> None:
        for _ in range(2):
            with pytest.raises(SilentError):
                await workers.run(lambda: go_on.wait(30), 0.05)
        begun = time.monotonic()
        with pytest.raises(BusyError, match=r"not started.*retry in some seconds"):
            await workers.run(lambda: 1, 30)
        assert time.monotonic() - begun < 5
        go_on.set()
        while True:
            try:
                assert await workers.run(lambda: 7, 30) == 7
            except BusyError:
                await asyncio.sleep(0.01)
            else:
                return

    asyncio.run(work())


def test_the_loop_continues_meanwhile() -> None:
    go_on, workers = threading.Event(), RequestWorkers(1)

    async def other() -> None:
        go_on.set()  # only a loop that is free comes here

    async def work() -> bool:
        waiting = asyncio.create_task(other())
        found = await workers.run(lambda: go_on.wait(30), 60)
        await waiting
        return found

    assert asyncio.run(work())


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError()])
def test_what_fails_is_raised(error: Exception) -> None:
    workers = RequestWorkers(1)

    def fail() -> None:
        raise error

    async def work() -> None:
        for _ in range(3):  # its place is free again
            with pytest.raises(type(error)) as raised:
                await workers.run(fail, 30)
            assert raised.value is error
        with pytest.raises(RuntimeError, match="SystemExit"):
            await workers.run(sys.exit, 30)

    asyncio.run(work())


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    ended, workers = threading.Event(), RequestWorkers(1)

    def late() -> None:
        time.sleep(0.2)
        ended.set()

    async def work() -> None:
        await workers.run(late, 0.01)

    with pytest.raises(SilentError):
        asyncio.run(work())
    assert ended.wait(30)  # by then the loop is closed


def test_a_process_without_threads_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = RequestWorkers(1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            with pytest.raises(BusyError, match="can't start a thread"):
                await workers.run(lambda: 1, 30)
        assert await workers.run(lambda: 7, 30) == 7

    asyncio.run(work())


def test_who_waits_for_status_or_metrics_keeps_nobody_from_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest, "THREADS", 2)
    monkeypatch.setattr(rest, "PATIENCE_S", 0.1)
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.1)
    go_on, token = threading.Event(), {"Authorization": "Bearer t0ken"}

    def slow() -> dict[str, Any]:
        go_on.wait(60)
        return {}

    surface: Any = SimpleNamespace(status=slow)
    readings: Any = SimpleNamespace(status=lambda: {}, samples=lambda: go_on.wait(60) and ())
    health = metrics.Health(readings, lambda: "h", ("t0ken",))
    app = rest.application(lambda: rest.Leadership(surface), "t0ken", health.routes())
    with TestClient(app) as client:
        try:
            for path, places in (("/status", 2), ("/metrics", metrics.THREADS)):
                kinds = [
                    client.get(path, headers=token).json()["error"]["kind"]
                    for _ in range(places + 1)
                ]
                assert kinds == ["NoAnswer"] * places + ["Busy"]
            busy = client.get("/status", headers=token)
            assert "retry in some seconds" in busy.json()["error"]["message"]
            for path in ("/health", "/health/live", "/health/ready"):
                assert client.get(path).status_code == 200
        finally:
            go_on.set()
