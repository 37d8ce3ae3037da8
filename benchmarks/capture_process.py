"""Runs the shipped capture in a process of its own and measures it from inside.

    python -m benchmarks.capture_process CONFIG [--records N] [--clock COLUMN] [--eager-metrics]

Writes a JSON line ``{"ready": …}`` once it leads. It ends when ``--records`` are durable, or on
SIGTERM; then it writes one JSON line: seconds and CPU seconds from the connection on, records, peak
resident memory in MB, and the commit-to-durable latencies of log records in ms, as percentiles.
``stages_ms`` tells of the slowest hundredth, of MySQL and MariaDB, the medians of the times until
the socket was read, the batch queued, its append begun, and durable. With ``--clock`` latencies are
from the times that are in this column, such as the statement's, of the tables that have it:
MariaDB's log tells commits to the second only. With ``--eager-metrics`` nothing is remembered from
one look at metrics to the next, and they are pushed all the time.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from tidelog import app
from tidelog.app.capture import run as capture_run
from tidelog.capture.session.session import CaptureSession
from tidelog.capture.writer_thread import OutputBuffer
from tidelog.codecs.decode import decode
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.segments import SegmentMeta
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.sources.mysql.stream.replication import BinlogStream


class TimedWriter(EventLogWriter):
    """Notes, after each segment is durable, how long ago its records were committed."""

    latencies_ms: ClassVar[list[tuple[float, Any]]] = []
    appended: ClassVar[list[tuple[float, int, int]]] = []  # seconds, offsets from and to
    queued: ClassVar[dict[int, tuple[float, float]]] = {}  # of a batch: socket read, then queued
    stages: ClassVar[list[tuple[float, Any]]] = []

    def append_log(self, batches: Sequence[LogBatch], resume: Resume | None = None) -> SegmentMeta:
        began = time.time()
        meta = super().append_log(batches, resume)
        now_us = time.time_ns() // 1000
        self.appended.append((now_us / 1e6, meta.first, meta.next))
        for batch in batches:
            self.latencies_ms.append((now_us / 1e6, (now_us - batch.commit_ts) / 1000))
            told = (*self.queued.pop(id(batch), (began, began)), began, now_us / 1e6)
            at = np.array([(each, *told) for each in batch.commit_ts / 1e6]).reshape(-1, 5)
            self.stages.append((now_us / 1e6, (np.diff(at) * 1000).astype(np.float32)))
        return meta


def note_stages() -> None:
    """Note when sockets are read and batches queued."""
    fill, put, read = BinlogStream._fill, OutputBuffer.put, [0.0]

    def noted_fill(self: BinlogStream) -> bool:
        filled = fill(self)
        if filled:
            read[0] = time.time()
        return filled

    def noted_put(self: OutputBuffer, item: Any, *arguments: Any) -> None:
        if isinstance(item, LogBatch):
            TimedWriter.queued[id(item)] = (read[0], time.time())
        put(self, item, *arguments)

    BinlogStream._fill, OutputBuffer.put = noted_fill, noted_put  # type: ignore[method-assign]


def slowest(parts: list[tuple[float, Any]], since: float, until: float) -> list[float]:
    """The medians of the stages of the slowest hundredth."""
    chosen = [values for at, values in parts if since <= at <= until]
    if not chosen:
        return []
    stages = np.concatenate(chosen)
    took = stages.sum(axis=1)
    medians: list[float] = np.median(stages[took >= np.percentile(took, 99)], axis=0).tolist()
    return medians


class MeasuredCapture(app.Capture):
    """Remembers when it began to connect."""

    began = 0.0
    cpu_s = 0.0
    session: CaptureSession | None = None

    def _open_session(self, *arguments: Any) -> CaptureSession:
        self.began, self.cpu_s = time.perf_counter(), cpu_s()
        self.session = super()._open_session(*arguments)
        return self.session


def clock_latencies_ms(path: str, column: str) -> list[tuple[float, Any]]:
    """The same latencies by a column of the rows, which the event log at ``path`` holds."""
    log, out = EventLog.open(path), []
    at = np.array([first for _, first, _ in TimedWriter.appended])
    for ref in log.segments(int(at[0]), TimedWriter.appended[-1][2]):
        records = log.read(ref)
        # A row that a dump has read was written long ago.
        records = records.filter(pc.not_equal(records.column("kind"), int(RecordKind.DUMP_ROW)))
        for number in set(records.column("schema_id").to_pylist()) - {0}:
            if column not in log.schemas.get(number).column_names:
                continue
            [chosen] = (
                records.filter(pc.equal(records.column("schema_id"), number))
                .combine_chunks()
                .to_batches()
            )
            decoded = decode(chosen, log.schemas.get(number), columns=[column], before=False)
            assert decoded.after is not None
            told_us = decoded.after.field(0).cast("int64").to_numpy(zero_copy_only=False)
            segment = np.searchsorted(at, decoded.version.to_numpy(), side="right") - 1
            for index in np.unique(segment).tolist():
                durable_s = TimedWriter.appended[index][0]
                out.append((durable_s, durable_s * 1000 - told_us[segment == index] / 1000))
    return out


def make_metrics_eager() -> None:
    from tidelog.app.web import metrics, otlp

    metrics.STATUS_EVERY_S = metrics.LOG_EVERY_S = 0.0  # type: ignore[misc]
    start = otlp.OtlpPush.start

    def at_once(self: otlp.OtlpPush) -> None:
        self._every_s = 0.0
        start(self)

    otlp.OtlpPush.start = at_once  # type: ignore[method-assign]


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentiles(parts: list[tuple[float, Any]], since: float, until: float) -> dict[str, float]:
    chosen = [values for at, values in parts if since <= at <= until]
    if not chosen:
        return {}
    values = np.concatenate(chosen)
    p50, p99, most = np.percentile(values, [50, 99, 100])
    return {"count": len(values), "p50": float(p50), "p99": float(p99), "max": float(most)}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("config")
    arguments.add_argument("--records", type=int, default=0)
    arguments.add_argument("--clock")
    arguments.add_argument("--eager-metrics", action="store_true")
    options = arguments.parse_args()
    if options.eager_metrics:
        make_metrics_eager()
    note_stages()
    capture_run.EventLogWriter = TimedWriter  # type: ignore[attr-defined]
    capture = MeasuredCapture(options.config)
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    phases = {"since": 0.0, "until": 1e12}
    signal.signal(signal.SIGUSR1, lambda *_: phases.__setitem__("since", time.time()))
    signal.signal(signal.SIGUSR2, lambda *_: phases.__setitem__("until", time.time()))
    capture.start()
    while capture.session is None and not capture.wait(0):
        time.sleep(0.005)
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    records = 0
    while not capture.stopping and not capture.wait(0):
        session = capture.session
        records = session.loop.progress().records if session is not None else 0
        if options.records and records >= options.records:
            break
        time.sleep(0.005)
    took, used = time.perf_counter() - capture.began, cpu_s() - capture.cpu_s
    capture.stop()
    capture.wait()
    parts = TimedWriter.latencies_ms
    if options.clock and TimedWriter.appended:
        parts = clock_latencies_ms(str(load_config(options.config).log.path), options.clock)
    report = {
        "seconds": took,
        "cpu_s": used,
        "records": records,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stages_ms": slowest(TimedWriter.stages, phases["since"], phases["until"]),
        "latency_ms": percentiles(parts, phases["since"], phases["until"]),
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
