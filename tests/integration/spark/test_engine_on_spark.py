"""``record_processing_on: spark``: the same events, in the same order, done on executors."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkConf, SparkContext
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

from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.chain import DeadLetterFile
from tidelog.engine.core import EngineCore
from tidelog.engine.events import Event
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Committer, Message
from tidelog.engine.workers import EventWork
from tidelog.errors import ConfigError, ConsumerError
from tidelog.spark.engine_jobs import SparkWorkers

pytestmark = [pytest.mark.spark, pytest.mark.integration]
ROWS = list(range(40))
CONFIG = {
    "source": {"kind": "postgres", "url": "postgresql://nowhere/shop", "tables": ["public.*"]},
    "log": {"path": "log"},
    "state": {"url": "sqlite:///state.db"},
}
Make = Callable[..., EngineCore]


@pytest.fixture
def on_spark(spark: Any) -> Make:
    """An engine whose jobs run in the session of the tests."""

    def make(task: Any, **given: Any) -> EngineCore:
        def workers(count: int, work: EventWork) -> SparkWorkers:
            return SparkWorkers(lambda: spark, count, work)

        options = {"record_processing_on": "spark", "record_processing_threads": 2, **given}
        return engine(task, on_spark=workers, **options)

    return make


@pytest.mark.parametrize("batches", [True, False], ids=["modes 1, 2", "modes 3, 4"])
@pytest.mark.parametrize("format_name", [None, "debezium"])
def test_what_comes_back_is_in_order_and_of_the_originals(
    on_spark: Make, tmp_path: Path, format_name: str | None, batches: bool
) -> None:
    built = orders_log(tmp_path, ROWS)
    seen: list[Any] = []

    def take(events: Any, committer: Committer) -> None:
        seen.extend(events)
        committer.mark_processed(events)
        committer.mark_batch_finished()

    serializer = None if format_name is None else FormatSerializer(format_name)
    takers: dict[str, Any] = {"change_consumer": take} if batches else {"consumer": seen.append}
    core = on_spark(
        Gates(tmp_path, batch_size=20), transforms=[mark], serializer=serializer, **takers
    )
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert {type(each) for each in seen} == {Event if format_name is None else Message}
    events = [each.event if isinstance(each, Message) else each for each in seen]
    assert [event.after["id"] for event in events] == [row for row in ROWS if row % 5 != 4]
    places = {event.after["note"] for event in events}
    assert f"by {os.getpid()}" not in places
    if format_name is not None:
        assert all(each.event.after["note"].encode() in each.value for each in seen)
    assert no_threads_left()


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("format_name", [None, "debezium"], ids=["mode 5", "mode 6"])
def test_the_consumer_runs_there_too_where_events_are_consumed_at_once(
    on_spark: Make, tmp_path: Path, order: str, format_name: str | None
) -> None:
    built = orders_log(tmp_path / "log", ROWS)
    file = str(tmp_path / "seen")

    def consume(each: Any) -> None:
        os.environ["TIDELOG_TEST_FILE"] = file  # in Spark's worker
        append(each)

    core = on_spark(
        Gates(tmp_path / "log"),
        consumer=consume,
        serializer=None if format_name is None else FormatSerializer(format_name),
        consume_records_async=True,
        order=order,
    )
    with running(core):
        until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
    lines = [line.split() for line in Path(file).read_text().splitlines()]
    assert sorted(int(row) for row, _ in lines) == ROWS
    assert {int(pid) for _, pid in lines}.isdisjoint({os.getpid()})


@pytest.mark.parametrize(
    ("transform", "why"),
    [(fail, "a transform raised ValueError at version"), (die, "Spark could not process records")],
)
def test_what_fails_there_ends_the_engine_without_a_value(
    on_spark: Make, tmp_path: Path, transform: Any, why: str
) -> None:
    orders_log(tmp_path, ROWS)
    with running(on_spark(Gates(tmp_path), consumer=print, transforms=[transform])) as run:
        error = run.join()
    assert isinstance(error, ConsumerError)
    assert why in str(error)
    assert "S3cret" not in str(error)
    assert committed(tmp_path) == 0


def test_one_that_hangs_is_ended_with_the_engine(
    on_spark: Make, spark: Any, tmp_path: Path
) -> None:
    """Before the engine has stopped: who starts next consumes the same events."""
    orders_log(tmp_path, ROWS[:1])
    file = tmp_path / "pid"

    def stay(event: Event) -> Event:
        file.write_text(str(os.getpid()))
        return hang(event)

    core = on_spark(
        Gates(tmp_path), consumer=print, transforms=[stay], polling_shutdown_timeout_ms=50
    )
    with running(core):
        until(lambda: file.exists() and file.read_text())
    with suppress(psutil.NoSuchProcess):  # or its parent, Spark's daemon, has not noticed yet
        process = psutil.Process(int(file.read_text()))
        until(lambda: process.status() == psutil.STATUS_ZOMBIE)  # it may be about to end
    assert committed(tmp_path) == 0
    until(no_threads_left)
    assert spark.range(3).count() == 3  # the program's session goes on


@pytest.mark.parametrize("retries", [0, 3])
def test_an_error_that_may_pass_is_tried_again_there(
    on_spark: Make, tmp_path: Path, retries: int
) -> None:
    built = orders_log(tmp_path / "log", ROWS[:1])
    tries = tmp_path / "tries"

    def third_time(event: Event) -> Event:
        with tries.open("a") as file:
            file.write("x")
        if len(tries.read_text()) < 3:
            raise ConnectionError("S3cret")
        return event

    core = on_spark(
        Gates(tmp_path / "log"),
        consumer=print,
        transforms=[third_time],
        errors_max_retries=retries,
    )
    with running(core) as run:
        if retries:
            until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
        else:
            error = run.join()
            assert isinstance(error, ConsumerError)
            assert "S3cret" not in str(error)
    assert tries.read_text() == "xxx"[: retries or 1]


@pytest.mark.parametrize("apart", [True, False], ids=["in order", "parallel"])
def test_dead_letters_are_reported_by_the_engines_process(
    on_spark: Make, tmp_path: Path, apart: bool
) -> None:
    built = orders_log(tmp_path / "log", ROWS[:5])
    letters = tmp_path / "letters" / "engine.jsonl"

    def refuse_one(event: Event) -> Event:
        assert event.after is not None
        if event.after["id"] == 1:
            raise ValueError("S3cret")
        return event

    steps: dict[str, Any] = {"transforms": [refuse_one], "consumer": print}
    if not apart:
        steps = {"consumer": refuse_one, "consume_records_async": True}
    core = on_spark(
        Gates(tmp_path / "log"),
        dead_letters=DeadLetterFile(letters),
        errors_tolerance="dead_letter",
        **steps,
    )
    with running(core) as run:
        until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
    assert run.error is None
    [line] = letters.read_text().splitlines()
    assert "ValueError at version" in line
    assert "S3cret" not in line


def test_what_can_not_be_sent_is_refused(on_spark: Make, tmp_path: Path) -> None:
    lock = threading.Lock()
    given: dict[str, Any] = {"consumer": print, "transforms": [lambda event: lock and event]}
    with pytest.raises(ConfigError, match="belongs to this process"):
        on_spark(Gates(tmp_path), **given)
    with pytest.raises(ConfigError, match="belongs to this process"):
        AsyncEngine(CONFIG, record_processing_on="spark", **given)


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")
    work = EventWork((), None, EngineOptions(), tolerant=False, consumer=None)
    workers = SparkWorkers(lambda: pytest.fail("a session was begun"), 1, work)
    with pytest.raises(ConfigError, match="not one of Spark Connect"):
        workers.open()
    workers.close()


def test_a_consumer_is_not_given_to_tasks_that_may_run_twice(
    on_spark: Make, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_log(tmp_path, ROWS[:1])
    monkeypatch.setattr(spark.sparkContext, "_conf", SparkConf().set("spark.speculation", "true"))
    core = on_spark(Gates(tmp_path), consumer=print, consume_records_async=True)
    with running(core) as run:
        error = run.join()
    assert isinstance(error, ConfigError)
    assert "spark.speculation" in str(error)


def test_a_module_that_executors_lack_is_named(
    on_spark: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_log(tmp_path / "log", ROWS[:1])
    (tmp_path / "only_here.py").write_text("def same(event):\n    return event\n")
    monkeypatch.syspath_prepend(tmp_path)
    same = importlib.import_module("only_here").same
    with running(on_spark(Gates(tmp_path / "log"), consumer=print, transforms=[same])) as run:
        error = run.join()
    assert isinstance(error, ConfigError)
    assert "executors have no module only_here" in str(error)
