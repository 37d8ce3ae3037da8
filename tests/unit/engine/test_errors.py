"""Errors: what is retried, what is raised, and what is reported."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import (
    Gates,
    Tasks,
    committed,
    engine,
    no_threads_left,
    orders_log,
    running,
    until,
    versions,
)

from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer
from tidelog.errors import (
    ConnectionLostError,
    ConsumerError,
    DecodeError,
    SourceError,
    StorageError,
)

SECRET = "S3cret-value"


class Flaky:
    """A consumer that raises at the id 1, so many times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error = failures, error
        self.seen: list[int] = []
        self.tries = 0

    def __call__(self, event: Event) -> None:
        if event.after["id"] == 1:
            self.tries += 1
            if self.left:
                self.left -= 1
                raise self.error
        self.seen.append(event.after["id"])

    def batch(self, events: Events, committer: Committer) -> None:
        for event in events:
            self(event)
        committer.mark_processed(events)
        committer.mark_batch_finished()


MODES = ["per record", "batch", "async", "by key"]


def way(mode: str, consumer: Flaky) -> dict[str, Any]:
    if mode == "batch":
        return {"change_consumer": consumer.batch}
    if mode == "per record":
        return {"consumer": consumer}
    order = "none" if mode == "async" else "key"
    return {"consumer": consumer, "consume_records_async": True, "order": order}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("most", "failures", "passes"), [(3, 3, True), (3, 4, False), (0, 1, False)]
)
def test_a_retriable_error_is_tried_again_so_many_times(
    tmp_path: Path, mode: str, most: int, failures: int, passes: bool
) -> None:
    built = orders_log(tmp_path, [0, 1, 2])
    consumer = Flaky(failures, ConnectionError(SECRET))
    with running(engine(Gates(tmp_path), errors_max_retries=most, **way(mode, consumer))) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert consumer.tries == min(failures, most) + 1
    if passes:
        assert run.error is None
    else:
        assert isinstance(run.error, ConsumerError)
        assert isinstance(run.error.__cause__, ConnectionError)
        # Never past the one that failed; all of a batch that failed comes again.
        place = versions(tmp_path)
        head = built.log.head_offset
        allowed = {head} if mode == "batch" else {place[1]} if mode == "per record" else None
        assert committed(tmp_path) in (allowed or {head, place[0], place[1]})
    assert no_threads_left()


def test_without_limit_it_is_tried_until_the_engine_is_closed(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0, 1, 2])
    consumer = Flaky(1_000_000, ConnectionError())
    with running(engine(Gates(tmp_path), errors_max_retries=-1, consumer=consumer)) as run:
        until(lambda: consumer.tries > 20)
    assert run.error is None
    assert consumer.seen == [0]
    assert committed(tmp_path) == versions(tmp_path)[1] < built.writer.next_offset


def test_delays_double_up_to_the_longest(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    orders_log(tmp_path, [1])
    consumer = Flaky(4, ConnectionError(SECRET))
    core = engine(
        Gates(tmp_path),
        consumer=consumer,
        errors_retry_delay_initial_ms=100,
        errors_retry_delay_max_ms=300,
    )
    with caplog.at_level(logging.WARNING), running(core):
        until(lambda: consumer.seen)
    waits = [record.args[-1] for record in caplog.records if "retry" in record.getMessage()]  # type: ignore[index]
    assert waits == [0.1, 0.2, 0.3, 0.3]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_consumer_that_raises_is_named_by_version_and_table_alone(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    orders_log(tmp_path, [1])
    completions: list[Any] = []
    core = engine(
        Gates(tmp_path),
        on_completion=lambda *told: completions.append(told),
        **way(mode, Flaky(1, ValueError(SECRET))),
    )
    with caplog.at_level(logging.DEBUG), running(core) as run:
        until(lambda: run.error)
    [version] = versions(tmp_path)
    error = run.error
    assert str(error) == f"the consumer raised ValueError at version {version} of public.orders"
    assert completions == [(False, f"the engine failed: {error}", error)]
    assert SECRET not in caplog.text + str(completions[0][:2]) + str(error)


def test_a_transform_that_raises_is_named_too(tmp_path: Path) -> None:
    orders_log(tmp_path, [0, 1])

    def transform(event: Event) -> Event:
        if event.after["id"] == 1:
            raise KeyError(SECRET)
        return event

    with running(engine(Gates(tmp_path), consumer=print, transforms=[transform])) as run:
        until(lambda: run.error)
    place = versions(tmp_path)
    assert str(run.error) == f"a transform raised KeyError at version {place[1]} of public.orders"


def test_a_mask_that_changes_the_event_in_place_lets_nothing_through(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0, 1])
    seen: list[Event] = []

    def mask(event: Event) -> Event:
        event.after["note"] = "***"
        return event

    with running(engine(Gates(tmp_path), consumer=seen.append, transforms=[mask])) as run:
        until(lambda: run.error)
    assert "read-only" in str(run.error.__cause__)
    assert seen == []
    assert committed(tmp_path) < built.writer.next_offset


@pytest.mark.parametrize("where", ["poll", "commit"])
def test_a_tasks_retriable_errors_lose_and_repeat_nothing(tmp_path: Path, where: str) -> None:
    built = orders_log(tmp_path, list(range(20)))
    task = Gates(tmp_path, batch_size=5)
    task.fails_at[where] = [ConnectionLostError("broken"), StorageError("full")]
    seen: list[int] = []
    with running(engine(task, consumer=lambda event: seen.append(event.after["id"]))):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert seen == list(range(20))


def test_one_task_fails_and_the_others_commit_what_is_done(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("good", "bad")}
    built = {name: orders_log(path, [0, 1, 2]) for name, path in places.items()}
    tasks = {name: Gates(path, name) for name, path in places.items()}
    core = engine(
        Tasks(*tasks.values()), consumer=lambda _event: None, offset_commit_policy="periodic"
    )
    with running(core) as run:
        until(lambda: all("poll" in task.calls for task in tasks.values()))
        taken = tasks["good"]
        until(lambda: taken._next == built["good"].writer.next_offset)
        failure = SourceError("gone")
        tasks["bad"].fails_at["poll"] = [failure]
        assert run.join() is failure
    assert committed(places["good"], "good") == built["good"].writer.next_offset
    assert all(task.calls[-1] == "stop" for task in tasks.values())
    assert no_threads_left()


@pytest.mark.parametrize("where", ["commit", "stop"])
def test_what_fails_at_the_end_is_raised_and_all_is_stopped(tmp_path: Path, where: str) -> None:
    orders_log(tmp_path, [0])
    seen: list[Event] = []
    task = Gates(tmp_path)
    task.fails_at[where] = [DecodeError("at the end")] * 2
    connector = Tasks(task)
    core = engine(connector, consumer=seen.append, offset_commit_policy="periodic")
    with running(core) as run:
        until(lambda: seen)
    assert isinstance(run.error, DecodeError)
    assert task.calls[-1] == "stop"
    assert connector.calls == ["start", "tasks", "stop"]


def test_callbacks_that_raise_do_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built = orders_log(tmp_path, [0, 1])
    told: list[Any] = []

    def raising(*what: Any) -> None:
        told.append(what)
        raise RuntimeError(SECRET)

    core = engine(Gates(tmp_path), consumer=print, on_connector=raising, on_completion=raising)
    with running(core) as run:
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert len(told) == 5  # connector and task, started and stopped; completion
    assert "on_completion raised RuntimeError" in caplog.text
    assert SECRET not in caplog.text


class PassingError(Exception):
    """Of a program's library."""


@pytest.mark.parametrize("mode", MODES)
def test_errors_of_classes_that_the_program_names_are_tried_again(
    tmp_path: Path, mode: str
) -> None:
    built = orders_log(tmp_path, [0, 1, 2])
    consumer = Flaky(2, PassingError())
    core = engine(Gates(tmp_path), retry_on=(PassingError,), **way(mode, consumer))
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert consumer.tries == 3
