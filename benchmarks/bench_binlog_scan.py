"""µs a row of the binlog scanner, for large, middling and tiny transactions; peak memory.

    python -m benchmarks.bench_binlog_scan [--rows N]

Rows of 10 columns, 110 bytes. The floor is a checksum and a plain copy of the same bytes, from the
same run.
"""

from __future__ import annotations

import argparse
import resource
import struct
import time
import zlib
from collections.abc import Sequence

import numpy as np
from tests.support.binlog_events import BinlogBytes

from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.model.records import Int64s, LogBatch, UInt8s

TYPES = bytes([3, 8, 1, 15, 15, 246, 18, 17, 5, 252])
METAS = struct.pack("<HH", 80, 300) + bytes([12, 2, 6, 3, 8, 2])
FEED_BYTES = 2 << 20


EXCLUDED = (2, 6)


def row(number: int) -> bytes:
    """int, bigint, tinyint, two varchars, decimal, datetime, timestamp, double, blob."""
    return b"".join(
        [
            b"\0\xfc",
            struct.pack("<iqb", number, number, 1),
            b"\x0ccustomer-123",
            b"\x14\0" + b"v" * 20,
            b"\x80" + bytes(5),
            b"\x99" * 8,
            b"\x60" * 6,
            struct.pack("<d", 3.14),
            b"\x1e\0" + b"z" * 30,
        ]
    )


def stream(rows: int, event_rows: int, transaction_rows: int) -> tuple[UInt8s, Int64s]:
    log = BinlogBytes()
    done = 0
    while done < rows:
        log.gtid(done + 1, commit_us=1_700_000_000_000_000)
        log.query("BEGIN")
        end = min(rows, done + transaction_rows)
        while done < end:
            log.table_map(1, TYPES, METAS)
            upto = min(end, done + event_rows)
            log.rows(30, 1, 10, b"".join(row(number) for number in range(done, upto)))
            done = upto
        log.xid()
    return log.arrays()


def scan(data: UInt8s, offsets: Int64s, left_out: Sequence[int] = ()) -> int:
    scanner = BinlogScanner(Flavor.MYSQL, checksum=True, file_number=1, offset=4)
    step = max(1, len(offsets) * FEED_BYTES // len(data))
    rows = 0
    for first in range(0, len(offsets) - 1, step):
        for item in scanner.feed(data, offsets[first : first + step + 1]):
            if isinstance(item, TableMapSeen):
                scanner.bind(item.table_id, 1, left_out=left_out)
            elif isinstance(item, LogBatch):
                rows += len(item)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    rows = parser.parse_args().rows
    for event_rows, transaction_rows in ((74, 100_000), (74, 100), (1, 1)):
        data, offsets = stream(rows, event_rows, transaction_rows)
        scan(data[: offsets[4]], offsets[:5])
        best = floor = excluding = 1e9
        for _ in range(5):
            begun = time.process_time()
            assert scan(data, offsets) == rows
            best = min(best, time.process_time() - begun)
            begun = time.process_time()
            assert scan(data, offsets, EXCLUDED) == rows
            excluding = min(excluding, time.process_time() - begun)
            begun = time.process_time()
            zlib.crc32(data)
            np.array(data)
            floor = min(floor, time.process_time() - begun)
        print(
            f"{transaction_rows:>7} rows a transaction: {best / rows * 1e6:.3f} µs a row, "
            f"{rows / best / 1e6:.2f} M rows/s, {len(data) / best / 1e6:.0f} MB/s; "
            f"floor {floor / rows * 1e6:.3f} µs; {len(EXCLUDED)} of 10 columns excluded: "
            f"{excluding / rows * 1e6:.3f} µs"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
