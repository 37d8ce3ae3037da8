"""Write data files of a Delta table, and look keys up in them. One thread, local disk.

``python -m benchmarks.bench_lake_files [--quick]`` prints, for a number and for a text of 36
characters as the key: CPU µs a row of writing 500,000 unsorted rows of 5 columns (floor: the same
rows by pyarrow alone, in the order they come in), then CPU ms of looking 1,000 and 475,000 keys up
among 1,000,000 rows with a warm cache (floor: `numpy.searchsorted` of as many sorted numbers), and
of building the index that was lost (floor: reading the key's column).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.table import Row, show
from tidelog.outputs.base.stores.port import open_file_store
from tidelog.outputs.lake.data_files.key_index_cache import KeyIndexCache
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import RowLookUp
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

COLUMNS = {
    "id": pa.int64(),
    "status": pa.string(),
    "amount": pa.decimal128(12, 2),
    "changed": pa.timestamp("us", "UTC"),
    "_version": pa.int64(),
}


def layout_of(key: pa.DataType) -> FileLayout:
    columns = tuple(FileColumn(name, name, kind) for name, kind in {**COLUMNS, "id": key}.items())
    return FileLayout(columns, (), ("id",), "_version", "", ("id", "_version"), False)


def rows_of(layout: FileLayout, count: int) -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = rng.permutation(count)
    if layout.columns[0].type == pa.string():
        raw = rng.bytes(16 * count)
        ids: Any = [str(uuid.UUID(bytes=raw[16 * i : 16 * i + 16])) for i in range(count)]
    else:
        ids = numbers
    statuses = pa.array(["new", "paid", "sent", "returned"])
    return pa.table(
        {
            "id": ids,
            "status": statuses.take(pa.array(numbers % 4)),
            "amount": pa.array(numbers % 100_000).cast(pa.decimal128(21, 2)),
            "changed": pa.array(numbers + 1_700_000_000_000_000).cast(COLUMNS["changed"]),
            "_version": pa.array(np.arange(count)),
        }
    ).cast(layout.schema)


def cpu_s(call: Callable[[], object], times: int = 5) -> float:
    """The least of several runs, after one that warms up."""
    call()
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def bench(kind: pa.DataType, label: str, scale: int, folder: Path) -> None:
    layout, store = layout_of(kind), open_file_store(str(folder))
    written, count = 500_000 // scale, 1_000_000 // scale
    rows = rows_of(layout, count)
    part = rows.slice(0, written)
    plain = folder / "plain.parquet"
    write = cpu_s(lambda: ParquetFileWriter(store, layout).write(part), 3) / written * 1e6
    floor = cpu_s(
        lambda: pq.write_table(part, plain, compression="zstd", use_dictionary=["status"]), 3
    )
    floor = floor / written * 1e6
    line = f"write 500,000 rows of 5 columns by {label}, CPU a row"
    found = [Row(line, f"{write:.2f} µs", f"{floor:.2f} µs", f"{write / floor:.1f} ×", "≤ 1 µs")]

    cache = KeyIndexCache(str(folder / "indexes"))
    files = ParquetFileWriter(store, layout, cache=cache).write(rows)
    look_up = RowLookUp(store, layout, cache)
    numbers = np.arange(count)
    for asked, goal in ((1_000, "< 10 ms"), (475_000 // scale, "")):
        keys = rows.select(["id"]).slice(0, asked)
        assert sum(len(e.rows) for e in look_up.find(files, KeyQuery(keys, layout))) == asked
        took = cpu_s(lambda keys=keys: look_up.find(files, KeyQuery(keys, layout))) * 1e3  # type: ignore[misc]
        wanted = np.sort(numbers[:: count // asked][:asked])
        least = cpu_s(lambda wanted=wanted: np.searchsorted(numbers, wanted)) * 1e3  # type: ignore[misc]
        line = f"look {asked:,} keys up among 1,000,000 rows by {label}, warm, CPU"
        ratio = f"{took / least:.1f} ×"
        found.append(Row(line, f"{took:.2f} ms", f"{least:.2f} ms", ratio, goal))

    def lost() -> None:
        empty = KeyIndexCache(tempfile.mkdtemp(dir=folder))
        RowLookUp(store, layout, empty).find(
            files, KeyQuery(rows.select(["id"]).slice(0, 1), layout)
        )

    took = cpu_s(lost, 3) * 1e3
    path = folder / files[0].path
    least = cpu_s(lambda: pq.read_table(path, columns=["id"], use_threads=False), 3) * 1e3
    line = f"build the index of 1,000,000 rows by {label}, CPU"
    found.append(Row(line, f"{took:.0f} ms", f"{least:.0f} ms", f"{took / least:.1f} ×", ""))
    show(found)


def run(bench: Callable[[pa.DataType, str, int, Path], None], about: str | None) -> None:
    """``bench`` of each kind of key, with its name, what rows are divided by, and a folder."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    scale = 100 if parser.parse_args().quick else 1
    for kind, label in ((pa.int64(), "a number"), (pa.string(), "a text")):
        with tempfile.TemporaryDirectory() as folder:
            bench(kind, label, scale, Path(folder))


if __name__ == "__main__":
    run(bench, __doc__)
