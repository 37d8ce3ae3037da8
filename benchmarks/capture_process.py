"""Runs the shipped capture in a process of its own and measures it from inside.

    python -m benchmarks.capture_process CONFIG [--records N]

Writes a JSON line ``{"ready": …}`` once it leads. It ends when ``--records`` are durable, or on
SIGTERM; then it writes one JSON line: seconds and CPU seconds from the connection on, records, peak
resident memory in MB, and the commit-to-durable latencies of log records in ms, as percentiles.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tidelog import runtime
from tidelog.capture.session import CaptureSession
from tidelog.eventlog.layout import SegmentMeta
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import LogBatch, Resume
from tidelog.runtime import capturing


class TimedWriter(EventLogWriter):
    """Notes, after each segment is durable, how long ago its records were committed."""

    latencies_ms: ClassVar[list[tuple[float, Any]]] = []

    def append_log(self, batches: Sequence[LogBatch], resume: Resume | None = None) -> SegmentMeta:
        meta = super().append_log(batches, resume)
        now_us = time.time_ns() // 1000
        for batch in batches:
            self.latencies_ms.append((now_us / 1e6, (now_us - batch.commit_ts) / 1000))
        return meta


class MeasuredCapture(runtime.Capture):
    """Remembers when it began to connect."""

    began = 0.0
    cpu_s = 0.0
    session: CaptureSession | None = None

    def _open_session(self, *arguments: Any) -> CaptureSession:
        self.began, self.cpu_s = time.perf_counter(), cpu_s()
        self.session = super()._open_session(*arguments)
        return self.session


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
    options = arguments.parse_args()
    capturing.EventLogWriter = TimedWriter  # type: ignore[misc]
    capture = MeasuredCapture(options.config)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    phases = {"since": 0.0, "until": 1e12}
    signal.signal(signal.SIGUSR1, lambda *_: phases.__setitem__("since", time.time()))
    signal.signal(signal.SIGUSR2, lambda *_: phases.__setitem__("until", time.time()))
    thread = threading.Thread(target=capture.run, args=(stop,))
    thread.start()
    while capture.session is None and thread.is_alive():
        time.sleep(0.005)
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    records = 0
    while not stop.is_set() and thread.is_alive():
        session = capture.session
        records = session.engine.progress().records if session is not None else 0
        if options.records and records >= options.records:
            break
        time.sleep(0.005)
    took, used = time.perf_counter() - capture.began, cpu_s() - capture.cpu_s
    stop.set()
    thread.join()
    report = {
        "seconds": took,
        "cpu_s": used,
        "records": records,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "latency_ms": percentiles(TimedWriter.latencies_ms, phases["since"], phases["until"]),
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
