"""Functions that only make a coroutine or a generator: nothing is committed as if they had run."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import (
    COLUMNS,
    PATIENCE_S,
    Gates,
    committed,
    engine,
    no_threads_left,
    orders_log,
    running,
    until,
    versions,
)

from tidelog.engine.chain import DeadLetterFile
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer
from tidelog.errors import ConfigError, ConsumerError, EngineStateError


async def coroutine(*given: Any) -> None: ...


async def asynchronous_generator(*given: Any) -> Any:
    yield given


def generator(*given: Any) -> Any:
    yield given


class Work:
    async def __call__(self, *given: Any) -> None: ...

    async def method(self, *given: Any) -> None: ...


WORKS_LATER = [
    coroutine,
    asynchronous_generator,
    generator,
    Work(),
    Work().method,
    partial(coroutine),
    partial(partial(Work())),
]


GENERATORS = [asynchronous_generator, generator]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        *product(("consumer", "change_consumer"), GENERATORS),  # coroutines of theirs are awaited
        *product(("on_connector", "on_completion"), WORKS_LATER),
    ],
)
def test_a_function_that_works_later_is_refused(tmp_path: Path, name: str, function: Any) -> None:
    given: dict[str, Any] = {name: function}
    if name not in ("consumer", "change_consumer"):
        given["consumer"] = print
    with pytest.raises(ConfigError, match=f"{name}: a coroutine or generator function"):
        engine(Gates(tmp_path), **given)


def test_a_processor_whose_method_is_a_coroutine_function_is_refused(tmp_path: Path) -> None:
    class Processor:
        async def process_records(self, records: Any) -> None: ...

    with pytest.raises(ConfigError, match="record_processor: a coroutine"):
        engine(Gates(tmp_path), record_processor=Processor)


@pytest.mark.parametrize("later", [coroutine, asynchronous_generator, generator])
@pytest.mark.parametrize("tolerant", [False, True], ids=["ends", "dead letters"])
@pytest.mark.parametrize("mode", ["per record", "batch", "async", "by key", "transform"])
def test_a_returned_coroutine_ends_the_engine_and_is_not_committed(
    tmp_path: Path, mode: str, later: Any, tolerant: bool
) -> None:
    if mode == "transform" and later is generator:
        return  # a transform's generator is read: tests/unit/engine/test_transforms.py
    orders_log(tmp_path, [0, 1, 2])
    given: dict[str, Any] = {"consumer": lambda event: later(event)}
    if mode == "batch":
        given = {"change_consumer": lambda events, committer: later(events)}
    elif mode == "transform":
        given = {"consumer": lambda _event: None, "transforms": [lambda event: later(event)]}
    elif mode != "per record":
        given |= {"consume_records_async": True, "order": "key" if mode == "by key" else "none"}
    letters = tmp_path / "letters.jsonl"
    if tolerant:
        given |= {"errors_tolerance": "dead_letter", "dead_letters": DeadLetterFile(letters)}
    with running(engine(Gates(tmp_path), **given)) as run:
        until(lambda: run.error or letters.exists())
    assert isinstance(run.error, ConsumerError)
    assert isinstance(run.error.__cause__, TypeError)
    assert not letters.exists()
    assert (committed(tmp_path) or 0) <= versions(tmp_path)[0]


@pytest.mark.parametrize("name", ["on_connector", "on_completion"])
def test_a_callback_that_returns_a_coroutine_ends_the_engine(tmp_path: Path, name: str) -> None:
    orders_log(tmp_path, [0])
    seen: list[Any] = []
    given = {"consumer": seen.append, name: lambda *told: coroutine(*told)}
    with running(engine(Gates(tmp_path), **given)) as run:
        until(lambda: run.error or seen)
    assert isinstance(run.error, ConsumerError)
    assert str(run.error).startswith(f"{name} returned a coroutine")


def test_an_offset_that_is_only_promised_ends_the_engine(tmp_path: Path) -> None:
    class Offsets:
        def read(self, _task: str) -> None: ...

        def write(self, *given: Any) -> Any:
            return coroutine(*given)

    orders_log(tmp_path, [0])
    with running(engine(Gates(tmp_path, offsets=Offsets()), consumer=lambda _event: None)) as run:
        until(lambda: run.error)
    assert isinstance(run.error, ConsumerError)
    assert str(run.error).startswith("offsets.write returned a coroutine")


class Consumer:
    """Notes what is done, and how many of its coroutines run at once."""

    def __init__(self, errors: list[Exception] | None = None) -> None:
        self.errors = errors or []
        self.done: list[int] = []
        self.loops: set[Any] = set()
        self.running = self.most = 0

    async def __call__(self, event: Event) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.002)
            if event.after["id"] == 1 and self.errors:
                raise self.errors.pop()
            self.done.append(event.after["id"])
        finally:
            self.running -= 1

    async def batch(self, events: Events, committer: Committer) -> None:
        for event in events:
            await self(event)
        committer.mark_processed(events)
        committer.mark_batch_finished()


def way(mode: str, consumer: Consumer) -> dict[str, Any]:
    if mode == "batch":
        return {"change_consumer": consumer.batch}
    given: dict[str, Any] = {"consumer": partial(consumer) if mode == "partial" else consumer}
    if mode in ("by key", "async"):
        given |= {"consume_records_async": True, "order": "key" if mode == "by key" else "none"}
    return given


MODES = ["per record", "partial", "batch", "by key", "async"]


@pytest.mark.parametrize("mode", MODES)
def test_coroutines_of_a_consumer_are_awaited_before_events_count_as_done(
    tmp_path: Path, mode: str
) -> None:
    built = orders_log(tmp_path, list(range(50)))
    consumer = Consumer([ConnectionError()])  # tried again
    with running(engine(Gates(tmp_path), **way(mode, consumer))) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert not consumer.errors
    if mode in ("by key", "async"):
        assert sorted(consumer.done) == list(range(50))
        assert consumer.most > 4  # the pool's threads for functions
    else:
        assert consumer.done == ([0] if mode == "batch" else []) + list(range(50))
        assert consumer.most == 1
    assert no_threads_left()


@pytest.mark.parametrize("mode", MODES)
def test_what_a_coroutine_raises_ends_the_engine_and_is_not_committed(
    tmp_path: Path, mode: str
) -> None:
    orders_log(tmp_path, list(range(5)))
    consumer = Consumer([ValueError()])
    with running(engine(Gates(tmp_path), **way(mode, consumer))) as run:
        until(lambda: run.error)
    assert isinstance(run.error, ConsumerError)
    assert isinstance(run.error.__cause__, ValueError)
    assert (committed(tmp_path) or 0) <= versions(tmp_path)[1]
    assert no_threads_left()


def test_so_many_coroutines_run_at_once_and_a_keys_in_order(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for turn in range(10):
        for key in range(20):
            built.insert(orders, str(key), f"{turn}")
    built.flush()
    seen: dict[int, list[int]] = {}
    consumer = Consumer()

    async def consume(event: Event) -> None:
        await consumer(event)
        seen.setdefault(event.after["id"], []).append(int(event.after["note"]))

    core = engine(
        Gates(tmp_path),
        consumer=consume,
        consume_records_async=True,
        order="key",
        concurrent_coroutines=7,
    )
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert seen == {key: list(range(10)) for key in range(20)}
    assert consumer.most == 7


@pytest.mark.parametrize("mode", ["per record", "by key"])
def test_a_coroutine_that_hangs_is_cancelled_at_the_end_and_not_committed(
    tmp_path: Path, mode: str
) -> None:
    orders_log(tmp_path, [0, 1])
    begun, cancelled = threading.Event(), threading.Event()

    async def hang(event: Event) -> None:
        if event.after["id"] == 0:
            return
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    given = {"consume_records_async": True, "order": "key"} if mode == "by key" else {}
    core = engine(Gates(tmp_path), consumer=hang, polling_shutdown_timeout_ms=10, **given)
    with running(core) as run:
        until(begun.is_set)
    assert run.error is None
    assert cancelled.is_set()
    assert (committed(tmp_path) or 0) <= versions(tmp_path)[1]
    until(no_threads_left)


def test_a_coroutine_may_close_the_engine(tmp_path: Path) -> None:
    orders_log(tmp_path, [0, 1])
    seen: list[Event] = []

    async def consume(event: Event) -> None:
        seen.append(event)
        core.close()

    core = engine(Gates(tmp_path), consumer=consume)
    with running(core) as run:
        assert run.join() is None
    assert len(seen) == 1
    assert committed(tmp_path) == versions(tmp_path)[1]


def test_coroutines_run_on_the_programs_loop_and_run_does_not_block_it(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0, 1])
    consumer = Consumer()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        core = engine(Gates(tmp_path), consumer=consumer, event_loop=loop)
        with running(core):
            while committed(tmp_path) != built.writer.next_offset:
                await asyncio.sleep(0.002)
            await asyncio.to_thread(core.close)
        assert consumer.loops == {loop}
        with pytest.raises(EngineStateError, match="await arun"):
            engine(Gates(tmp_path), consumer=consumer, event_loop=loop).run()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"consumer": coroutine, "consume_records_async": True}, "give an ordinary function"),
        ({"consumer": print, "transforms": [asynchronous_generator]}, "a transform that is a"),
        ({"consumer": print, "event_loop": object()}, "event_loop is for"),
    ],
)
def test_a_consumer_that_can_not_be_awaited_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        engine(Gates("nowhere"), record_processing_on="processes", **given)
