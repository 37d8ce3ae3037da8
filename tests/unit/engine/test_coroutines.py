"""Functions that only make a coroutine or a generator: nothing is committed as if they had run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import Gates, committed, engine, orders_log, running, until, versions

from tidelog.engine.processing.dead_letters import DeadLetterFile
from tidelog.errors import ConfigError, ConsumerError


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


@pytest.mark.parametrize("function", WORKS_LATER)
@pytest.mark.parametrize(
    "name", ["consumer", "change_consumer", "transforms", "on_connector", "on_completion"]
)
def test_a_function_that_works_later_is_refused(tmp_path: Path, name: str, function: Any) -> None:
    given: dict[str, Any] = {name: [function] if name == "transforms" else function}
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
