"""An event log of 10-column rows of about 180 bytes, and a meter of processes."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from tests.support.build_log import BuiltLog

from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import TableSchema
from tidelog.outputs.base import scheduling
from tidelog.spark.pipeline import LoopOptions, run_output_loops

COLUMNS = {
    "id": "int64",
    "customer_id": "int32",
    "status": "text",
    "amount": "decimal(12,2)",
    "quantity": "int32",
    "price": "float64",
    "created_at": "timestamptz",
    "shipped": "bool",
    "note": "text",
    "code": "text",
}
_SEGMENT_ROWS = 24_000  # about 4 MiB of payload, the writer's flush size
_STATUSES = (b"new", b"paid", b"shipped", b"returned")


def build(path: Path, changes: int, keys: int, *, seed: int = 1) -> tuple[BuiltLog, TableSchema]:
    """A log of ``keys`` inserts, then ``changes`` changes of random keys: 90 % updates, 5 % deletes
    and as many inserts again."""
    built = BuiltLog(path)
    schema = built.table("bench.orders", COLUMNS)
    random, notes = drawn(seed)
    append(built, schema, np.arange(keys), np.zeros(keys, np.int64), notes, random, "I")
    append(built, schema, random.integers(0, keys, changes), np.arange(changes), notes, random, "")
    return built, schema


def build_tables(path: Path, changes: int, tables: int, keys: int = 100_000) -> list[str]:
    """A log of as many changes of random keys in each table; the tables' names."""
    built = BuiltLog(path)
    random, notes = drawn(1)
    names = [f"orders{number}" for number in range(tables)]
    for name in names:
        schema = built.table(f"bench.{name}", COLUMNS)
        ids = random.integers(0, keys, changes // tables)
        append(built, schema, ids, np.arange(len(ids)), notes, random, "")
    return names


def build_alternating(path: Path, changes: int, tables: int, keys: int = 100_000) -> None:
    """A log of as many changes, each of the next table."""
    built = BuiltLog(path)
    random, notes = drawn(1)
    schemas = [built.table(f"bench.orders{number}", COLUMNS) for number in range(tables)]
    ids = random.integers(0, keys, changes)
    append(built, schemas, ids, np.arange(changes), notes, random, "")


def drawn(seed: int) -> tuple[np.random.Generator, list[bytes]]:
    """What `append` draws from, and the texts that it takes for notes."""
    random = np.random.default_rng(seed)
    return random, [random.bytes(36).hex().encode() for _ in range(4096)]


def append(built, schema, ids, salts, notes, random, kind) -> None:  # type: ignore[no-untyped-def]
    """``schema``: of all changes, or several that take turns."""
    schemas = schema if isinstance(schema, list) else [schema]
    alive: set[int] = set()
    position = built.writer.resume.position if built.writer.resume else 1000
    for start in range(0, len(ids), _SEGMENT_ROWS):
        part = ids[start : start + _SEGMENT_ROWS].tolist()
        draws = random.random(len(part)).tolist()
        payloads, kinds = [], []
        for i, (key, draw) in enumerate(zip(part, draws, strict=True)):
            if kind == "I":
                what = RecordKind.INSERT
            elif key in alive:  # deleted before: comes back
                what = RecordKind.INSERT
                alive.discard(key)
            elif draw < 0.05:
                what = RecordKind.DELETE
                alive.add(key)
            else:
                what = RecordKind.UPDATE
            payloads.append(_payload(what, key, start + i, notes))
            kinds.append(int(what))
        n = len(part)
        offsets = np.zeros(n + 1, np.int32)
        np.cumsum([len(p) for p in payloads], out=offsets[1:])
        positions = np.arange(position + 1, position + n + 1, dtype=np.int64)
        position += n
        batch = LogBatch(
            kind=np.array(kinds, np.uint8),
            schema_id=np.resize(np.array([s.schema_id for s in schemas], np.int32), n),
            position=positions,
            ordinal=np.zeros(n, np.int64),
            xid=positions // 1000 + 700,
            commit_ts=positions + 1_700_000_000_000_000,
            payload_offsets=offsets,
            payload=np.frombuffer(b"".join(payloads), np.uint8),
            resume=Resume(position, position, 0),
        )
        built.writer.append_log([batch])


def _payload(kind: RecordKind, key: int, salt: int, notes: list[bytes]) -> bytes:
    id_text = b"%d" % key
    if kind is RecordKind.DELETE:
        return b"D\x00\x00\x00\x01K\x00\x0a" + _cell(id_text) + b"n" * 9
    cells = (
        id_text,
        b"%d" % (salt % 50_000),
        _STATUSES[salt % 4],
        b"%d.%02d" % (salt % 10_000, salt % 100),
        b"%d" % (salt % 100),
        b"%d.25" % (salt % 1000),
        b"2026-07-%02d 12:%02d:%02d.%06d+00"
        % (salt % 28 + 1, salt % 60, salt % 60, salt % 1_000_000),
        b"t" if salt % 3 else b"f",
        notes[salt % 4096],
        b"C-%08d" % (salt % 99_999_999),
    )
    head = (b"I" if kind is RecordKind.INSERT else b"U") + b"\x00\x00\x00\x01N\x00\x0a"
    return head + b"".join(map(_cell, cells))


def _cell(text: bytes) -> bytes:
    return b"t" + struct.pack("!I", len(text)) + text


def typed_rows(count: int) -> pa.Table:
    """Rows as those of a log, in Arrow's types: what floors format."""
    at = np.arange(count)
    _, notes = drawn(1)
    columns = {
        "id": pa.array(np.random.default_rng(1).integers(0, 100_000, count)),
        "customer_id": pa.array(at % 50_000),
        "status": pa.array(["new", "paid", "shipped", "returned"]).take(pa.array(at % 4)),
        "amount": pa.array(at % 10_000).cast(pa.decimal128(21, 2)),
        "quantity": pa.array(at % 100),
        "price": pa.array(at % 1_000 + 0.25),
        "created_at": pa.array(at + 1_790_000_000_000_000).view(pa.timestamp("us")),
        "shipped": pa.array(at % 3 > 0),
        "note": pa.array([each.decode() for each in notes]).take(pa.array(at % 4096)),
        "code": pc.binary_join_element_wise("C-", pa.array(at).cast(pa.string()), ""),
    }
    return pa.table(columns)


def delivered_s(spark, log: Path, output, pipeline: str) -> float:  # type: ignore[no-untyped-def]
    """Bring the log over to ``output`` and close it: seconds of the batches, without the start of
    the query, which is the same for any size."""
    batches: list[float] = []
    try:
        run_output_loops(
            spark, str(log), [output], LoopOptions(once=True), name=pipeline,
            on_progress=lambda done: batches.append(done.seconds),
        )  # fmt: skip
    finally:
        output.close()
    return sum(batches)


class TasksHere:
    """Runs the tasks of outputs in this process, one after the other, and counts their CPU and
    seconds: those of the output's own code. The Spark job that carries tasks costs the same
    whatever they hold (`benchmarks.bench_lake`).
    """

    def __init__(self) -> None:
        self.cpu_s = self.seconds = 0.0
        scheduling.run_on_executors = self._run  # type: ignore[assignment]

    def _run(
        self, _spark: Any, function: Callable[[Any], Any], items: Sequence[Any], **_: Any
    ) -> list[Any]:
        with self:
            return [function(item) for item in items]

    def __enter__(self) -> None:
        self._before = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        cpu_s, seconds = self._before
        self.cpu_s += time.process_time() - cpu_s
        self.seconds += time.perf_counter() - seconds

    def by_turns(
        self, what: str, rows: int, ours: Callable[[], object], floor: Callable[[], object],
        runs: int = 5,
    ) -> tuple[tuple[float, float], tuple[float, float]]:  # fmt: skip
        """CPU µs a row, and seconds, of the tasks that ``ours`` runs, and of ``floor``: medians."""
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(runs):
            for is_ours in (True, False):
                self.cpu_s = self.seconds = 0.0
                if is_ours:
                    ours()
                else:
                    with self:
                        floor()
                found[is_ours].append((self.cpu_s / rows * 1e6, self.seconds))
            print(f"{what}: {found[True][-1]}, floor {found[False][-1]}", flush=True)
        mine, least = (
            (median(cpu for cpu, _ in each), median(seconds for _, seconds in each))
            for each in found.values()
        )
        return mine, least


@dataclass
class Reading:
    seconds: float
    cpu_seconds: float
    cpu_by_kind: dict[str, float]
    peak_bytes: int
    peak_by_kind: dict[str, int]


class Meter:
    """CPU seconds and peak resident memory of this process and all below it (JVM, workers, and the
    servers that the benchmark started), in all and by kind of process. Pages that processes share
    count once.
    """

    def __enter__(self) -> Meter:
        self._peak, self._peak_by_kind = 0, {}
        self._kinds: dict[int, str] = {}
        self._gone: dict[int, float] = {}
        self._stop = threading.Event()
        self._before = self._sample()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._started
        self._stop.set()
        self._thread.join()
        cpu: dict[str, float] = {}
        for pid, spent in self._sample().items():
            kind = self._kinds[pid]
            cpu[kind] = cpu.get(kind, 0.0) + spent - self._before.get(pid, 0.0)
        self.reading = Reading(seconds, sum(cpu.values()), cpu, self._peak, self._peak_by_kind)

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self._sample()

    def _sample(self) -> dict[int, float]:
        """CPU seconds by pid, of processes gone since as well (as last seen)."""
        me = psutil.Process()
        resident, kinds = 0, {}
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
                size = process.memory_full_info().pss  # forked workers share much of their memory
                if process.pid not in self._kinds:
                    self._kinds[process.pid] = "driver" if process.pid == me.pid else _kind(process)
            except psutil.Error:
                continue
            self._gone[process.pid] = times.user + times.system
            resident += size
            name = self._kinds[process.pid]
            kinds[name] = kinds.get(name, 0) + size
        if resident > self._peak:
            self._peak, self._peak_by_kind = resident, kinds
        return dict(self._gone)


def _kind(process: psutil.Process) -> str:
    name = process.name()
    if name == "java":  # Spark's, or a server's
        line = " ".join(process.cmdline())
        return next((each for each in _SERVERS if f".{each}" in line.lower()), "spark")
    return name


_SERVERS = ("kafka", "opensearch")


def report(what: str, rows: int, reading: Reading) -> None:
    def spelled(by_kind: dict[str, float], scale: float, form: str) -> str:
        return ", ".join(f"{k} {v * scale:{form}}" for k, v in sorted(by_kind.items()))

    print(
        f"{what}: {rows / reading.seconds:,.0f} rows/s, "
        f"{reading.cpu_seconds / rows * 1e6:.1f} µs CPU a row "
        f"({spelled(reading.cpu_by_kind, 1e6 / rows, '.1f')}), {reading.seconds:.1f} s, "
        f"peak {reading.peak_bytes >> 20} MB ({spelled(reading.peak_by_kind, 2**-20, '.0f')})",
        flush=True,
    )
