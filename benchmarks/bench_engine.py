"""An engine in a program: change events into its own functions.

``micro``  a source in memory → a consumer that discards: six modes, threads and processes, one and
           two workers, transforms that cost 0, 10 and 100 µs
``after``  a consumer that reads each typed event's row, against one that takes Debezium's JSON as
           bytes, and one that parses it
``mixed``  events of one table, and of two whose changes alternate
``whole``  PostgreSQL → capture → engine → a consumer that discards, all in one process; against
           pg_recvlogical, which writes the same changes to a file

    python -m benchmarks.bench_engine [micro] [after] [mixed] [whole] [--changes N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.bench_capture import INSERT, Bench, bench, recvlogical
from benchmarks.spark_workload import build_alternating, build_tables
from benchmarks.table import HEADER, Row, show
from tidelog import AsyncEngine, Committer, Config, EngineState, Event, Events
from tidelog.app.async_engine.engine import CaptureConnector
from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.core import assemble
from tidelog.engine.event_batches import EventBatch, group_by_schema
from tidelog.engine.options import EngineOptions
from tidelog.eventlog.reader import EventLog


def work(event: Event, cost_us: int) -> Event:
    """A transform in Python that takes so much CPU."""
    until = time.thread_time_ns() + cost_us * 1000
    while time.thread_time_ns() < until:
        pass
    return event


def discard(_event: Any) -> None:
    """A consumer that does nothing, of a module: processes take it."""


def discard_batch(events: Any, committer: Committer) -> None:
    committer.mark_processed(events)
    committer.mark_batch_finished()


def discard_arrow(events: Events, committer: Committer) -> None:
    for _schema, _rows in events.runs():
        pass
    discard_batch(events, committer)


MODES: dict[int, dict[str, Any]] = {
    1: {"change_consumer": discard_batch},
    2: {"change_consumer": discard_batch, "format": "debezium"},
    3: {"consumer": discard},
    4: {"consumer": discard, "format": "debezium"},
    5: {"consumer": discard, "consume_records_async": True},
    6: {"consumer": discard, "consume_records_async": True, "format": "debezium"},
}


def batches(log: Path) -> Iterator[Events]:
    """All of a log, decoded."""
    end = EventLog.open(log).latest_offset()
    task = LogTask(str(log), "floor", batch_size=BATCH, offsets=Forgetful())
    task.start(threading.Event())
    reached = 0
    while reached < end and (events := task.poll(0.0)) is not None:
        reached = events.end
        yield events


class Forgetful:
    """A store of no offsets: each run begins at the log's head."""

    def read(self, task: str) -> None: ...

    def write(self, task: str, stored: Any) -> None: ...


BATCH = 2048
EVENTS = {0: 60_000, 10: 30_000, 100: 12_000}  # by the cost of a transform, in µs


class Synthetic:
    """`tidelog.engine.ports.SourceTask`: batches that are in memory, so that nothing but the engine
    is measured. Notes when each was committed.
    """

    def __init__(self, name: str, polled: Sequence[Events]) -> None:
        self.name = name
        self.done = threading.Event()
        self.commits: list[float] = []
        # Other batches, which no run before this one has made Python values of.
        self._left = iter([_afresh(events) for events in polled])
        self._end = polled[-1].end

    def start(self, cancelled: threading.Event) -> None: ...

    def poll(self, timeout_s: float) -> Events | None:
        events = next(self._left, None)
        if events is None:
            time.sleep(timeout_s)
            return None
        return events

    def committed(self) -> int | None:
        return None

    def commit(self, offset: int) -> None:
        self.commits.append(time.perf_counter())
        if offset >= self._end:
            self.done.set()

    def stop(self) -> None: ...


def _afresh(events: Events) -> Events:
    """As it was decoded: the runs of a table's version are slices of one batch."""
    batches, places = group_by_schema(events.parts)
    whole = [EventBatch(each.schema, each.origin, each.data) for each in batches]
    taken = [0] * len(whole)
    parts = []
    for part, at in zip(events.parts, places, strict=True):
        parts.append(whole[at].slice(taken[at], taken[at] + len(part)))
        taken[at] += len(part)
    return Events(parts, events.end, events.generation)


def events_per_s(
    polled: Sequence[Events], name: str, mode: dict[str, Any], **options: Any
) -> float:
    """Without the first third of the batches: by then all workers have started."""
    given = dict(mode)
    name_of_format = given.pop("format", None)
    if given.get("consume_records_async"):
        options["order"] = "none"
    serializer = None if name_of_format is None else FormatSerializer(name_of_format)
    task = Synthetic(name, polled)
    core = assemble(
        CaptureConnector([task]), EngineOptions(**options), serializer=serializer, **given
    )
    thread = threading.Thread(target=core.run)
    thread.start()
    while not task.done.wait(1.0) and thread.is_alive():
        pass
    core.close()
    thread.join()
    assert len(task.commits) == len(polled) > 1
    begun = len(polled) // 3
    return sum(map(len, polled[begun + 1 :])) / (task.commits[-1] - task.commits[begun])


def micro(quick: bool) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch:
        for cost_us, events in EVENTS.items():
            log = Path(scratch) / f"log{cost_us}"
            build_tables(log, 2 * BATCH if quick else events, 1)
            transforms = [partial(work, cost_us=cost_us)] if cost_us else []
            polled = list(batches(log))
            floors = {name: loop_per_s(polled, name, transforms) for name in (None, "debezium")}
            for number, mode in MODES.items():
                floor = floors[mode.get("format")]
                for on in ("threads", "processes"):
                    one, two = (
                        events_per_s(
                            polled,
                            f"m{number}{on}{workers}",
                            {**mode, "transforms": transforms},
                            record_processing_on=on,
                            record_processing_threads=workers,
                        )
                        for workers in (1, 2)
                    )
                    asked = on == "processes" and cost_us == 100
                    rows.append(
                        Row(
                            f"mode {number}, {on}, a transform of {cost_us} µs",
                            f"1: {one:,.0f}, 2: {two:,.0f} events/s",
                            f"{floor:,.0f} events/s (a loop)",
                            f"2 to 1: {two / one:.2f} ×",
                            "≥ 1.7 ×" if asked else "",
                        )
                    )
                    show(rows[-1:])
    return []


def read_after(event: Any) -> None:
    event.after  # noqa: B018 - what is measured


def parse_json(message: Any) -> None:
    if message.value is not None:
        json.loads(message.value)


def after(quick: bool) -> list[Row]:
    """In turns, the best of three: the machine may be busy for one of them."""
    ways: dict[str, dict[str, Any]] = {
        "event.after": {"consumer": read_after},
        "JSON as bytes": {"consumer": discard, "format": "debezium"},
        "JSON, parsed": {"consumer": parse_json, "format": "debezium"},
    }
    best = dict.fromkeys(ways, 0.0)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch:
        log = Path(scratch) / "log"
        build_tables(log, 2 * BATCH if quick else EVENTS[0], 1)
        polled = list(batches(log))
        for turn in range(1 if quick else 3):
            for number, (name, mode) in enumerate(ways.items()):
                found = events_per_s(polled, f"a{number}{turn}", mode, record_processing_threads=1)
                best[name] = max(best[name], found)
    typed, *others = ((name, 1e6 / found) for name, found in best.items())
    return [
        Row(
            "each event, total order: event.after, 10 columns",
            f"{typed[1]:.2f} µs an event",
            f"{cost:.2f} µs ({name})",
            f"{typed[1] / cost:.2f} ×",
            "≤ 1 ×",
        )
        for name, cost in others
    ]


def mixed(quick: bool) -> list[Row]:
    """Runs of one event each must cost little more than long ones."""
    events = 2 * BATCH if quick else 30_000
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch:
        logs = [Path(scratch) / f"log{tables}" for tables in (1, 2)]
        for tables, log in enumerate(logs, 1):
            build_alternating(log, events, tables)
        both = [list(batches(log)) for log in logs]
        for number, transforms in [(2, []), (4, []), (4, [partial(work, cost_us=0)]), (6, [])]:
            for on in ("threads", "processes"):
                one, two = (
                    events_per_s(
                        polled,
                        f"x{number}{on}{len(transforms)}",
                        {**MODES[number], "transforms": transforms},
                        record_processing_on=on,
                        record_processing_threads=2,
                    )
                    for polled in both
                )
                behind = ", a transform" if transforms else ""
                row = Row(
                    f"mode {number}, {on}{behind}, two tables that alternate",
                    f"{two:,.0f} events/s",
                    f"{one:,.0f} events/s (one table)",
                    f"{two / one:.2f} ×",
                    "≥ 0.5 ×",
                )
                show([row])
    return []


def loop_per_s(polled: Sequence[Events], name: str | None, transforms: list[Any]) -> float:
    """Events a second of a loop that does the same in one thread."""
    serializer = None if name is None else FormatSerializer(name)
    if serializer is not None:
        serializer.serialize(polled[0])  # compiled kernels are loaded
    began = time.perf_counter()
    for events in polled:
        for event in events:
            for transform in transforms:
                transform(event)
        for message in () if serializer is None else serializer.serialize(events):
            discard(message)
    return sum(map(len, polled)) / (time.perf_counter() - began)


WHOLE: dict[str, tuple[dict[str, Any], str]] = {
    "Debezium JSON, each event, total order": (MODES[4], "≤ 8 µs CPU"),
    "typed, each event, total order": (MODES[3], "≤ 6 µs CPU"),
    "batches as Arrow": ({"change_consumer": discard_arrow}, "≤ 2.5 µs CPU"),
}
WARM_ROWS = 20_000


def whole(quick: bool, changes: int = 0) -> list[Row]:
    """A backlog for each way of taking events, by one slot and log; pg_recvlogical reads the same
    one before and after: the better counts, as the machine may be busy for one of them.
    """
    changes = changes or (20_000 if quick else 1_000_000)
    rows = []
    first = 1
    with bench() as here:
        with here.capture() as process:  # the slot, before the changes
            process.terminate()
            process.wait()
        for number, (what, (mode, goal)) in enumerate(WHOLE.items()):
            _fill(here, first, WARM_ROWS)
            _measured(here.config, mode, WARM_ROWS)  # compiled kernels are loaded, pages are there
            floors = [f"floor{number}{which}" for which in ("a", "b")]
            for floor in floors:
                here.server.execute(
                    f"SELECT pg_copy_logical_replication_slot('tidelog', '{floor}')"
                )
            _fill(here, first + WARM_ROWS, changes)
            first += WARM_ROWS + changes
            end = here.server.execute("SELECT pg_current_wal_lsn()::text")[0][0]
            here.server.execute("CHECKPOINT")
            before = recvlogical(here, floors[0], end)
            seconds, cpu = _measured(here.config, mode, changes)
            floor_s, floor_cpu = min(before, recvlogical(here, floors[1], end))
            for floor in floors:
                here.server.execute(f"SELECT pg_drop_replication_slot('{floor}')")
            rows.append(
                Row(
                    f"PostgreSQL → engine → a consumer that discards; {what}; {changes:,} events",
                    f"{changes / seconds:,.0f} events/s, {cpu / changes * 1e6:.2f} µs CPU",
                    f"{changes / floor_s:,.0f} rows/s, {floor_cpu / changes * 1e6:.2f} µs CPU "
                    "(pg_recvlogical to a file)",
                    f"{floor_s / seconds:.2f} ×; CPU {cpu / floor_cpu:.2f} ×",
                    goal,
                )
            )
    return rows


def _fill(here: Bench, first: int, rows: int) -> None:
    with psycopg.connect(here.dsn, autocommit=True) as connection:
        for low in range(first, first + rows, 1_000):
            last = min(first + rows, low + 1_000) - 1
            connection.execute(INSERT.format(first=low, last=last))


def _measured(config: Config, mode: dict[str, Any], changes: int) -> tuple[float, float]:
    """Wall and CPU seconds of this process, start and end of the engine included."""
    left, done = changes, threading.Event()

    def each(_event: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    def batch(events: Events, committer: Committer) -> None:
        nonlocal left
        discard_arrow(events, committer)
        left -= len(events)
        if left <= 0:
            done.set()

    given = dict(mode)
    taker = "consumer" if "consumer" in mode else "change_consumer"
    given[taker] = each if taker == "consumer" else batch
    engine = AsyncEngine(config, **given)
    began, before = time.perf_counter(), time.process_time()
    with engine:
        while not done.wait(1.0):
            if engine.state is EngineState.STOPPED:
                break  # what ended it is raised here
    took = time.perf_counter() - began, time.process_time() - before
    assert left == 0, left
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="micro, after, mixed, whole; default: all")
    parser.add_argument("--changes", type=int, default=0, help="of whole; default: 1,000,000")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    known: dict[str, Callable[[bool], list[Row]]] = {
        "micro": micro,
        "after": after,
        "mixed": mixed,
        "whole": partial(whole, changes=given.changes),
    }
    sys.stdout.write(HEADER)
    for part in given.parts or known:
        show(known[part](given.quick))


if __name__ == "__main__":
    main()
