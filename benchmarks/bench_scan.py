"""µs a message of the scanner's kernel, of key extraction and of COPY rows; peak memory.

    python -m benchmarks.bench_scan [--transactions N] [--rows N]

The floor is a plain copy of the same bytes, from the same run.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np
from tests.support import pgoutput_messages as pg

from tidelog.codecs.postgres.pgoutput import PgoutputScanner
from tidelog.codecs.postgres.tuples import PgoutputKeys, copy_text_rows
from tidelog.model.records import LogBatch
from tidelog.model.schema import Column, TableName, TableSchema

RELATION = 16_400
COLUMNS = 10


def row(number: int) -> list[str]:
    """10 columns, about 180 bytes on the wire."""
    return [
        str(number),
        str(number % 977),
        f"customer-{number % 100_000:08d}",
        f"{number % 10_000}.{number % 100:02d}",
        "2026-01-02 03:04:05.678901+00",
        "t" if number % 2 else "f",
        f"note {number} {'x' * 30}",
        "3.14159265358979",
        "pending",
        f"{number:016x}",
    ]


def feeds(transactions: int, rows: int, feed_bytes: int) -> list[list[bytes]]:
    """Transactions as lists of messages, cut to feeds of about ``feed_bytes``."""
    columns = [(int(i == 0), f"c{i}", 25, -1) for i in range(COLUMNS)]
    result: list[list[bytes]] = [[pg.relation(RELATION, "public", "bench", columns)]]
    size = 0
    lsn = 1_000_000
    number = 0
    for xid in range(transactions):
        messages = [pg.begin(lsn, xid=xid + 1000)]
        for _ in range(rows):
            number += 1
            values = row(number)
            kind = number % 10
            if kind == 9:
                messages.append(pg.delete(RELATION, key=values[:1] + [None] * (COLUMNS - 1)))
            elif kind >= 6:
                messages.append(pg.update(RELATION, values))
            else:
                messages.append(pg.insert(RELATION, values))
        messages.append(pg.commit(lsn, lsn + 100))
        lsn += 1_000
        result[-1] += messages
        size += sum(map(len, messages))
        if size >= feed_bytes:
            result.append([])
            size = 0
    return [feed for feed in result if feed]


def best(action: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transactions", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--feed-bytes", type=int, default=256 * 1024)
    arguments = parser.parse_args()

    began = time.perf_counter()
    PgoutputScanner()
    print(f"kernel ready after {time.perf_counter() - began:.2f} s")
    packed = [
        pg.packed(f) for f in feeds(arguments.transactions, arguments.rows, arguments.feed_bytes)
    ]
    messages = sum(len(offsets) - 1 for _, offsets in packed)
    size = sum(len(data) for data, _ in packed)
    print(f"{messages:,} messages of {size / messages:.0f} bytes in {len(packed)} feeds")

    batches: list[LogBatch] = []

    def scan(schema_id: int = 1, excluded: Sequence[int] = ()) -> None:
        batches.clear()
        scanner = PgoutputScanner()
        for data, offsets in packed:
            for item in scanner.feed(data, offsets):
                if isinstance(item, LogBatch):
                    batches.append(item)
                else:
                    scanner.bind(RELATION, schema_id, excluded=excluded)

    floor = best(lambda: [data.copy() for data, _ in packed])
    print(f"copy only (floor)      {floor / messages * 1e6:.3f} µs a message")
    print(f"scan, all dropped      {best(lambda: scan(0)) / messages * 1e6:.3f} µs a message")
    seconds = best(lambda: scan(1, [2, 6]))
    print(f"scan, 2 of {COLUMNS} excluded {seconds / messages * 1e6:.3f} µs a message")
    print(f"scan, all captured     {best(scan) / messages * 1e6:.3f} µs a message")

    records = sum(map(len, batches))
    names = tuple(f"c{i}" for i in range(COLUMNS))
    schema = TableSchema(
        table=TableName("public", "bench"),
        relation_id=RELATION,
        columns=tuple(Column(name, 25, -1, "text", "text") for name in names),
        key=names[:1],
        identity=names[:1],
        identity_kind="d",
        wire_format="pgoutput",
        schema_id=1,
    )
    keys = PgoutputKeys()
    everything = [np.arange(len(batch), dtype=np.int32) for batch in batches]

    def extract() -> None:
        for batch, indices in zip(batches, everything, strict=True):
            keys.keys(batch, indices, schema)

    extract()
    print(f"keys, 1 of {COLUMNS} columns    {best(extract) / records * 1e6:.3f} µs a record")

    text = "".join("\t".join(row(number)) + "\n" for number in range(20_000)).encode()
    copy_text_rows(text, RELATION, 1, COLUMNS)
    seconds = best(lambda: copy_text_rows(text, RELATION, 1, COLUMNS))
    print(f"COPY text → inserts    {seconds / 20_000 * 1e6:.3f} µs a row")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory   {peak:.0f} MiB, of which {size / 2**20:.0f} MiB are the input")


if __name__ == "__main__":
    main()
