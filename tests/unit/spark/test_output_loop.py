"""The loop that delivers the log to an output: batches, retries, reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from tests.support.build_log import BuiltLog

from tidelog.errors import (
    DecodeError,
    OffsetGoneError,
    OutputError,
    OutputRefusedError,
    StorageError,
    TidelogError,
)
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.ports import OutputBatch
from tidelog.spark import output_loop
from tidelog.spark.datasource import segment_rows
from tidelog.spark.datasource.partitions import RECORD_BYTES
from tidelog.spark.output_loop import (
    BatchProgress,
    LeftOutTables,
    LoopCallbacks,
    LoopOptions,
    OutputLoop,
    RunningBatch,
)
from tidelog.spark.sessions.errors import HostBusyError, SparkGoneError
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_STOPPING_S", "_POLL_S", "_WAIT_S"):
        monkeypatch.setattr(output_loop, name, 0.01)
    monkeypatch.setattr(output_loop, "_RETRY_S", Backoff(0.01, 0.01))


class Scene:
    """A log of one table, an output, and what the loop reports."""

    def __init__(self, directory: Path) -> None:
        self.built = BuiltLog(directory / "log")
        self.table = self.built.table("public.t", {"id": "int64"})
        self.batches: list[BatchProgress] = []
        self.failures: list[TidelogError] = []
        self.long: list[RunningBatch | None] = []
        self.options = LoopOptions(once=True, max_batch_bytes=1 << 20)
        self.callbacks = LoopCallbacks(
            on_batch=self.batches.append,
            on_failure=lambda _, error: self.failures.append(error),
            on_long_batch=lambda _, batch: self.long.append(batch),
        )

    def insert(self, rows: int) -> int:
        """Where the log ends then."""
        for row in range(rows):
            self.built.insert(self.table, str(row))
        return self.built.flush().next

    def loop(self, output: Any, done: int | None = None, **how: Any) -> OutputLoop:
        resume = how.pop("resume", None)
        reported = {name: how.pop(name) for name in list(how) if hasattr(self.callbacks, name)}
        options, callbacks = replace(self.options, **how), replace(self.callbacks, **reported)
        done = self.built.log.head_offset if done is None else done
        return OutputLoop(self.built.log, output, done, options, callbacks, resume)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


class Output:
    """Keeps the ends of its batches; ``errors`` are raised by the first writes."""

    name = "kept"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.ends: list[int] = []
        self.tables: list[list[str]] = []
        self.prepared = 0

    def prepare(self, _generation: str) -> None:
        self.prepared += 1

    def write(self, batch: OutputBatch) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.ends.append(batch.end)
        self.tables.append([str(each.table) for each in batch.tables])


def run(loop: OutputLoop) -> None:
    loop.run(threading.Event())


def test_batches_take_whole_segments_up_to_the_limit(scene: Scene) -> None:
    ends = [scene.insert(rows) for rows in (3, 2, 4)]
    output = Output()
    run(scene.loop(output, max_batch_bytes=1))
    assert output.ends == ends
    assert [(each.number, each.rows, each.end) for each in scene.batches] == [
        (1, 3, ends[0]), (2, 2, ends[1]), (3, 4, ends[2]),
    ]  # fmt: skip
    assert scene.batches[0].rows_by_table == {"public.t": 3}
    together = Output()
    run(scene.loop(together))
    assert together.ends == ends[-1:]


def test_a_batch_counts_what_a_record_takes_beside_its_payload(scene: Scene) -> None:
    """So that a task of a lake can take a batch of one table without a shuffle."""
    ends = [scene.insert(rows) for rows in (10, 10, 10)]
    payload = scene.built.log.segments(0)[0].payload_bytes
    output = Output()
    run(scene.loop(output, max_batch_bytes=2 * (payload + 10 * RECORD_BYTES)))
    assert output.ends == ends[1:]


def test_a_run_starts_where_the_last_one_ended(scene: Scene) -> None:
    scene.insert(3)
    middle, output = scene.built.log.latest_offset(), Output()
    end = scene.insert(2)
    run(scene.loop(output, done=middle))
    assert [(each.start, each.end, each.rows) for each in scene.batches] == [(middle, end, 2)]
    run(scene.loop(output, done=end))
    assert output.ends == [end]


def test_once_ends_where_the_log_ended_when_it_started(scene: Scene) -> None:
    end = scene.insert(3)

    class Growing(Output):
        def write(self, batch: OutputBatch) -> None:
            super().write(batch)
            scene.insert(1)

    output = Growing()
    run(scene.loop(output))
    assert output.ends == [end]


def test_what_was_removed_is_skipped_where_dumps_repair_it_and_else_an_error(scene: Scene) -> None:
    scene.insert(3)
    middle = scene.built.log.latest_offset()
    end = scene.insert(2)
    EventLogMaintenance(scene.built.path).retain(1.0, now_ms=unix_ms() + 10_000_000)
    head = EventLog.open(scene.built.path).head_offset
    assert head >= middle
    with pytest.raises(OffsetGoneError, match="output kept stands at offset 0"):
        run(scene.loop(Output(), done=0))
    output = Output()
    loop = scene.loop(output, done=0, resume=lambda _done: head)
    run(loop)
    assert loop.done == end


@pytest.mark.parametrize("times", [3, 9])
def test_an_error_that_may_pass_is_retried_three_times_by_a_run_that_ends(
    scene: Scene, times: int
) -> None:
    end = scene.insert(1)
    output = Output(*(OutputError("away") for _ in range(times)))
    if times > 3:
        with pytest.raises(OutputError, match="away"):
            run(scene.loop(output))
        assert len(scene.failures) == 3
    else:
        run(scene.loop(output))
        assert output.ends == [end]
        assert len(scene.batches) == 1


def test_a_pipeline_that_follows_the_log_retries_until_it_is_stopped(scene: Scene) -> None:
    end, stop = scene.insert(1), threading.Event()
    output = Output(*(OutputError("away") for _ in range(20)))
    stopping: Any = lambda progress: (scene.batches.append(progress), stop.set())  # noqa: E731
    scene.loop(output, once=False, on_batch=stopping).run(stop)
    assert output.ends == [end]
    assert len(scene.failures) == 20


def test_an_error_that_stays_is_raised_at_once(scene: Scene) -> None:
    scene.insert(1)
    with pytest.raises(DecodeError):
        run(scene.loop(Output(DecodeError("what"), DecodeError("again"))))
    assert not scene.failures


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ConnectionRefusedError(111, "secret"), SparkGoneError, "the JVM of Spark was killed"),
        (Py4JNetworkError("secret"), SparkGoneError, "the JVM of Spark was killed"),
        (RuntimeError("secret"), OutputError, "a batch failed with RuntimeError"),
        (KeyError("secret"), OutputError, "a batch failed with KeyError"),
        (TypeError("secret"), OutputRefusedError, "every retry will fail"),
        (
            RuntimeError("secret: Python worker failed to connect back."),
            HostBusyError,
            "did not start within 10 s",
        ),
    ],
)
def test_what_spark_fails_with_is_reported_without_values(
    scene: Scene, error: Exception, kind: type[TidelogError], text: str
) -> None:
    scene.insert(1)
    with pytest.raises(kind, match=text) as caught:
        run(scene.loop(Output(*[error] * 20)))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_delivered_batch_is_not_written_again_where_storing_it_fails(scene: Scene) -> None:
    end, stored = scene.insert(1), []
    failing = [StorageError("away"), StorageError("away")]

    def store(progress: BatchProgress) -> None:
        if failing:
            raise failing.pop()
        stored.append(progress.end)

    output = Output()
    run(scene.loop(output, on_batch=store))
    assert output.ends == [end]
    assert stored == [end]


def test_a_paused_output_gets_nothing_until_it_is_resumed(scene: Scene) -> None:
    scene.insert(1)
    paused, stop, output = threading.Event(), threading.Event(), Output()
    paused.set()
    loop = scene.loop(output, once=False, is_paused=paused.is_set)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        time.sleep(0.1)
        assert not output.ends
        end = scene.insert(1)
        paused.clear()
        wait_for(lambda: output.ends == [end])
    finally:
        stop.set()
        thread.join(10)


class Hanging(Output):
    """Writes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def write(self, batch: OutputBatch) -> None:
        self.begun.set()
        self.let_go.wait(30)
        super().write(batch)


@pytest.mark.parametrize("lost", [False, True])
def test_a_stop_waits_for_the_batch_but_not_once_the_lease_is_lost(
    scene: Scene, lost: bool
) -> None:
    end, output, stop = scene.insert(1), Hanging(), threading.Event()
    lease_lost = threading.Event()
    loop = scene.loop(output, once=False, lost=lease_lost)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    assert output.begun.wait(10)
    if lost:
        lease_lost.set()
    stop.set()
    thread.join(10 if lost else 0.2)
    assert thread.is_alive() is not lost
    output.let_go.set()
    thread.join(10)
    wait_for(lambda: output.ends == [end])
    time.sleep(0.05)
    # Another process leads: what comes to an end here is not stored as delivered.
    assert [each.end for each in scene.batches] == ([] if lost else [end])
    assert loop.done == (0 if lost else end)


def test_a_batch_that_takes_long_is_reported_until_it_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_loop, "LONG_S", 0.05)
    scene.insert(3)
    output, stop = Hanging(), threading.Event()
    thread = threading.Thread(target=scene.loop(output).run, args=(stop,))
    thread.start()
    wait_for(lambda: len(scene.long) == 1)
    assert scene.long[0] is not None
    assert scene.long[0].records == 3
    time.sleep(0.1)
    assert len(scene.long) == 1
    output.let_go.set()
    thread.join(10)
    assert scene.long[1:] == [None]


def test_rows_are_asked_for_once_for_a_batch_that_is_retried(scene: Scene) -> None:
    end, asked = scene.insert(1), []
    output = Output(OutputError("away"))
    run(scene.loop(output, ask_for_rows=lambda _, batch: asked.append(batch.end)))
    assert asked == [end]


class Maintained(Output):
    """An output with maintenance that is due at once."""

    finished: int | None = None

    def committed(self, table: Any) -> int | None: ...
    def close(self) -> None: ...
    def finish(self, stop: threading.Event) -> None:
        assert not stop.is_set()
        self.finished = len(self.ends)


def test_once_ends_with_the_maintenance_that_is_due(scene: Scene) -> None:
    output = Maintained()
    for _ in range(2):
        scene.insert(1)
    run(scene.loop(output, max_batch_bytes=1))
    assert output.finished == len(output.ends) == 2


class Bounded(Output):
    """An output that takes a segment at a time."""

    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self.segments = ends

    def committed(self, table: Any) -> int | None: ...
    def close(self) -> None: ...
    def end_of_batch(self, start: int, end: int) -> int:
        return min(end, *(each for each in self.segments if each > start))


def test_an_output_bounds_its_batches(scene: Scene) -> None:
    ends = [scene.insert(rows) for rows in (3, 2, 4)]
    output = Bounded(ends)
    run(scene.loop(output))
    assert output.ends == ends


@pytest.mark.parametrize("frequent", [True, False])
def test_batches_of_an_output_without_files_may_come_more_often(
    scene: Scene, frequent: bool
) -> None:
    output, stop = Output(), threading.Event()
    output.frequent = frequent  # type: ignore[attr-defined]
    ends = [scene.insert(1), scene.insert(1)]
    options = {"once": False, "max_batch_bytes": 1, "trigger_s": 60.0, "frequent_s": 0.01}
    thread = threading.Thread(target=scene.loop(output, **options).run, args=(stop,))
    thread.start()
    wait_for(lambda: len(output.ends) == (2 if frequent else 1))
    time.sleep(0.2)
    stop.set()
    thread.join(10)
    assert output.ends == (ends if frequent else ends[:1])


def test_frequent_batches_leave_half_of_the_time_free(scene: Scene) -> None:
    output = Output()
    loop = scene.loop(output, trigger_s=1.0, frequent_s=0.2)
    assert [loop._pause_s(took_s) for took_s in (0.25, 1.5)] == [0.75, 0.0]
    output.frequent = True  # type: ignore[attr-defined]
    waits = [loop._pause_s(took_s) for took_s in (0.05, 0.25, 0.75, 1.5)]
    assert waits == pytest.approx([0.15, 0.25, 0.25, 0.0])


class Rejecting(Output):
    """An output whose destination rejected some records."""

    def committed(self, table: Any) -> int | None: ...
    def close(self) -> None: ...
    def rejected(self) -> int:
        return 7

    def left_out_tables(self) -> dict[str, str]:
        return {"public.x": "why"}

    def keyless_tables(self) -> dict[str, str]:
        return {"public.y": "appended"}

    def take_again(self, ask: Any) -> None: ...


def test_tables_that_are_left_out_are_tried_again_between_batches_and_behind_the_last(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_loop, "_TAKE_AGAIN_S", 0.0)
    output = Rejecting()
    tried: list[int] = []
    monkeypatch.setattr(output, "take_again", lambda _ask: tried.append(len(scene.batches)))
    for rows in (1, 1):
        scene.insert(rows)
    run(scene.loop(output, max_batch_bytes=1))
    assert tried == [0, 0, 1, 2]


def test_which_tables_are_left_out_is_reported_before_the_first_batch(scene: Scene) -> None:
    told: list[tuple[str, Any]] = []
    scene.loop(Rejecting(), on_tables=lambda *each: told.append(each)).prepare()
    left_out = LeftOutTables({"public.x": "why"}, {"public.y": "appended"}, {})
    assert told == [("kept", left_out)]


@pytest.mark.parametrize("captured", ["public.x", "public.y"])
def test_nobody_misses_a_table_that_the_source_has_no_longer(scene: Scene, captured: str) -> None:
    told: list[tuple[str, Any]] = []
    loop = scene.loop(
        Rejecting(), on_tables=lambda *each: told.append(each), captured=lambda: [captured]
    )
    loop.prepare()
    assert [[*tables.refused, *tables.keyless] for _, tables in told] == [[captured]]


def test_rejections_are_reported_with_the_batch(scene: Scene) -> None:
    scene.insert(1)
    for output in (Rejecting(), Output()):
        run(scene.loop(output))
    assert [each.rejected for each in scene.batches] == [7, 0]
    assert [each.left_out.keyless for each in scene.batches] == [{"public.y": "appended"}, {}]
    assert [each.left_out.refused for each in scene.batches] == [{"public.x": "why"}, {}]


class Refused(Output):
    """Its destination refuses it ``times`` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def prepare(self, generation: str) -> None:
        super().prepare(generation)
        if self.prepared <= self.times:
            raise OutputRefusedError("no right")


def test_what_refuses_an_output_at_the_start_is_raised_by_its_run_alone(scene: Scene) -> None:
    """So outputs beside it run; and at the next try it is checked again."""
    end, output = scene.insert(1), Refused(2)
    loop = scene.loop(output, once=False)
    loop.prepare()
    for _ in range(2):
        with pytest.raises(OutputRefusedError, match="no right"):
            run(loop)
    assert output.prepared == 2, "what was found at the start is not asked for again"
    stop, up_to_date = threading.Event(), list[str]()

    def note(name: str) -> None:
        up_to_date.append(name)
        stop.set()

    loop = scene.loop(output, once=False, on_up_to_date=note)
    loop.run(stop)
    assert (output.ends, up_to_date) == ([end], ["kept"])


def test_an_error_that_nobody_foresaw_at_the_start_is_raised_by_its_run_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised at the start, it would end capture, too."""

    def prepare(_generation: str) -> None:
        raise ValueError("a mistake")

    output = Output()
    monkeypatch.setattr(output, "prepare", prepare)
    loop = scene.loop(output, once=False)
    loop.prepare()
    with pytest.raises(ValueError, match="a mistake"):
        run(loop)


def test_with_once_an_output_that_is_refused_lets_nothing_begin(scene: Scene) -> None:
    with pytest.raises(OutputRefusedError, match="no right"):
        scene.loop(Refused(1)).prepare(refuses=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_part_of_a_rolled_up_segment_has_its_own_tables_alone(tmp_path: Path) -> None:
    """After a start amid it: else each table there is would be brought over anew."""
    built = BuiltLog(tmp_path / "log")
    tables = [built.table(f"public.t{n}", {"id": "int64"}, relation_id=n + 1) for n in range(3)]
    for table in tables:
        for row in range(4):
            built.insert(table, str(row))
    middle = built.flush().next
    built.insert(tables[1], "9")
    end = built.flush().next
    built.insert(tables[2], "9")  # the newest segment is left as it is
    built.flush()
    EventLogMaintenance(built.path).rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    log = EventLog.open(built.path)
    assert len(log.chain().between(0, end)) == 1
    whole, part = (
        segment_rows.rows_of_segments(log, start, end, ()) for start in (log.head_offset, middle)
    )
    assert [(row[2], row[4]) for row in whole] == [
        ("public.t0", 4), ("public.t1", 5), ("public.t2", 4),
    ]  # fmt: skip
    assert [(row[0], row[1], row[2], row[4]) for row in part] == [(middle, end, "public.t1", 1)]
