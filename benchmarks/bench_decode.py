"""Decode a 10-column table (payloads of about 180 bytes) into typed Arrow columns, one core.

``python benchmarks/bench_decode.py [--batch-rows N]`` prints rows/s and CPU µs a row for inserts,
updates, updates with full old images, and a fold. Floor: one pass that only copies the payloads.
"""

from __future__ import annotations

import argparse
import functools
import random
import resource
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from tests.support.payloads import insert, record_batch, table_schema, update

from benchmarks.table import Row, show
from tidelog.codecs.decode import decode
from tidelog.codecs.fold import fold
from tidelog.model.records import RecordKind

COLUMNS = (
    ("id", "int64"), ("customer_id", "int32"), ("quantity", "int32"), ("price", "decimal(10,2)"),
    ("paid", "bool"), ("created_at", "timestamptz"), ("due", "date"), ("status", "text"),
    ("email", "text"), ("note", "text"),
)  # fmt: skip
SCHEMA = table_schema(COLUMNS, key=["id"])


def row(rng: random.Random, key: int) -> list[str]:
    return [
        str(key), str(rng.randrange(10**6)), str(rng.randrange(100)),
        f"{rng.randrange(10**6)}.{rng.randrange(100):02d}", rng.choice("tf"),
        f"2024-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d} "
        f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}."
        f"{rng.randrange(10**6):06d}+00",
        f"2025-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
        rng.choice(["new", "paid", "shipped", "returned"]),
        f"user{rng.randrange(10**6)}@example.com",
        "x" * rng.randrange(10, 40),
    ]  # fmt: skip


def batch(kinds: str, rows: int, keys: int, seed: int = 1) -> pa.RecordBatch:
    """``kinds`` in turn: I insert, U update, F update with a full old image."""
    rng = random.Random(seed)
    records = []
    for number in range(rows):
        what = kinds[number % len(kinds)]
        new = row(rng, rng.randrange(keys))
        if what == "I":
            records.append((RecordKind.INSERT, insert(new)))
        else:
            records.append((RecordKind.UPDATE, update(new, new if what == "F" else None, b"O")))
    return record_batch(records)


def measure(name: str, rows: int, work: Callable[[], object], seconds: float) -> float:
    work()  # compile
    best, cpu, times = float("inf"), 0.0, 0
    start, cpu_start = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
        times += 1
    cpu = (time.process_time() - cpu_start) / times / rows
    mean = (time.perf_counter() - start) / times / rows
    print(
        f"{name:34s} {1 / mean:12,.0f} rows/s mean {rows / best:12,.0f} best"
        f" {cpu * 1e6:7.3f} CPU µs/row"
    )
    return 1 / mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-rows", type=int, nargs="*", default=[8_192, 65_536])
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    decoded: dict[int, float] = {}  # inserts, by batch size
    for rows in arguments.batch_rows:
        inserts = batch("I", rows, 10**6)
        indices = pa.array(np.arange(rows))
        mean_bytes = inserts.column("payload").nbytes / rows - 4
        print(f"-- batches of {rows} records, {mean_bytes:.0f} bytes of payload")
        floor = measure(
            "floor: copy the payloads",
            rows,
            functools.partial(inserts.column("payload").take, indices),
            arguments.seconds / 4,
        )
        for name, kinds, keys in (
            ("inserts", "I", 10**6),
            ("updates", "U", 10**6),
            ("updates with full old images", "F", 10**6),
        ):
            records = batch(kinds, rows, keys)
            speed = measure(
                f"decode {name}", rows, lambda b=records: decode(b, SCHEMA), arguments.seconds
            )
            decoded.setdefault(rows, speed)
        for keys in (10**6, 1_000):
            records = batch("IUU", rows, keys)
            measure(
                f"fold over {keys} keys", rows, lambda b=records: fold(b, SCHEMA), arguments.seconds
            )
    rows, speed = next(iter(decoded.items()))
    show(
        [
            Row(
                f"decode to typed Arrow, one core, batches of {rows:,}",
                f"{speed:,.0f} rows/s",
                f"{floor:,.0f} rows/s (copy the payloads)",
                f"{speed / floor:.2f} ×",
                "≥ 1,200,000 rows/s",
            )
        ]
    )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
