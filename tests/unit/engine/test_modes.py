"""The modes of an engine: what runs at once, in which order it is consumed, what is committed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import (
    COLUMNS,
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
from tidelog.engine import chain, processors
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer, Message
from tidelog.errors import ConfigError

ROWS = list(range(300))


def slowly(event: Event) -> Event:
    time.sleep(random.Random(event.version).random() / 500)
    return event


def ids(taken: Any) -> list[int]:
    return [(each.event if isinstance(each, Message) else each).after["id"] for each in taken]


@pytest.mark.parametrize("format_name", [None, "debezium"], ids=["mode 1", "mode 2"])
def test_batches_come_in_order_however_long_transforms_take(
    tmp_path: Path, format_name: str | None
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[int] = []
    threads: set[str] = set()

    def transform(event: Event) -> Event:
        threads.add(threading.current_thread().name)
        return slowly(event)

    def consume(events: Any, committer: Committer) -> None:
        if format_name is None:
            assert isinstance(events, Events)
        else:
            assert all(isinstance(each, Message) for each in events)
        seen.extend(ids(events))
        committer.mark_processed(events)
        committer.mark_batch_finished()

    task = Gates(tmp_path, batch_size=100)
    serializer = None if format_name is None else FormatSerializer(format_name)
    core = engine(task, change_consumer=consume, transforms=[transform], serializer=serializer)
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert seen == ROWS
    assert len(threads) > 1
    assert no_threads_left()


@pytest.mark.parametrize("format_name", [None, "debezium"], ids=["mode 3", "mode 4"])
def test_single_events_come_in_order_however_long_transforms_take(
    tmp_path: Path, format_name: str | None
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[Any] = []
    serializer = None if format_name is None else FormatSerializer(format_name)
    core = engine(
        Gates(tmp_path, batch_size=100),
        consumer=seen.append,
        transforms=[slowly],
        serializer=serializer,
    )
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert ids(seen) == ROWS
    assert {type(each) for each in seen} == {Event if format_name is None else Message}


@pytest.mark.parametrize("format_name", [None, "debezium"], ids=["mode 5", "mode 6"])
def test_unordered_events_are_consumed_at_once_and_all_of_them(
    tmp_path: Path, format_name: str | None
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[Any] = []
    met = threading.Barrier(4, timeout=30)

    def consume(each: Any) -> None:
        if (each.event if format_name else each).after["id"] < 4:
            met.wait()  # only at once can four be here
        seen.append(each)

    serializer = None if format_name is None else FormatSerializer(format_name)
    core = engine(
        Gates(tmp_path), consumer=consume, consume_records_async=True, serializer=serializer
    )
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert sorted(ids(seen)) == ROWS
    assert no_threads_left()


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_slow_record_holds_back_the_offset_of_those_behind_it(tmp_path: Path, order: str) -> None:
    """R1 is slow, R2 and R3 are done: at the end R1 is given up, and comes again."""
    built = orders_log(tmp_path, [0, 1, 2, 3])
    place = versions(tmp_path)
    release = threading.Event()
    done: list[int] = []

    def consume(event: Event) -> None:
        if event.after["id"] == 1:
            release.wait(30)
        done.append(event.after["id"])

    core = engine(
        Gates(tmp_path),
        consumer=consume,
        consume_records_async=True,
        order=order,
        polling_shutdown_timeout_ms=20,
    )
    with running(core):
        until(lambda: sorted(done) == [0, 2, 3])
    assert committed(tmp_path) == place[1]
    release.set()
    until(lambda: 1 in done and no_threads_left(), "the late result")
    assert committed(tmp_path) == place[1]  # the late result is nobody's

    again: list[int] = []
    with running(engine(Gates(tmp_path), consumer=lambda event: again.append(event.after["id"]))):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert again == [1, 2, 3]


@pytest.mark.parametrize("batches", [False, True])
def test_what_comes_after_the_end_is_never_committed(tmp_path: Path, batches: bool) -> None:
    """The consumer hangs in the task's own thread, and comes back when the engine has given up."""
    orders_log(tmp_path, [0, 1])
    place = versions(tmp_path)
    hangs, release, late = threading.Event(), threading.Event(), threading.Event()

    def one(event: Event) -> None:
        if event.after["id"] == 1:
            hangs.set()
            release.wait(30)
            late.set()

    def batch(events: Events, committer: Committer) -> None:
        for event in events:
            one(event)
            committer.mark_processed(event)
        committer.mark_batch_finished()

    task = Gates(tmp_path)
    taker: dict[str, Any] = {"change_consumer": batch} if batches else {"consumer": one}
    with running(engine(task, polling_shutdown_timeout_ms=20, **taker)) as run:
        assert hangs.wait(30)
    assert run.error is None
    assert task.calls[-2:] == [f"commit {place[1]}", "stop"]
    release.set()
    until(lambda: late.is_set() and no_threads_left(), "the late result")
    assert task.calls[-1] == "stop"
    assert committed(tmp_path) == place[1]


def test_events_of_one_key_stay_in_order_and_keys_run_at_once(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    pick = random.Random(7)
    for number in range(200):
        built.insert(orders, str(pick.randrange(8)), str(number))
    built.flush()
    seen: dict[int, list[int]] = {}
    lock = threading.Lock()
    at_once = most = 0

    def consume(event: Event) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        slowly(event)
        with lock:
            at_once -= 1
            seen.setdefault(event.after["id"], []).append(int(event.after["note"]))

    core = engine(Gates(tmp_path), consumer=consume, consume_records_async=True, order="key")
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert most > 1
    assert sum(map(len, seen.values())) == 200
    assert all(notes == sorted(notes) for notes in seen.values())


def test_by_key_a_moved_row_and_a_truncate_keep_their_place(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for round_ in range(10):
        for row in (1, 2, 3):
            built.insert(orders, str(row), f"{round_}")
        built.update(orders, "9", f"{round_}", key=["1"])  # 1 becomes 9
        built.update(orders, "1", f"{round_}", key=["2"])  # 2 takes its place
        built.delete(orders, "9")
        built.truncate(orders)
    built.flush()
    copy: dict[int, str] = {}
    sizes: list[int] = []
    lock = threading.Lock()

    def consume(event: Event) -> None:
        slowly(event)
        with lock:
            if event.op == "t":
                sizes.append(len(copy))
                copy.clear()
            elif event.op == "d":
                del copy[event.key["id"]]
            else:
                assert event.key["id"] not in copy
                copy[event.key["id"]] = event.after["note"]

    core = engine(Gates(tmp_path), consumer=consume, consume_records_async=True, order="key")
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert sizes == [2] * 10  # 1 and 3 were left each time


def test_what_a_transform_leaves_out_counts_as_done(tmp_path: Path) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[int] = []

    def even(event: Event) -> Event | None:
        return (
            event.replace(after={**event.after, "note": "x"})
            if event.after["id"] % 2 == 0
            else None
        )

    def consume(events: Events, committer: Committer) -> None:
        seen.extend(events.to_arrow().column("after").combine_chunks().field("id").to_pylist())
        assert {row["after"]["note"] for row in events.to_pylist()} == {"x"}
        assert set(
            events.to_arrow().column("after").combine_chunks().field("note").to_pylist()
        ) == {"x"}
        committer.mark_processed(events)
        committer.mark_batch_finished()

    with running(engine(Gates(tmp_path), change_consumer=consume, transforms=[even])) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert seen == ROWS[::2]


def test_a_batch_consumer_may_mark_later_and_out_of_order(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0, 1, 2])
    place = versions(tmp_path)
    taken: list[tuple[Events, Committer]] = []

    def consume(events: Events, committer: Committer) -> None:
        taken.append((events, committer))

    with running(engine(Gates(tmp_path), change_consumer=consume)):
        until(lambda: taken)
        [(events, committer)] = taken
        committer.mark_processed([events[0], events[2]])
        committer.mark_batch_finished()
        until(lambda: committed(tmp_path) == place[1])
        committer.mark_processed(events[1])
        committer.mark_batch_finished()
        until(lambda: committed(tmp_path) == built.writer.next_offset)


def test_a_consumer_that_never_marks_gets_no_more_than_fits(tmp_path: Path) -> None:
    built = orders_log(tmp_path, list(range(40)))
    taken: list[int] = []
    core = engine(
        Gates(tmp_path, batch_size=1),
        change_consumer=lambda events, _committer: taken.extend(ids(events)),
    )
    with running(core):
        until(lambda: len(taken) == 16)
        time.sleep(0.1)
        assert len(taken) == 16
    assert committed(tmp_path) == built.log.head_offset


class Own:
    """A processor of a program."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def initialize(self, service: Any, transforms: Any, serializer: Any, committer: Any) -> None:
        self.service, self.transforms = service, transforms
        self.serializer, self.committer = serializer, committer

    def process_records(self, records: Events) -> None:
        [transform] = self.transforms
        futures = [self.service.submit(lambda event=event: transform(event)) for event in records]
        self.seen += [future.result().after["id"] for future in futures]
        self.committer.mark_processed(records)
        self.committer.mark_batch_finished()


def test_a_processor_of_the_program_takes_over_the_whole_chain(tmp_path: Path) -> None:
    built = orders_log(tmp_path, ROWS)
    own = Own()
    with running(engine(Gates(tmp_path), record_processor=own, transforms=[slowly])):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert own.seen == ROWS


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give one of"),
        ({"consumer": print, "change_consumer": print}, "give one of"),
        (
            {"change_consumer": print, "consume_records_async": True},
            "nothing in it to call at once",
        ),
        ({"consumer": print, "order": "key"}, "go with consume_records_async"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        engine(Gates("nowhere"), **given)


@pytest.mark.parametrize("format_name", [None, "debezium"], ids=["mode 3", "mode 4"])
@pytest.mark.parametrize("end", ["raises", "hangs"])
def test_without_transforms_events_count_up_to_the_one_that_was_not_done(
    tmp_path: Path, format_name: str | None, end: str
) -> None:
    orders_log(tmp_path, ROWS)
    seen: list[Any] = []
    begun, go = threading.Event(), threading.Event()

    def consume(each: Any) -> None:
        if ids([each]) == [107]:
            begun.set()
            if end == "raises":
                raise ValueError
            go.wait()
        seen.append(each)

    serializer = None if format_name is None else FormatSerializer(format_name)
    core = engine(
        Gates(tmp_path, batch_size=100),
        consumer=consume,
        serializer=serializer,
        polling_shutdown_timeout_ms=10,
    )
    with running(core) as run:
        until(begun.is_set)
    assert (run.error is None) == (end == "hangs")
    assert committed(tmp_path) == versions(tmp_path)[107]
    go.set()
    until(no_threads_left)
    assert committed(tmp_path) == versions(tmp_path)[107]
    assert ids(seen)[:107] == ROWS[:107]


def test_a_transform_that_gives_another_event_marks_that_one(tmp_path: Path) -> None:
    """Not those before it, which were not consumed."""
    orders_log(tmp_path, ROWS[:10])
    events: list[Event] = []
    seen: list[Any] = []

    def swap(event: Event) -> Event:
        events.append(event)
        return events[0]

    task = Gates(tmp_path)
    core = engine(task, consumer=seen.append, transforms=[swap], record_processing_threads=1)
    with running(core):
        until(lambda: len(seen) == 10)
    assert committed(tmp_path) == versions(tmp_path)[1]


@pytest.mark.parametrize("transforms", [[], [slowly]], ids=["", "in pieces"])
@pytest.mark.parametrize("order", ["total", "key"])
def test_what_is_done_of_a_batch_is_committed_while_it_is_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, transforms: list[Any]
) -> None:
    # Longer than a piece of events that were transformed takes.
    monkeypatch.setattr(processors, "COMMIT_WITHIN_S", 0.1)
    monkeypatch.setattr(chain, "_MOST_EVENTS", 2)
    orders_log(tmp_path, ROWS)
    held = threading.Event()

    def consume(event: Event) -> None:
        time.sleep(0.02)
        if event.after is not None and event.after["id"] == 20:
            held.wait(60)

    task = Gates(tmp_path)
    parallel = {} if order == "total" else {"consume_records_async": True, "order": order}
    given = {"consumer": consume, "transforms": transforms, **parallel}
    made = engine(task, record_processing_threads=1, **given)
    with running(made):
        until(lambda: (committed(tmp_path) or 0) > versions(tmp_path)[10])
        assert (committed(tmp_path) or 0) <= versions(tmp_path)[20]
        held.set()
