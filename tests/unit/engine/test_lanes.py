"""Which events may be consumed at once if order is kept by key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import COLUMNS, Gates, committed, engine, orders_log, running, until

from tidelog.app.async_engine.log_task import LogTask
from tidelog.engine.chain import ProcessorChain
from tidelog.engine.events import Event
from tidelog.engine.processors import stages


def of(built: BuiltLog) -> list[list[list[str]]]:
    """Stages of lanes of events, each as op and key."""
    built.flush()
    task = LogTask(built.path, "engine")
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return [
        [
            [event.op + "".join(map(str, (event.key or {}).values())) for event in lane]
            for lane in lanes
        ]
        for lanes in stages(list(events))
    ]


def test_a_lane_holds_a_key_and_those_that_a_move_connects(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "a")
    built.insert(orders, "2", "a")
    built.insert(orders, "3", "a")
    built.update(orders, "4", "a", key=["1"])
    built.update(orders, "1", "a", key=["2"])
    built.update(orders, "3", "b")
    [lanes] = of(built)
    assert lanes == [["c1", "c2", "d1", "c4", "d2", "c1"], ["c3", "u3"]]


def test_a_truncate_and_a_new_schema_begin_a_stage(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", "a")
    built.truncate(orders)
    built.insert(orders, "1", "b")
    texts = built.table("public.orders", {"id": "text", "note": "text"})
    built.update(texts, "1", "c")
    built.update(texts, "2", "c")
    assert of(built) == [[["c1"]], [["t"]], [["c1"]], [["u1"], ["u2"]]]


def test_tables_of_one_key_are_apart_and_one_without_a_key_is_a_lane(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    lines = built.table("public.lines", COLUMNS, relation_id=2)
    notes = built.table("public.notes", COLUMNS, relation_id=3, key=())
    for number in ("1", "2"):
        for table in (orders, lines, notes):
            built.insert(table, number, "a")
    [lanes] = of(built)
    assert sorted(lanes) == [["c", "c"], ["c1"], ["c1"], ["c2"], ["c2"]]


def test_one_thread_alone_walks_what_several_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator that threads share gives each lane once only where a lock guards all threads."""
    built = orders_log(tmp_path, range(300))
    walkers: list[set[str]] = []
    takers: set[str] = set()

    class Watched(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            walkers.append(walking := set())
            for each in super().__iter__():
                walking.add(threading.current_thread().name)
                yield each

    met = threading.Barrier(2, timeout=30)

    def consume(event: Event) -> None:
        takers.add(threading.current_thread().name)
        if event.after and event.after["id"] < 2:
            met.wait()  # two take at once

    monkeypatch.setattr(ProcessorChain, "groups", lambda _self, lanes, _workers: Watched(lanes))
    core = engine(Gates(tmp_path), consumer=consume, consume_records_async=True)
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert run.error is None
    assert len(takers) > 1
    assert [len(walking) for walking in walkers] == [1] * len(walkers)
