"""What becomes of batches that come again, and of errors that end an output's query."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from tests.support.build_log import BuiltLog

from tidelog.errors import OutputError, Policy
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.ports import OutputBatch
from tidelog.spark.datasource import segment_rows
from tidelog.spark.failures import HostBusyError, QueryFailedError
from tidelog.spark.formats.shapes import SEGMENTS
from tidelog.spark.queries import stream
from tidelog.spark.queries.stream import OutputStream, QueryProgress, StreamOptions, _Loop


def options(on_progress: Callable[[QueryProgress], None] | None = None) -> StreamOptions:
    return StreamOptions(True, 1 << 20, 1.0, on_progress, lambda _output, _error: None)


@pytest.mark.parametrize(
    ("said", "kind", "policy"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to "
            "connect back. SQLSTATE: XXKST",
            HostBusyError,
            Policy.RETRY,
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: secret",
            QueryFailedError,
            None,
        ),
    ],
)
def test_a_worker_that_did_not_start_is_tried_again(
    tmp_path: Path, said: str, kind: type[Exception], policy: Policy | None
) -> None:
    output: Any = None
    loop = _Loop(BuiltLog(tmp_path / "log").log, output, lambda _: None, "q", options(), 0)
    found = loop.explain(RuntimeError(said))
    assert type(found) is kind
    assert "secret" not in str(found)
    assert policy is None or found.policy is policy


def test_a_jvm_that_is_gone_is_named(tmp_path: Path) -> None:
    output: Any = None
    loop = _Loop(BuiltLog(tmp_path / "log").log, output, lambda _: None, "q", options(), 0)
    for error in (ConnectionRefusedError(111, "refused"), Py4JNetworkError("Answer is empty")):
        assert "the JVM of Spark was killed or ended" in str(loop.explain(error))


class Noting:
    """An output that notes the ends of batches."""

    name = "noting"

    def __init__(self) -> None:
        self.ends: list[int] = []

    def write(self, batch: OutputBatch) -> None:
        self.ends.append(batch.end)


class Frame:
    """Rows of the shape ``segments``, as Spark hands them to a batch."""

    def __init__(self, built: BuiltLog, start: int, end: int) -> None:
        found = segment_rows.rows(built.log, start, end, ())
        self._rows = [dict(zip(SEGMENTS.names, row, strict=True)) for row in found]

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def test_a_batch_that_comes_again_is_told_once(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    bounds = [built.log.head_offset]
    for count in (3, 2):
        for row in range(count):
            built.insert(table, str(row))
        bounds.append(built.flush().next)
    told: list[QueryProgress] = []
    output: Any = Noting()
    loop = _Loop(built.log, output, lambda _: None, "q", options(told.append), 0)
    frames: list[Any] = [Frame(built, bounds[0], bounds[1]), Frame(built, bounds[1], bounds[2])]
    for number, frame in enumerate([frames[0], frames[0], frames[1]]):
        loop.batch(frame, number)
    assert output.ends == [bounds[1], bounds[1], bounds[2]]
    assert [(each.rows, each.end, each.output) for each in told] == [
        (3, bounds[1], "noting"),
        (2, bounds[2], "noting"),
    ]


class Rejecting(Noting):
    """An output whose destination rejected some records."""

    def prepare(self, generation: str) -> None: ...
    def committed(self, table: Any) -> int | None: ...
    def close(self) -> None: ...
    def rejected(self) -> int:
        return 7

    def refused_tables(self) -> dict[str, str]:
        return {"public.x": "why"}

    def take_again(self, ask: Any) -> None: ...


def test_rejections_are_told_with_the_batch(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    end = built.flush().next
    told: list[QueryProgress] = []
    for output in (Rejecting(), Noting()):
        given: Any = output
        loop = _Loop(built.log, given, lambda _: None, "q", options(told.append), 0)
        frame: Any = Frame(built, built.log.head_offset, end)
        loop.batch(frame, 0)
    assert [each.rejected for each in told] == [7, 0]
    assert [each.refused for each in told] == [{"public.x": "why"}, {}]


def test_of_a_batch_that_is_cut_otherwise_only_the_rest_is_told(tmp_path: Path) -> None:
    """As after a lost checkpoint: what earlier runs brought over is not in the report again."""
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    bounds = [built.log.head_offset]
    for count in (3, 2):
        for row in range(count):
            built.insert(table, str(row))
        bounds.append(built.flush().next)
    told: list[QueryProgress] = []
    output: Any = Noting()
    loop = _Loop(built.log, output, lambda _: None, "q", options(told.append), bounds[1])
    frame: Any = Frame(built, bounds[0], bounds[2])
    loop.batch(frame, 0)
    assert output.ends == [bounds[2]]
    assert [(each.start, each.end, each.rows) for each in told] == [(bounds[1], bounds[2], 2)]


class Busy(Noting):
    """An output of which a task's Python worker did not start."""

    def write(self, batch: OutputBatch) -> None:
        cause = RuntimeError("Python worker failed to connect back.")
        raise OutputError("writing failed") from cause


def test_a_worker_that_did_not_start_amid_a_write_is_the_host_s_fault(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    output: Any = Busy()
    loop = _Loop(built.log, output, lambda _: None, "q", options(), 0)
    frame: Any = Frame(built, built.log.head_offset, built.flush().next)
    with pytest.raises(OutputError):
        loop.batch(frame, 0)
    assert isinstance(loop.explain(RuntimeError("the query failed")), HostBusyError)


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
    EventLogMaintenance(built.path).rollup(min_age_s=-10, min_segments=2)
    log = EventLog.open(built.path)
    assert len(log.chain().between(0, end)) == 1
    whole, part = (segment_rows.rows(log, start, end, ()) for start in (log.head_offset, middle))
    assert [(row[2], row[4]) for row in whole] == [
        ("public.t0", 4), ("public.t1", 5), ("public.t2", 4),
    ]  # fmt: skip
    assert [(row[0], row[1], row[2], row[4]) for row in part] == [(middle, end, "public.t1", 1)]


class Failing(OutputStream):
    """A stream whose query ends ``times`` with an error of Spark that is not known."""

    times = 0

    def _query(self, stop: threading.Event) -> None:
        if self.times:
            self.times -= 1
            raise QueryFailedError("the pipeline's query failed with Py4JJavaError")


@pytest.mark.parametrize(("times", "left"), [(3, 0), (9, 5)])
def test_an_error_of_spark_that_is_not_known_is_tried_again_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, left: int
) -> None:
    monkeypatch.setattr(stream, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(stream, "_STOPPING_S", 0.01)
    built, spark, output = BuiltLog(tmp_path / "log"), cast(Any, None), cast(Any, Noting())
    running = Failing(
        spark, built.log, built.path, output, "", "q", lambda _: None, 0,
        replace(options(), once=False),
    )  # fmt: skip
    running.times = times
    running._prepared = True
    if left:
        with pytest.raises(QueryFailedError):
            running.run(threading.Event())
    else:
        running.run(threading.Event())
    assert running.times == left
