"""Which events may be consumed at once if order is kept by key."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.build_log import BuiltLog
from tests.support.engines import COLUMNS

from tidelog.app.async_engine.log_task import LogTask
from tidelog.engine.processing.lanes import stages


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
