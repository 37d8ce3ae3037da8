"""An engine as an iterator: what was asked beyond is done, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import (
    PATIENCE_S,
    Gates,
    committed,
    engine,
    no_threads_left,
    orders_log,
    until,
    versions,
)

from tidelog import AsyncEngine
from tidelog.app.async_engine.engine import STREAM_OPEN_BATCHES, EventStream
from tidelog.engine.events import Events
from tidelog.engine.ports import EndReachedError
from tidelog.errors import ConfigError, EventLogError

ROWS = list(range(50))


class Ending(Gates):
    """Ends where the log does; notes how far it was read."""

    polled = 0

    def poll(self, timeout_s: float) -> Events | None:
        events = super().poll(timeout_s)
        if events is None:
            raise EndReachedError
        self.polled += len(events)
        return events


class Kept:
    def read(self, task: str) -> None: ...

    def write(self, task: str, stored: Any) -> None: ...


def stream(task: Gates, **given: Any) -> EventStream:
    made = EventStream(lambda: core.run(), lambda: core.close(), lambda loop: core.use_loop(loop))
    core = engine(task, change_consumer=made.take, most_open_batches=STREAM_OPEN_BATCHES, **given)
    return made


def run(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_all_events_come_in_order_and_are_committed(tmp_path: Path, asynchronous: bool) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[int] = []
    events = stream(Ending(tmp_path, batch_size=7))

    async def loop() -> None:
        async for event in events:
            seen.append(event.after["id"])

    if asynchronous:
        run(loop())
    else:
        seen.extend(event.after["id"] for event in events)
    assert seen == ROWS
    assert committed(tmp_path) == built.writer.next_offset
    until(no_threads_left)  # the one that told its end is about to end


@pytest.mark.parametrize("how", ["break", "raise", "cancel", "done", "for"])
def test_a_loop_that_is_left_commits_what_was_asked_beyond(tmp_path: Path, how: str) -> None:
    orders_log(tmp_path, ROWS)
    events = stream(Gates(tmp_path, batch_size=7))

    async def loop() -> None:
        async with aclosing(aiter(events)) as given:
            async for event in given:
                if event.after["id"] == 9:
                    if how == "cancel":
                        await asyncio.Event().wait()
                    if how == "raise":
                        raise KeyError
                    if how == "done":
                        events.mark_processed(event)
                    break

    async def cancelled() -> None:
        task = asyncio.create_task(loop())
        while (committed(tmp_path) or 0) <= versions(tmp_path)[6]:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    if how == "for":
        for event in events:
            if event.after["id"] == 9:
                break
    elif how == "raise":
        with pytest.raises(KeyError):
            run(loop())
    else:
        run(cancelled() if how == "cancel" else loop())
    until(no_threads_left)
    reached = committed(tmp_path)
    if how == "cancel":  # it may have come before the loop was at that event
        assert versions(tmp_path)[6] < (reached or 0) <= versions(tmp_path)[9]
    else:
        assert reached == versions(tmp_path)[10 if how == "done" else 9]


def test_an_iterator_that_is_dropped_closes_the_engine(tmp_path: Path) -> None:
    orders_log(tmp_path, ROWS)

    async def loop() -> None:
        async for event in stream(Gates(tmp_path)):
            if event.after["id"] == 3:
                break
        while not await asyncio.to_thread(no_threads_left):
            await asyncio.sleep(0.002)

    run(loop())
    assert committed(tmp_path) == versions(tmp_path)[3]


def test_a_slow_loop_is_not_read_far_ahead_of_and_what_it_did_is_committed(tmp_path: Path) -> None:
    orders_log(tmp_path, ROWS)
    task = Ending(tmp_path, batch_size=10)

    async def loop() -> None:
        async for event in stream(task):
            if event.after["id"] == 12:
                # The first batch is committed while the loop is within the second.
                while (committed(tmp_path) or 0) <= versions(tmp_path)[9]:
                    await asyncio.sleep(0.002)
                assert task.polled <= 30
                break

    run(loop())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_ends_the_engine_is_raised_out_of_the_loop(tmp_path: Path, asynchronous: bool) -> None:
    task = Gates(tmp_path)
    orders_log(tmp_path, ROWS)
    events = stream(task)

    async def loop() -> None:
        async for _event in events:
            task.fails_at["poll"] = [EventLogError("gone")]

    def plain() -> None:
        for _event in events:
            task.fails_at["poll"] = [EventLogError("gone")]

    with pytest.raises(EventLogError, match="gone"):
        run(loop()) if asynchronous else plain()
    until(no_threads_left)  # the one that told its end is about to end


def test_transforms_run_on_the_loop_of_the_iteration(tmp_path: Path) -> None:
    orders_log(tmp_path, ROWS)
    loops: set[Any] = set()
    seen: list[int] = []

    async def double(event: Any) -> Any:
        loops.add(asyncio.get_running_loop())
        return [event, event]

    async def loop() -> None:
        async for event in stream(Ending(tmp_path), transforms=[double]):
            seen.append(event.after["id"])
        assert loops == {asyncio.get_running_loop()}

    run(loop())
    assert seen == [row for row in ROWS for _ in range(2)]


def test_an_engine_without_a_consumer_is_iterated_over_and_one_with_is_not() -> None:
    config = {
        "source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"},
        "log": {"path": "/nowhere"},
    }
    with pytest.raises(ConfigError, match="without consumer"):
        AsyncEngine(config, consumer=print).events()
    silent = AsyncEngine(config)
    for call in (silent.run, silent.__enter__, lambda: run(silent.arun())):
        with pytest.raises(ConfigError, match="or iterate over"):
            call()
    with pytest.raises(ConfigError, match="starting_offset"):
        AsyncEngine(config, starting_offset="newest")  # type: ignore[arg-type]
    assert isinstance(silent.events(), EventStream)
    for given, told in [
        ({"group": 0}, "group: 0"),
        ({"group": 4, "offsets": Kept()}, "give no offsets"),
        ({"retry_on": ("ValueError",)}, "retry_on: 'ValueError' is no class"),
        ({"errors_max_retries": -2}, "engine.errors_max_retries: .*greater than or equal to -1"),
        (
            {"offset_commit_policy": "never"},
            "offset_commit_policy: .*'always' or 'periodic'",
        ),
        ({"errors_retry_delay_max_ms": 1}, "errors_retry_delay_max_ms is below"),
    ]:
        with pytest.raises(ConfigError, match=told):
            AsyncEngine(config, **given)  # type: ignore[arg-type]
    assert AsyncEngine(config, group=4).events() is not None
