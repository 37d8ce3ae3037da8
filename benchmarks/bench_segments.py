"""Append segments of the event log: 10-column rows of about 175 bytes, one writing thread.

``python benchmarks/bench_segments.py [--path DIR] [--quick]`` prints for several segment sizes the
milliseconds a segment (fsync on), what of it is encoding, MB/s of payload and CPU µs a row; then
reading them back, and a poll of a reader. Floor: the same bytes to a temporary file, fsynced,
linked and the directory fsynced, nothing else. With ``--s3``, the same on an S3 server of this
machine; floor: one conditional put. With ``--opening N``: what the first poll of N segments costs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.support.s3 import S3Server

from tidelog.eventlog import writer as writer_module
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId


def insert(rng: np.random.Generator, key: int) -> bytes:
    values = [
        str(key),
        str(rng.integers(1e6)),
        f"customer-{rng.integers(1e5)}",
        f"{rng.random() * 1000:.2f}",
        f"2024-01-{rng.integers(28) + 1:02} 10:{rng.integers(60):02}:{rng.integers(60):02}.123456",
        "t",
        rng.bytes(16).hex(),
        "pending",
        f"some note text {rng.integers(1000)}",
        str(rng.integers(100)),
    ]
    cells = b"".join(b"t" + len(v).to_bytes(4, "big") + v.encode() for v in values)
    return b"I\x00\x00\x40\x01N\x00\x0a" + cells


def log_batch(rows: list[bytes], position: int) -> LogBatch:
    """``rows`` in transactions of 1,000."""
    n = len(rows)
    transaction = np.arange(n, dtype=np.int64) // 1000
    last = int(transaction[-1])
    return LogBatch(
        kind=np.full(n, RecordKind.INSERT, np.uint8),
        schema_id=np.ones(n, np.int32),
        position=position + transaction * 200_000,
        ordinal=np.arange(n, dtype=np.int64) % 1000,
        xid=700 + transaction,
        commit_ts=1_700_000_000_000_000 + transaction * 5_000,
        payload_offsets=np.cumsum([0, *map(len, rows)]).astype(np.int32),
        payload=np.frombuffer(b"".join(rows), np.uint8),
        resume=Resume(position, position + last * 200_000, (n - 1) % 1000),
    )


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def median(values: list[float]) -> float:
    return statistics.median(values)


def new_writer(path: str) -> EventLogWriter:
    """Create an event log with one table, of which `log_batch` has rows."""
    writer = EventLogWriter.create(path, SourceId("postgres", "1", "bench", 1), 1)
    column = Column("c0", 23, -1, "integer", "int32")
    SchemaStore(path).register(
        TableSchema(TableName("public", "t"), 1, (column,), ("c0",), ("c0",), "d", "pgoutput")
    )
    return writer


def bench_size(path: str, pool: list[bytes], size: int, segments: int) -> None:
    width = sum(map(len, pool)) / len(pool)
    count = max(1, round(size / width))
    rows = (pool * (count // len(pool) + 1))[:count]
    position = 10**9
    batches = []
    for _ in range(4):
        batches.append(log_batch(rows, 0))
    writer = new_writer(path)
    encode, encoding = writer_module.encode_segment, []
    stored_bytes = []

    def timed_encode(*arguments: object) -> object:
        start = time.perf_counter()
        data = encode(*arguments)  # type: ignore[arg-type]
        encoding.append((time.perf_counter() - start) * 1e3)
        stored_bytes.append(data.size)
        return data

    writer_module.encode_segment = timed_encode  # type: ignore[assignment]
    appending, cpu = [], []
    for index in range(segments):
        one = batches[index % 4]
        one.position += position - int(one.position[0])
        position = int(one.position[-1]) + 200_000
        resume = Resume(0, int(one.position[-1]), int(one.ordinal[-1]))
        before = time.process_time()
        appending.append(timed(lambda one=one, resume=resume: writer.append_log([one], resume)))
        cpu.append((time.process_time() - before) * 1e6 / count)
    writer_module.encode_segment = encode
    storage = storage_at(f"{path}/floor")
    data = os.urandom(int(median(stored_bytes)))
    floor = [
        timed(lambda index=index: storage.put_if_absent(f"{index}", data))
        for index in range(segments)
    ]
    log = EventLog.open(path)
    refs = log.segments(0)
    reading = [timed(lambda ref=ref: log.read(ref)) for ref in refs]
    one_column = [timed(lambda ref=ref: log.read(ref, ["xid"])) for ref in refs]
    polling = [timed(log.latest_offset) for _ in range(50)]
    payload = writer.tail.payload_bytes
    print(
        f"{payload / 1024:8.0f} KiB {count:6} rows | append {median(appending):6.2f} ms"
        f" (best {min(appending):5.2f}, p99 {np.quantile(appending, 0.99):6.2f};"
        f" encode {median(encoding):5.2f}, best {min(encoding):5.2f})"
        f" | floor {median(floor):5.2f} ms"
        f" | {payload / median(appending) / 1e3:6.0f} MB/s"
        f" | {median(cpu):6.2f} CPU µs/row"
        f" | {median(stored_bytes) / payload:4.2f} of payload on disk"
        f" | read {median(reading):5.2f} ms, one column {median(one_column):5.2f} ms"
        f" | poll {median(polling) * 1e3:4.0f} µs",
        flush=True,
    )
    if size <= 64 << 10:
        writer.append_position(Resume(0, position, 0))
        start = time.perf_counter()
        gone = EventLogMaintenance(path).rollup(target_bytes=64 << 20, min_age_s=-10)
        took = (time.perf_counter() - start) * 1e3
        cold = timed(lambda: EventLog.open(path).latest_offset())
        print(f"{'':12} roll-up of {gone + 1} segments {took:6.1f} ms | first poll {cold:.2f} ms")


def bench_opening(path: str, row: bytes, segments: int) -> None:
    """The first poll of a log of so many segments of a row each, as before a roll-up."""
    writer = new_writer(path)
    one = log_batch([row], 0)
    for _ in range(segments):
        one.position += 200_000
        resume = Resume(0, int(one.position[-1]), int(one.ordinal[-1]))
        writer.append_log([one], resume)
    before = time.process_time()
    took = timed(lambda: EventLog.open(path).latest_offset())
    cpu = time.process_time() - before
    print(f"{segments:8,} segments | first poll {took / 1e3:6.2f} s, {cpu:6.2f} s of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--s3", action="store_true", help="on an object store")
    parser.add_argument("--opening", type=int, help="only: open a log of so many segments")
    parser.add_argument("--quick", action="store_true", help="few segments: numbers mean nothing")
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    pool = [insert(rng, key) for key in range(2_000 if arguments.quick else 24_000)]
    segments = 5 if arguments.quick else 60
    sizes = (1, 64 << 10, 1 << 20, 4 << 20)
    if arguments.opening:
        with tempfile.TemporaryDirectory(dir=arguments.path) as directory:
            os.fsync = lambda _: None  # type: ignore[assignment] # nothing measured is written
            bench_opening(directory, pool[0], arguments.opening)
    elif arguments.s3:
        with S3Server() as server:
            bench_size(server.url("warm-up"), pool, 1, 100)
            for size in sizes:
                bench_size(server.url(str(size)), pool, size, segments)
    else:
        for size in sizes:
            with tempfile.TemporaryDirectory(dir=arguments.path) as directory:
                bench_size(directory, pool, size, segments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
