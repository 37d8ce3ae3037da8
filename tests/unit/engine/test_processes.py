"""``record_processing_on: processes``: the same events, in the same order, done elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_functions import append, die, fail, hang, mark
from tests.support.engines import (
    Gates,
    committed,
    engine,
    no_threads_left,
    orders_log,
    running,
    until,
)

from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.events import Events
from tidelog.engine.ports import Committer, Message
from tidelog.errors import ConfigError, ConsumerError

ROWS = list(range(40))
ON: dict[str, Any] = {"record_processing_on": "processes", "record_processing_threads": 2}


@pytest.mark.parametrize(
    ("format_name", "batches"),
    [(None, True), ("debezium", True), (None, False), ("debezium", False)],
    ids=["mode 1", "mode 2", "mode 3", "mode 4"],
)
def test_what_comes_back_is_in_order_and_of_the_originals(
    tmp_path: Path, format_name: str | None, batches: bool
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[Any] = []

    def take(events: Any, committer: Committer) -> None:
        seen.extend(events)
        committer.mark_processed(events)
        committer.mark_batch_finished()

    serializer = None if format_name is None else FormatSerializer(format_name)
    takers: dict[str, Any] = {"change_consumer": take} if batches else {"consumer": seen.append}
    core = engine(
        Gates(tmp_path, batch_size=20), transforms=[mark], serializer=serializer, **takers, **ON
    )
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    events = [each.event if isinstance(each, Message) else each for each in seen]
    assert [event.after["id"] for event in events] == [row for row in ROWS if row % 5 != 4]
    places = {event.after["note"] for event in events}
    assert f"by {os.getpid()}" not in places
    if format_name is not None:
        assert all(each.event.after["note"].encode() in each.value for each in seen)
    assert no_threads_left()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("format_name", "order"),
    [(None, "none"), ("debezium", "none"), (None, "key")],
    ids=["mode 5", "mode 6", "by key"],
)
def test_the_consumer_runs_there_too_where_events_are_consumed_at_once(
    tmp_path: Path, format_name: str | None, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_TEST_FILE", str(tmp_path / "seen"))
    built = orders_log(tmp_path / "log", ROWS)
    core = engine(
        Gates(tmp_path / "log"),
        consumer=append,
        serializer=None if format_name is None else FormatSerializer(format_name),
        consume_records_async=True,
        order=order,
        **ON,
    )
    with running(core):
        until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
    lines = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(int(row) for row, _ in lines) == ROWS
    assert {int(pid) for _, pid in lines}.isdisjoint({os.getpid()})


@pytest.mark.parametrize(
    ("transform", "why"), [(fail, "a transform raised ValueError at version"), (die, "has ended")]
)
def test_what_fails_there_ends_the_engine_without_a_value(
    tmp_path: Path, transform: Any, why: str
) -> None:
    orders_log(tmp_path, ROWS)
    with running(engine(Gates(tmp_path), consumer=print, transforms=[transform], **ON)) as run:
        error = run.join()
    assert isinstance(error, ConsumerError)
    assert why in str(error)
    assert "S3cret" not in str(error)
    assert committed(tmp_path) == 0
    assert not multiprocessing.active_children()


def test_one_that_hangs_is_ended_with_the_engine(tmp_path: Path) -> None:
    orders_log(tmp_path, ROWS)
    core = engine(
        Gates(tmp_path),
        consumer=print,
        transforms=[hang],
        polling_shutdown_timeout_ms=50,
        **ON,
    )
    with running(core):
        until(multiprocessing.active_children)
    until(no_threads_left)
    assert not multiprocessing.active_children()
    assert committed(tmp_path) == 0


def test_what_belongs_to_this_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="functions of a module"):
        engine(Gates(tmp_path), consumer=print, transforms=[lambda event: event], **ON)
    with pytest.raises(ConfigError, match="functions of a module"):
        engine(Gates(tmp_path), consumer=lambda _: None, consume_records_async=True, **ON)


def test_a_slice_is_pickled_without_the_rest(tmp_path: Path) -> None:
    import threading

    orders_log(tmp_path, range(2000))
    task = Gates(tmp_path)
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    [part] = events.parts
    few = part.slice(100, 103)
    assert len(pickle.dumps(few)) < len(pickle.dumps(part)) / 10
    again = list(Events([pickle.loads(pickle.dumps(few))], events.end))
    assert [(e.number, e.after, e.version) for e in again] == [
        (e.number, e.after, e.version) for e in events[100:103]
    ]
