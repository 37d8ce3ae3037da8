"""Transforms that are awaited, and those that give several events: in order, none done early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import (
    Gates,
    committed,
    engine,
    no_threads_left,
    orders_log,
    running,
    until,
    versions,
)

from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.chain import DeadLetterFile
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer, Message
from tidelog.errors import ConsumerError

ROWS = list(range(60))
MODES = ["per record", "batch", "by key", "messages", "messages by key"]


def noted(event: Event, note: str) -> Event:
    return event.replace(after={**event.after, "note": note})


def twice(event: Event) -> list[Event] | None:
    """Every third event is left out."""
    return None if event.after["id"] % 3 == 2 else [noted(event, "a"), noted(event, "b")]


def generator(event: Event) -> Iterator[Event]:
    yield from twice(event) or ()


async def coroutine(event: Event) -> Any:
    await asyncio.sleep(0.001 * (event.after["id"] % 2))
    return twice(event)


async def asynchronous_generator(event: Event) -> Any:
    for each in twice(event) or ():
        await asyncio.sleep(0)
        yield each


def as_is(event: Event) -> list[Event]:
    return [event]


def expected() -> list[tuple[int, str]]:
    return [(row, note) for row in ROWS if row % 3 < 2 for note in "ab"]


def row_of(each: Event | Message) -> tuple[int, str]:
    event = each.event if isinstance(each, Message) else each
    return event.after["id"], event.after["note"]


def way(mode: str, consume: Any) -> dict[str, Any]:
    if mode == "batch":

        def batch(events: Events, committer: Committer) -> None:
            for event in events:
                consume(event)
                committer.mark_processed(event)
            committer.mark_batch_finished()

        return {"change_consumer": batch}
    given: dict[str, Any] = {"consumer": consume}
    if "messages" in mode:
        given["serializer"] = FormatSerializer("flat")
    if "by key" in mode:
        given |= {"consume_records_async": True, "order": "key"}
    return given


@pytest.mark.parametrize("transform", [twice, generator, coroutine, asynchronous_generator])
@pytest.mark.parametrize("mode", MODES)
def test_all_that_a_transform_gives_comes_in_order(
    tmp_path: Path, mode: str, transform: Any
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[tuple[int, str]] = []
    given = way(mode, lambda each: seen.append(row_of(each)))
    core = engine(Gates(tmp_path, batch_size=20), transforms=[transform, as_is], **given)
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert (sorted(seen) if "by key" in mode else seen) == expected()
    if "by key" in mode:
        for row in ROWS:
            assert [note for id_, note in seen if id_ == row] in ([], ["a", "b"])
    assert no_threads_left()


@pytest.mark.parametrize("mode", MODES)
def test_an_event_is_done_when_all_that_was_made_of_it_is(tmp_path: Path, mode: str) -> None:
    orders_log(tmp_path, [0, 1])
    reached, go = threading.Event(), threading.Event()

    def consume(each: Any) -> None:
        if row_of(each) == (1, "b"):
            reached.set()
            go.wait()

    core = engine(
        Gates(tmp_path), transforms=[twice], polling_shutdown_timeout_ms=10, **way(mode, consume)
    )
    with running(core):
        until(reached.is_set)
    assert committed(tmp_path) == versions(tmp_path)[1]
    go.set()
    until(no_threads_left)


def test_pieces_of_a_batch_count_for_their_share_alone(tmp_path: Path) -> None:
    orders_log(tmp_path, [0, 1])
    marked = threading.Event()

    def batch(events: Events, committer: Committer) -> None:
        first, *rest = events.pieces(1)
        for piece in (first, first, *rest[1:]):  # the second share of event 0 is not marked
            committer.mark_processed(piece)
        committer.mark_batch_finished()
        marked.set()

    with running(engine(Gates(tmp_path), change_consumer=batch, transforms=[twice])):
        until(marked.is_set)
    assert (committed(tmp_path) or 0) <= versions(tmp_path)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["transform", "not of the table", "consumer"])
def test_one_of_several_that_is_passed_over_holds_up_nothing(
    tmp_path: Path, mode: str, who: str
) -> None:
    if who == "consumer" and mode == "batch":
        return  # a batch that raises ends the engine
    built = orders_log(tmp_path, [0, 1])
    letters = tmp_path / "letters.jsonl"
    seen: list[tuple[int, str]] = []

    def refuse(event: Event) -> Event:
        if event.after["note"] == "a":
            if who == "transform":
                raise ValueError
            if who == "not of the table":
                return event.replace(after={"id": object()})
        return event

    def consume(each: Any) -> None:
        if who == "consumer" and row_of(each)[1] == "a":
            raise ValueError
        seen.append((each.event if isinstance(each, Message) else each).number)

    core = engine(
        Gates(tmp_path),
        transforms=[twice, refuse],
        errors_tolerance="dead_letter",
        dead_letters=DeadLetterFile(letters),
        **way(mode, consume),
    )
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    lost = 0 if who == "not of the table" and mode in ("per record", "by key") else 2
    assert len(seen) == 4 - lost
    assert lost == (len(letters.read_text().splitlines()) if letters.exists() else 0)


def test_an_event_of_another_one_among_several_is_refused(tmp_path: Path) -> None:
    orders_log(tmp_path, [0, 1])
    given: list[Event] = []

    def transform(event: Event) -> list[Event]:
        given.append(event)
        return given

    with running(engine(Gates(tmp_path), consumer=print, transforms=[transform])) as run:
        until(lambda: run.error)
    assert isinstance(run.error, ConsumerError)
    assert isinstance(run.error.__cause__, TypeError)


def test_so_many_coroutines_of_transforms_run_at_once_on_the_programs_loop(tmp_path: Path) -> None:
    built = orders_log(tmp_path, list(range(200)))
    under_way = most = 0
    loops: set[Any] = set()
    seen: list[int] = []

    async def transform(event: Event) -> Event:
        nonlocal under_way, most
        loops.add(asyncio.get_running_loop())
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return event

    async def main() -> None:
        core = engine(
            Gates(tmp_path),
            consumer=lambda event: seen.append(event.after["id"]),
            transforms=[transform],
            event_loop=asyncio.get_running_loop(),
            concurrent_coroutines=7,
        )
        with running(core):
            while committed(tmp_path) != built.writer.next_offset:
                await asyncio.sleep(0.002)
            await asyncio.to_thread(core.close)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(asyncio.wait_for(main(), 60))
    assert seen == list(range(200))
    assert most == 7


def test_several_come_back_from_processes(tmp_path: Path) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[tuple[int, str]] = []
    core = engine(
        Gates(tmp_path, batch_size=20),
        consumer=lambda event: seen.append(row_of(event)),
        transforms=[generator],
        record_processing_on="processes",
        record_processing_threads=1,
    )
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert seen == expected()
